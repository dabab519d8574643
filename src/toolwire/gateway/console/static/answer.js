// Reads the text, the reasoning, the calls and the error of an answer in any dialect, as its bytes arrive. Every byte is
// read once.

import { json } from "./dom.js";

// `onText` and `onReasoning` are called with each further piece, `onCall` with a call whenever more of it is known,
// `onError` with the message of an error.
export function answer(onText, onCall, onReasoning = () => {}, onError = () => {}) {
  const calls = new Map();
  const rest = []; // lines that are not events
  let pieces = []; // of a line that has not ended

  function feed(text) {
    const lines = text.split("\n");
    while (lines.length > 1) {
      line(pieces.join("") + lines.shift());
      pieces = [];
    }
    pieces.push(lines[0]);
  }

  function line(text) {
    const value = text.startsWith("data:") ? json(text.slice(5)) : undefined;
    const error = errorIn(value);
    if (error) onError(error);
    if (value === undefined) rest.push(text);
    else if (value?.choices) value.choices.forEach(chat);
    else if (value?.candidates) value.candidates.forEach(gemini);
    else event(value);
  }

  function chat({ delta }) {
    const reasoning = delta?.reasoning_content ?? delta?.reasoning;
    if (reasoning) onReasoning(reasoning);
    if (delta?.content) onText(delta.content);
    for (const each of delta?.tool_calls ?? []) grow(each.index, each.id, each.function?.name, each.function?.arguments);
  }

  // A call is whole in its part, and its signature must come back with it.
  function gemini({ content }) {
    for (const { text, thought, functionCall: call, thoughtSignature } of content?.parts ?? []) {
      if (text) (thought ? onReasoning : onText)(text);
      if (call) grow(calls.size, call.id, call.name, JSON.stringify(call.args ?? {}), thoughtSignature);
    }
  }

  function event(value) {
    const kind = value?.type;
    if (kind === "response.output_text.delta") onText(value.delta);
    else if (/^response\.reasoning_(summary_)?text\.delta$/.test(kind)) onReasoning(value.delta);
    else if (kind === "response.output_item.added" && value.item?.name) grow(value.output_index, value.item.call_id, value.item.name, value.item.arguments ?? value.item.input);
    else if (/^response\.(function_call_arguments|custom_tool_call_input)\.delta$/.test(kind)) grow(value.output_index, "", "", value.delta);
    else if (kind === "content_block_start" && value.content_block?.type === "tool_use") grow(value.index, value.content_block.id, value.content_block.name, "");
    else if (kind === "content_block_delta" && value.delta?.text) onText(value.delta.text);
    else if (kind === "content_block_delta" && value.delta?.thinking) onReasoning(value.delta.thinking);
    else if (kind === "content_block_delta" && value.delta?.partial_json) grow(value.index, "", "", value.delta.partial_json);
  }

  function grow(index, id, name, more, signature) {
    if (!calls.has(index)) calls.set(index, { id: "", name: "" });
    const call = calls.get(index);
    call.id ||= id ?? "";
    call.name ||= name ?? "";
    call.signature = signature;
    onCall(index, call, more ?? "");
  }

  // An answer that is not streamed is one object.
  function end() {
    feed("\n");
    const value = json(rest.join("\n"));
    const error = errorIn(value);
    if (error) onError(error);
    for (const { message } of value?.choices ?? []) chat({ delta: { ...message, tool_calls: message?.tool_calls?.map((call, index) => ({ index, ...call })) } });
    (value?.candidates ?? []).forEach(gemini);
    for (const [index, part] of [...(Array.isArray(value?.content) ? value.content : []), ...(Array.isArray(value?.output) ? value.output : [])].entries()) whole(part, index);
  }

  function whole(part, index) {
    if (part.type === "text") onText(part.text);
    if (part.type === "thinking") onReasoning(part.thinking);
    if (part.type === "reasoning") for (const each of [...(part.summary ?? []), ...(part.content ?? [])]) onReasoning(each.text ?? "");
    if (part.type === "message") for (const each of part.content ?? []) onText(each.text ?? "");
    if (part.name) grow(index, part.call_id ?? part.id, part.name, part.arguments ?? (typeof part.input === "string" ? part.input : JSON.stringify(part.input)));
  }

  return { feed, end };
}

// The message of an error, of a whole answer or of an event; undefined if the value is none.
// {"error": {"message": …}}, {"type": "error", "message": …}, {"type": "response.failed", "response": {"error": {"message": …}}}
function errorIn(value) {
  const error = value?.error ?? value?.response?.error;
  if (error) return error.message ?? JSON.stringify(error);
  return value?.type === "error" ? value.message ?? "The backend sent an error." : undefined;
}
