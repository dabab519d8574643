// node responses-CLIENT.mjs BASE_URL TURN...  asks for each turn in all the client's ways, lets it run its tool loops with
// the demo model and with the scripted one that bears their name, and prints what it saw as one JSON object:
// {"turns": {"WAY": {"TURN": {"text": …, "calls": [{"id", "name", "arguments"}], "end": …} or {"error": …}}},
//  "loops": {"LOOP": {"demo" | "scripted": {"text": …} or {"error": …}}}}
const [url, ...turns] = process.argv.slice(2);

export const baseURL = url;

const orError = (promise) => promise.catch((error) => ({ error: error.message }));

export async function see(client, ways, loops) {
  const seen = { turns: {}, loops: {} };
  for (const [way, read] of Object.entries(ways)) {
    seen.turns[way] = {};
    for (const turn of turns) seen.turns[way][turn] = await orError(read(`up/client-${turn}`));
  }
  for (const [loop, run] of Object.entries(loops)) {
    seen.loops[loop] = {
      demo: await orError(run("demo")),
      scripted: await orError(run(`up/${client}-${loop}`)),
    };
  }
  return seen;
}
