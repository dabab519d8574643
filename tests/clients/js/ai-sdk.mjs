// Vercel AI SDK through its provider for OpenAI-compatible servers; it runs the tool of the round trip itself.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { QUESTION, report, weather } from "./report.mjs";

const get_weather = tool({ inputSchema: z.object({ city: z.string() }) });
const get_time = tool({ inputSchema: z.object({}) });

const ask = (baseURL, model, options) =>
  streamText({
    model: createOpenAICompatible({ name: "toolwire", baseURL, apiKey: "test" })(model),
    prompt: QUESTION,
    maxRetries: 0,
    onError: () => {}, // it would print what the stream tells us anyway
    ...options,
  });

async function readTurn(baseURL, model) {
  const seen = { text: "", calls: [], finish: null };
  for await (const part of ask(baseURL, model, { tools: { get_weather, get_time } }).fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") seen.text += part.text;
    if (part.type === "tool-call") seen.calls.push({ id: part.toolCallId, name: part.toolName, arguments: part.input });
    if (part.type === "finish") seen.finish = part.rawFinishReason;
  }
  return seen;
}

async function roundTrip(baseURL, model) {
  const tools = { get_weather: { ...get_weather, execute: weather } };
  return { text: await ask(baseURL, model, { tools, stopWhen: stepCountIs(3) }).text };
}

await report(readTurn, roundTrip);
