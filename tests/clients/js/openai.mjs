// openai-node: the stream helper for turns, `runTools` for the round trip.
import OpenAI from "openai";

import { QUESTION, report, weather } from "./report.mjs";

const messages = [{ role: "user", content: QUESTION }];
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { type: "function", function: { name: "get_weather", parameters: city } },
  { type: "function", function: { name: "get_time", parameters: { type: "object", properties: {} } } },
];

const connect = (baseURL) => new OpenAI({ baseURL, apiKey: "test", maxRetries: 0 });

async function readTurn(baseURL, model) {
  const stream = connect(baseURL).chat.completions.stream({ model, messages, tools });
  const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
  const calls = (message.tool_calls ?? []).map(({ id, function: { name, arguments: text } }) => {
    return { id, name, arguments: JSON.parse(text) };
  });
  return { text: message.content ?? "", calls, finish: finish_reason };
}

async function roundTrip(baseURL, model) {
  const run = { name: "get_weather", parameters: city, parse: JSON.parse, function: weather };
  const runner = connect(baseURL).chat.completions.runTools({
    model,
    messages,
    tools: [{ type: "function", function: run }],
    stream: true,
  });
  return { text: await runner.finalContent() };
}

await report(readTurn, roundTrip);
