// Vercel AI SDK through its provider for Google, which leaves `models/` out of some paths and sends ids of its own.
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { QUESTION, report, weather } from "./report.mjs";

const get_weather = tool({ inputSchema: z.object({ city: z.string() }) });
const get_time = tool({ inputSchema: z.object({}) });

const ask = (baseURL, model, options) =>
  streamText({
    model: createGoogleGenerativeAI({ baseURL: baseURL.replace(/\/v1$/, "/v1beta"), apiKey: "test" })(model),
    prompt: QUESTION,
    maxRetries: 0,
    providerOptions: { google: { thinkingConfig: { includeThoughts: true } } },
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
