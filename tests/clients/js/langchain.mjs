// LangChain JS with bound tools, streamed: the stack of Obsidian Copilot.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

import { QUESTION, report, weather } from "./report.mjs";

const tools = [
  tool(weather, { name: "get_weather", schema: z.object({ city: z.string() }) }),
  tool(() => "Noon.", { name: "get_time", schema: z.object({}) }),
];

const connect = (baseURL, model) =>
  new ChatOpenAI({ model, apiKey: "test", maxRetries: 0, configuration: { baseURL } }).bindTools(tools);

async function collect(stream) {
  let message;
  for await (const chunk of stream) message = message ? message.concat(chunk) : chunk;
  return message;
}

async function readTurn(baseURL, model) {
  const message = await collect(await connect(baseURL, model).stream(QUESTION));
  const calls = message.tool_calls.map(({ id, name, args }) => ({ id, name, arguments: args }));
  return { text: message.content, calls, finish: message.response_metadata.finish_reason };
}

async function roundTrip(baseURL, model) {
  const client = connect(baseURL, model);
  const question = new HumanMessage(QUESTION);
  const asked = await collect(await client.stream([question]));
  const results = asked.tool_calls.map(({ id }) => new ToolMessage({ content: weather(), tool_call_id: id }));
  return { text: (await collect(await client.stream([question, asked, ...results]))).content };
}

await report(readTurn, roundTrip);
