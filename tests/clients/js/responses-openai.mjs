// openai-node on /v1/responses: its stream helper, which reads most strictly, its bare events, and plain answers.
// The report also has "usual" and "extended": the events without and with the header that asks for more of them.
import OpenAI from "openai";

import { QUESTION, weather } from "./report.mjs";
import { baseURL, see } from "./responses.mjs";

const client = new OpenAI({ baseURL, apiKey: "test", maxRetries: 0 });
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { type: "function", name: "get_weather", parameters: city, strict: false },
  { type: "function", name: "get_time", parameters: { type: "object", properties: {} }, strict: false },
  { type: "custom", name: "run" },
];
const question = { role: "user", content: QUESTION };

async function addUp(stream) {
  const seen = { output: [], output_text: "" };
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") seen.output_text += event.delta;
    if (event.type === "response.output_item.done") seen.output[event.output_index] = event.item;
    if (event.response) Object.assign(seen, { id: event.response.id, status: event.response.status });
  }
  return seen;
}

const asks = {
  helper: (body) => client.responses.stream(body).finalResponse(),
  events: async (body) => addUp(await client.responses.create({ ...body, stream: true })),
  plain: (body) => client.responses.create(body),
};

const callsOf = ({ output }) => output.filter(({ type }) => type === "function_call" || type === "custom_tool_call");

const readTurn = (ask) => async (model) => {
  const response = await ask({ model, tools, input: QUESTION });
  const calls = callsOf(response).map(({ call_id: id, name, arguments: text, input }) => {
    return { id, name, arguments: text === undefined ? input : JSON.parse(text) };
  });
  const refusals = response.output.flatMap(({ content }) => (content ?? []).map(({ refusal }) => refusal ?? ""));
  return { text: response.output_text + refusals.join(""), calls, end: response.status };
};

const resultsOf = (response) =>
  callsOf(response).map(({ call_id }) => ({ type: "function_call_output", call_id, output: weather() }));

const sendAllAgain = (ask) => async (model) => {
  const body = { model, tools, store: false, include: ["reasoning.encrypted_content"] };
  const first = await ask({ ...body, input: [question] });
  const { output_text: text } = await ask({ ...body, input: [question, ...first.output, ...resultsOf(first)] });
  return { text };
};

const nameThePrevious = (ask) => async (model) => {
  const first = await ask({ model, tools, input: [question] });
  const second = await ask({ model, tools, previous_response_id: first.id, input: resultsOf(first) });
  return { text: second.output_text };
};

async function watch(stream) {
  const seen = { types: [] };
  try {
    for await (const event of await stream) seen.types.push(event.type);
  } catch (error) {
    seen.error = error.message;
  }
  return seen;
}

async function watchBoth(headers) {
  const body = { model: "demo", tools, input: QUESTION };
  return {
    helper: await watch(client.responses.stream(body, { headers })),
    events: await watch(client.responses.create({ ...body, stream: true }, { headers })),
  };
}

const each = (prefix, make) => Object.entries(asks).map(([way, ask]) => [prefix + way, make(ask)]);
const loops = Object.fromEntries([...each("history-", sendAllAgain), ...each("previous-", nameThePrevious)]);
const seen = await see("openai", Object.fromEntries(each("", readTurn)), loops);
seen.usual = await watchBoth({});
seen.extended = await watchBoth({ "x-proxy-responses-events": "extended" });
console.log(JSON.stringify(seen));
