// Turns from a form: any model, any dialect, with tools; each answer as text, as calls and as bytes. After an answer the
// form takes a result for each of its calls, or the next prompt, and sends them with the history.

import { me, stream } from "./api.js";
import { answer } from "./answer.js";
import { clear, h, json, readable, say } from "./dom.js";

const MOST_SHOWN = 200000; // characters of the bytes

const WEATHER = [{ name: "get_weather", description: "The weather in a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];

// A declared function tool of any dialect as {name, description, parameters, strict}; undefined for any other type of tool.
//   chat:      {"type": "function", "function": {"name", "description", "parameters", "strict"}}
//   responses: {"type": "function", "name", "description", "parameters", "strict"}
//   messages:  {"name", "description", "input_schema", "strict"}, with "type": "custom" or without a type
//   gemini:    {"functionDeclarations": [{"name", "description", "parametersJsonSchema"}]}, which may hold several
export function readTool(tool) {
  const { type = "function", name, description, parameters, input_schema: schema, parametersJsonSchema: given, strict } = { type: tool?.type, ...(tool?.function ?? tool) };
  const isFunction = type === "function" || (type === "custom" && schema);
  return isFunction && name ? { name, description, parameters: parameters ?? schema ?? given, strict } : undefined;
}

// A tool as each dialect declares it. JSON leaves out what is undefined.
const WRITERS = {
  chat: (tool) => ({ type: "function", function: tool }),
  responses: (tool) => ({ type: "function", ...tool }),
  messages: ({ parameters, ...tool }) => ({ ...tool, input_schema: parameters ?? { type: "object" } }),
  gemini: ({ name, description, parameters }) => ({ functionDeclarations: [{ name, description, parametersJsonSchema: parameters }] }),
};
const IS_OWN = {
  chat: (tool) => Boolean(tool?.function), responses: (tool) => tool?.type === "function" && !tool.function, messages: (tool) => Boolean(tool?.input_schema),
  gemini: (tool) => Boolean(tool?.functionDeclarations),
};

// A tool that already has the form of the dialect, or is not a function, is passed on unchanged.
export function toolFor(dialect, tool) {
  const plain = IS_OWN[dialect](tool) ? undefined : readTool(tool);
  return plain ? WRITERS[dialect](plain) : tool;
}

// A step of the history in each dialect: {prompt}, the model's {text, calls}, or {results}.
const STEPS = {
  chat: ({ prompt, results, text, calls }) => results
    ? results.map(({ id, text: content }) => ({ role: "tool", tool_call_id: id, content }))
    : prompt !== undefined ? [{ role: "user", content: prompt }]
      : [{ role: "assistant", content: text || null, ...(calls.length ? { tool_calls: calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } })) } : {}) }],
  responses: ({ prompt, results, text, calls }) => results
    ? results.map(({ id, text: output }) => ({ type: "function_call_output", call_id: id, output }))
    : prompt !== undefined ? [{ role: "user", content: prompt }]
      : [...(text ? [{ role: "assistant", content: text }] : []), ...calls.map(({ id, name, arguments: given }) => ({ type: "function_call", call_id: id, name, arguments: given }))],
  messages: ({ prompt, results, text, calls }) => results
    ? [{ role: "user", content: results.map(({ id, text: content }) => ({ type: "tool_result", tool_use_id: id, content })) }]
    : prompt !== undefined ? [{ role: "user", content: prompt }]
      : [{ role: "assistant", content: [...(text ? [{ type: "text", text }] : []), ...calls.map(({ id, name, arguments: given }) => ({ type: "tool_use", id, name, input: json(given) ?? {} }))] }],
  gemini: ({ prompt, results, text, calls }) => results
    ? [{ role: "user", parts: results.map(({ id, name, text: output }) => ({ functionResponse: { id, name, response: { output } } })) }]
    : prompt !== undefined ? [{ role: "user", parts: [{ text: prompt }] }]
      : [{ role: "model", parts: [...(text ? [{ text }] : []), ...calls.map(({ id, name, arguments: given, signature }) => ({ functionCall: { id, name, args: json(given) ?? {} }, thoughtSignature: signature }))] }],
};

// The request in each dialect, from declared tools and the steps so far.
const BODIES = {
  chat: (model, steps, system, tools, streamed) => ({
    model, stream: streamed, messages: [...(system ? [{ role: "system", content: system }] : []), ...steps.flatMap(STEPS.chat)],
    ...(tools.length ? { tools: tools.map((tool) => toolFor("chat", tool)) } : {}),
  }),
  responses: (model, steps, system, tools, streamed) => ({
    model, stream: streamed, store: false, input: steps.flatMap(STEPS.responses), ...(system ? { instructions: system } : {}),
    ...(tools.length ? { tools: tools.map((tool) => toolFor("responses", tool)) } : {}),
  }),
  messages: (model, steps, system, tools, streamed) => ({
    model, stream: streamed, max_tokens: 4096, messages: steps.flatMap(STEPS.messages), ...(system ? { system } : {}),
    ...(tools.length ? { tools: tools.map((tool) => toolFor("messages", tool)) } : {}),
  }),
  gemini: (model, steps, system, tools, streamed) => ({
    model, stream: streamed, contents: steps.flatMap(STEPS.gemini), ...(system ? { systemInstruction: { parts: [{ text: system }] } } : {}),
    generationConfig: { thinkingConfig: { includeThoughts: true } },
    ...(tools.length ? { tools: tools.map((tool) => toolFor("gemini", tool)) } : {}),
  }),
};

export async function tryIt(main) {
  const who = await me();
  const field = (id, label, element) => [h("label", { for: id }, label), element];
  const model = h("input", { id: "try-model", list: "try-models", value: who.models[0] ?? "demo", required: true, autocomplete: "off" });
  const dialect = h("select", { id: "try-dialect" }, Object.keys(BODIES).map((name) => h("option", { value: name }, name)));
  const streamed = h("input", { id: "try-stream", type: "checkbox", checked: true });
  const system = h("textarea", { id: "try-system", rows: "2" });
  const prompt = h("textarea", { id: "try-prompt", required: true });
  prompt.value = "What is the weather in Paris?";
  const tools = h("textarea", { id: "try-tools", spellcheck: "false" });
  tools.value = JSON.stringify(WEATHER, null, 1);
  const name = h("input", { id: "tool-name", placeholder: "read_file" });
  const description = h("input", { id: "tool-description", placeholder: "Reads a file" });
  const parameters = h("input", { id: "tool-parameters", placeholder: "path, lines?:integer" });
  const add = h("button", { type: "button", onclick: () => {
    const before = json(tools.value.trim() || "[]");
    if (!name.value.trim()) return say("The tool needs a name.");
    if (!Array.isArray(before)) return say("The tools are not a JSON list.");
    tools.value = JSON.stringify([...before, toolOf(name.value.trim(), description.value.trim(), parameters.value)], null, 1);
    name.value = description.value = parameters.value = "";
  } }, "Add tool");
  const out = h("div", { class: "tried" });
  const stop = h("button", { type: "button", hidden: true, onclick: () => aborter.abort() }, "Stop");
  const form = h("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); run([{ prompt: prompt.value }]); } },
    h("div", { class: "columns three" }, h("div", {}, field("try-model", "Model", model)), h("div", {}, field("try-dialect", "Dialect", dialect)), h("div", { class: "check" }, streamed, " ", h("label", { for: "try-stream" }, "streamed"))),
    h("datalist", { id: "try-models" }, [...who.models, ...who.backends.map((each) => `${each.name}/`)].map((each) => h("option", { value: each }))),
    field("try-prompt", "Prompt", prompt), h("details", {}, h("summary", {}, "System text"), field("try-system", "System text", system)),
    field("try-tools", "Tools, as JSON of any dialect", tools),
    h("div", { class: "adding" }, h("div", {}, field("tool-name", "Tool", name)), h("div", {}, field("tool-description", "Description", description)),
      h("div", {}, field("tool-parameters", "Parameters, ? if optional", parameters)), add),
    h("div", { class: "tools" }, h("button", { class: "main" }, "Ask"), stop));
  clear(main, h("h1", {}, "Try it"), h("section", {}, form), out);
  let aborter = new AbortController();

  // Asks with these steps, and goes on from the answer; returns whether there was one.
  async function run(steps) {
    aborter.abort();
    aborter = new AbortController();
    const declared = json(tools.value.trim() || "[]");
    if (!Array.isArray(declared)) return say("The tools are not a JSON list.");
    say("");
    if (steps.length === 1) clear(out);
    const listed = declared.flatMap((tool) => tool?.functionDeclarations ?? [tool]);
    const body = BODIES[dialect.value](model.value.trim(), steps, system.value.trim(), listed, streamed.checked);
    const answered = await asked(out, stop, () => stream(`try?dialect=${dialect.value}`, JSON.stringify(body), aborter.signal));
    if (answered && out.isConnected) out.append(following(answered, steps.length, (step) => run([...steps, answered, step])));
    return Boolean(answered);
  }
  return () => aborter.abort();
}

// A form for the next step after an answer: a result for each of its calls, or a prompt. It stays as it was sent, unless
// there was no answer.
function following({ calls }, number, next) {
  const fields = (calls.length ? calls : [undefined]).map((call, index) => {
    const id = `next-${number}-${index}`;
    const text = h("textarea", { id, rows: "2", required: !call });
    return { call, text, shown: [h("label", { for: id }, call ? `Result of ${call.name} ${call.arguments}`.slice(0, 200) : "Next prompt"), text] };
  });
  const form = h("form", { class: "fields", onsubmit: async (event) => {
    event.preventDefault();
    const enable = (is) => { for (const element of form.elements) element.disabled = !is; };
    enable(false);
    enable(!await next(calls.length ? { results: fields.map(({ call, text }) => ({ id: call.id, name: call.name, text: text.value })) } : { prompt: fields[0].text.value }));
  } }, fields.map(({ shown }) => shown), h("div", { class: "tools" }, h("button", {}, calls.length ? "Send results" : "Send")));
  return h("section", {}, form);
}

// Shows an answer as it arrives; returns its text and calls, or undefined if it failed.
async function asked(out, stop, ask) {
  const status = h("p", { role: "status" }, "Asking…");
  const text = h("pre", { tabindex: "0", "aria-label": "Text" });
  const bytes = h("pre", { tabindex: "0", "aria-label": "Bytes" });
  const calls = h("div", { class: "calls" });
  const reasoning = h("pre", { tabindex: "0", "aria-label": "Reasoning" });
  const thought = h("div", { hidden: true }, h("h2", {}, "Reasoning"), reasoning);
  out.append(h("section", {}, status, h("div", { class: "columns two" }, h("div", {}, thought, h("h2", {}, "Text"), text, h("h2", {}, "Calls"), calls), h("div", {}, h("h2", {}, "Bytes"), bytes))));
  const add = grower(bytes);
  let failure = "";
  const show = shower(calls);
  const got = { text: "", calls: new Map() };
  const read = answer((piece) => {
    got.text += piece;
    text.append(readable(piece));
  }, (index, call, more) => {
    got.calls.set(index, { ...call, arguments: (got.calls.get(index)?.arguments ?? "") + more });
    show(index, call, more);
  }, (piece) => {
    thought.hidden = false;
    reasoning.append(readable(piece));
  }, (message) => { failure = message; });
  stop.hidden = false;
  let response;
  let ended = "";
  try {
    response = await ask();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      add(piece.value);
      read.feed(piece.value);
    }
    read.end();
  } catch (error) {
    ended = error.name === "AbortError" ? "Stopped." : error.message;
  }
  if (status.isConnected) stop.hidden = true;
  const id = response?.headers.get("x-toolwire-turn");
  if (response?.status === 401 && !id) return location.reload(); // signed out: a backend's own 401 belongs to a turn
  clear(status, response ? [h("span", { class: `chip ${response.ok && !failure ? "good" : "bad"}` }, `status ${response.status}`), " "] : null,
    failure ? [h("span", { class: "bad" }, failure), " "] : null, ended ? `${ended} ` : null, id ? h("a", { href: `#/turn/${id}` }, "Open the turn") : null);
  if (!calls.firstChild) clear(calls, h("p", { class: "soft" }, "None."));
  return response?.ok && !failure && !ended ? { text: got.text, calls: [...got.calls.values()] } : undefined;
}

// Appends to a text; of a long one only the end is kept.
function grower(element) {
  let length = 0;
  return (piece) => {
    element.append(readable(piece));
    length += element.lastChild.length;
    while (length > MOST_SHOWN && element.firstChild !== element.lastChild) {
      length -= element.firstChild.length;
      element.firstChild.remove();
    }
  };
}

// Draws each call once, and then only what is added to it.
function shower(place) {
  const drawn = new Map();
  return (index, call, more) => {
    if (!drawn.has(index)) {
      const found = { name: h("span"), id: h("code"), args: h("pre", { tabindex: "0", "aria-label": "Arguments" }) };
      drawn.set(index, found);
      place.append(h("div", { class: "call good" }, h("h3", {}, found.name, found.id), found.args));
    }
    const { name, id, args } = drawn.get(index);
    name.textContent = readable(call.name);
    id.textContent = readable(call.id);
    args.append(readable(more));
  };
}

// A tool from the form: parameters are NAME, NAME:TYPE, or with ? after the name if they may be left out.
export function toolOf(name, description, parameters) {
  const properties = {};
  const required = [];
  for (const part of parameters.split(",").map((each) => each.trim()).filter(Boolean)) {
    const [written, type = "string"] = part.split(":").map((each) => each.trim());
    const field = written.replace(/\?$/, "");
    properties[field] = { type };
    if (field === written) required.push(field);
  }
  return { name, ...(description ? { description } : {}), parameters: { type: "object", properties, required } };
}
