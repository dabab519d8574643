// @google/genai: streams, and a tool loop by hand in which every chunk goes back as it came.
import { GoogleGenAI } from "@google/genai";

import { QUESTION, report, weather } from "./report.mjs";

const CITY = { type: "object", properties: { city: { type: "string" } } };
const tools = [
  { functionDeclarations: [{ name: "get_weather", parametersJsonSchema: CITY }, { name: "get_time" }] },
];
const config = { tools, thinkingConfig: { includeThoughts: true } };

const connect = (baseURL) =>
  new GoogleGenAI({ apiKey: "test", httpOptions: { baseUrl: baseURL.replace(/\/v1$/, "") } });

async function ask(baseURL, model, contents) {
  const seen = { text: "", calls: [], finish: null, contents: [] };
  for await (const chunk of await connect(baseURL).models.generateContentStream({ model, contents, config })) {
    const [candidate] = chunk.candidates;
    seen.contents.push(candidate.content);
    seen.finish = candidate.finishReason ?? seen.finish;
    for (const { text, thought, functionCall } of candidate.content.parts) {
      if (text && !thought) seen.text += text;
      if (functionCall) seen.calls.push({ id: functionCall.id, name: functionCall.name, arguments: functionCall.args });
    }
  }
  return seen;
}

async function readTurn(baseURL, model) {
  const { text, calls, finish } = await ask(baseURL, model, QUESTION);
  return { text, calls, finish };
}

async function roundTrip(baseURL, model) {
  const contents = [{ role: "user", parts: [{ text: QUESTION }] }];
  const first = await ask(baseURL, model, contents);
  const parts = first.calls.map(({ id, name, arguments: args }) => ({
    functionResponse: { id, name, response: { output: weather(args) } },
  }));
  return { text: (await ask(baseURL, model, [...contents, ...first.contents, { role: "user", parts }])).text };
}

await report(readTurn, roundTrip);
