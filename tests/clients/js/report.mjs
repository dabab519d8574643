// node CLIENT.mjs BASE_URL TURN...  prints what the client saw of each turn, and of a round trip, as one JSON object:
// {"TURN": {"text": …, "calls": [{"id", "name", "arguments"}], "finish": …} or {"error": …}, "round-trip": {"text": …}}
// The variable MODELS names further models for a round trip.

export const QUESTION = "What is the weather in Paris?";

export const weather = () => "Sunny, 21 °C.";

export async function report(readTurn, roundTrip) {
  const [baseURL, ...turns] = process.argv.slice(2);
  const seen = {};
  for (const turn of turns) {
    seen[turn] = await readTurn(baseURL, `up/client-${turn}`).catch((error) => ({ error: error.message }));
  }
  seen["round-trip"] = await roundTrip(baseURL, "demo");
  for (const model of (process.env.MODELS ?? "").split(" ").filter(Boolean)) {
    seen[model] = await roundTrip(baseURL, model);
  }
  console.log(JSON.stringify(seen));
}
