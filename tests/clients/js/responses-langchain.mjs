// LangChain JS with bound tools, told to use /v1/responses.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

import { QUESTION, weather } from "./report.mjs";
import { baseURL, see } from "./responses.mjs";

const tools = [
  tool(weather, { name: "get_weather", schema: z.object({ city: z.string() }) }),
  tool(() => "Noon.", { name: "get_time", schema: z.object({}) }),
];

function connect(model) {
  const options = { model, apiKey: "test", maxRetries: 0, useResponsesApi: true, configuration: { baseURL } };
  return new ChatOpenAI(options).bindTools(tools);
}

async function streamed(model, messages) {
  let message;
  for await (const chunk of await connect(model).stream(messages)) message = message ? message.concat(chunk) : chunk;
  return message;
}

const whole = (model, messages) => connect(model).invoke(messages);

const readTurn = (ask) => async (model) => {
  const { text, tool_calls, response_metadata } = await ask(model, QUESTION);
  const calls = tool_calls.map(({ id, name, args }) => ({ id, name, arguments: args }));
  return { text, calls, end: response_metadata.status };
};

const loop = (ask) => async (model) => {
  const question = new HumanMessage(QUESTION);
  const asked = await ask(model, [question]);
  const results = asked.tool_calls.map(({ id }) => new ToolMessage({ content: weather(), tool_call_id: id }));
  return { text: (await ask(model, [question, asked, ...results])).text };
};

const ways = { streamed: readTurn(streamed), whole: readTurn(whole) };
console.log(JSON.stringify(await see("langchain", ways, { streamed: loop(streamed), whole: loop(whole) })));
