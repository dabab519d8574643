// Vercel AI SDK with its OpenAI provider, which asks /v1/responses; it runs the tool of each loop itself.
// A loop also tells "steps", how many there were, and "sent", the types of the items that each request had.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { QUESTION, weather } from "./report.mjs";
import { baseURL, see } from "./responses.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false; // they would go where the report goes

const get_weather = tool({ inputSchema: z.object({ city: z.string() }) });
const get_time = tool({ inputSchema: z.object({}) });

async function streamed(options) {
  const errors = [];
  const result = streamText({ ...options, onError: ({ error }) => errors.push(error) });
  await result.consumeStream();
  if (errors.length) throw errors[0];
  const [text, toolCalls, finishReason, steps] = await Promise.all([
    result.text,
    result.toolCalls,
    result.finishReason,
    result.steps,
  ]);
  return { text, toolCalls, finishReason, steps };
}

function ask(way, model, options, sent = []) {
  const noted = (url, init) => {
    sent.push(JSON.parse(init.body).input.map(({ type }) => type ?? "message"));
    return fetch(url, init);
  };
  const openai = createOpenAI({ baseURL, apiKey: "test", fetch: noted });
  return way({ model: openai.responses(model), prompt: QUESTION, maxRetries: 0, ...options });
}

const readTurn = (way) => async (model) => {
  const { text, toolCalls, finishReason } = await ask(way, model, { tools: { get_weather, get_time } });
  const calls = toolCalls.map(({ toolCallId: id, toolName: name, input }) => ({ id, name, arguments: input }));
  return { text, calls, end: finishReason };
};

const loop = (way, openai) => async (model) => {
  const sent = [];
  const tools = { get_weather: { ...get_weather, execute: weather } };
  const { text, steps } = await ask(way, model, { tools, stopWhen: stepCountIs(3), providerOptions: { openai } }, sent);
  return { text, steps: steps.length, sent };
};

const unstored = { store: false, include: ["reasoning.encrypted_content"] };
const ways = { streamed: readTurn(streamed), whole: readTurn(generateText) };
const loops = {
  "stored-streamed": loop(streamed, {}),
  "stored-whole": loop(generateText, {}),
  "unstored-streamed": loop(streamed, unstored),
  "unstored-whole": loop(generateText, unstored),
};
console.log(JSON.stringify(await see("ai-sdk", ways, loops)));
