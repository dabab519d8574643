// A turn from a form: any model, any dialect, with tools; the answer as text, as calls and as bytes.

import { me, stream } from "./api.js";
import { answer } from "./answer.js";
import { clear, h, json, readable, say } from "./dom.js";

const MOST_SHOWN = 200000; // characters of the bytes

const WEATHER = [{ name: "get_weather", description: "The weather in a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];

// A declared function tool of any dialect as {name, description, parameters, strict}; undefined for any other type of tool.
//   chat:      {"type": "function", "function": {"name", "description", "parameters", "strict"}}
//   responses: {"type": "function", "name", "description", "parameters", "strict"}
//   messages:  {"name", "description", "input_schema", "strict"}, with "type": "custom" or without a type
export function readTool(tool) {
  const { type = "function", name, description, parameters, input_schema: schema, strict } = { type: tool?.type, ...(tool?.function ?? tool) };
  const isFunction = type === "function" || (type === "custom" && schema);
  return isFunction && name ? { name, description, parameters: parameters ?? schema, strict } : undefined;
}

// A tool as each dialect declares it. JSON leaves out what is undefined.
const WRITERS = {
  chat: (tool) => ({ type: "function", function: tool }),
  responses: (tool) => ({ type: "function", ...tool }),
  messages: ({ parameters, ...tool }) => ({ ...tool, input_schema: parameters ?? { type: "object" } }),
};
const IS_OWN = {
  chat: (tool) => Boolean(tool?.function), responses: (tool) => tool?.type === "function" && !tool.function, messages: (tool) => Boolean(tool?.input_schema),
};

// A tool that already has the form of the dialect, or is not a function, is passed on unchanged.
export function toolFor(dialect, tool) {
  const plain = IS_OWN[dialect](tool) ? undefined : readTool(tool);
  return plain ? WRITERS[dialect](plain) : tool;
}

// The request in each dialect, from declared tools and a prompt.
export const BODIES = {
  chat: (model, prompt, system, tools, streamed) => ({
    model, stream: streamed, messages: [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }],
    ...(tools.length ? { tools: tools.map((tool) => toolFor("chat", tool)) } : {}),
  }),
  responses: (model, prompt, system, tools, streamed) => ({
    model, stream: streamed, store: false, input: prompt, ...(system ? { instructions: system } : {}),
    ...(tools.length ? { tools: tools.map((tool) => toolFor("responses", tool)) } : {}),
  }),
  messages: (model, prompt, system, tools, streamed) => ({
    model, stream: streamed, max_tokens: 4096, messages: [{ role: "user", content: prompt }], ...(system ? { system } : {}),
    ...(tools.length ? { tools: tools.map((tool) => toolFor("messages", tool)) } : {}),
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
  const form = h("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); run(); } },
    h("div", { class: "columns three" }, h("div", {}, field("try-model", "Model", model)), h("div", {}, field("try-dialect", "Dialect", dialect)), h("div", { class: "check" }, streamed, " ", h("label", { for: "try-stream" }, "streamed"))),
    h("datalist", { id: "try-models" }, [...who.models, ...who.backends.map((each) => `${each.name}/`)].map((each) => h("option", { value: each }))),
    field("try-prompt", "Prompt", prompt), h("details", {}, h("summary", {}, "System text"), field("try-system", "System text", system)),
    field("try-tools", "Tools, as JSON of any dialect", tools),
    h("div", { class: "adding" }, h("div", {}, field("tool-name", "Tool", name)), h("div", {}, field("tool-description", "Description", description)),
      h("div", {}, field("tool-parameters", "Parameters, ? if optional", parameters)), add),
    h("div", { class: "tools" }, h("button", { class: "main" }, "Ask"), stop));
  clear(main, h("h1", {}, "Try it"), h("section", {}, form), out);
  let aborter = new AbortController();

  async function run() {
    aborter.abort();
    aborter = new AbortController();
    const declared = json(tools.value.trim() || "[]");
    if (!Array.isArray(declared)) return say("The tools are not a JSON list.");
    say("");
    const body = BODIES[dialect.value](model.value.trim(), prompt.value, system.value.trim(), declared, streamed.checked);
    await asked(out, stop, () => stream(`try?dialect=${dialect.value}`, JSON.stringify(body), aborter.signal));
  }
  return () => aborter.abort();
}

// Shows an answer as it arrives.
async function asked(out, stop, ask) {
  const status = h("p", { role: "status" }, "Asking…");
  const text = h("pre", { tabindex: "0", "aria-label": "Text" });
  const bytes = h("pre", { tabindex: "0", "aria-label": "Bytes" });
  const calls = h("div", { class: "calls" });
  const reasoning = h("pre", { tabindex: "0", "aria-label": "Reasoning" });
  const thought = h("div", { hidden: true }, h("h2", {}, "Reasoning"), reasoning);
  clear(out, h("section", {}, status, h("div", { class: "columns two" }, h("div", {}, thought, h("h2", {}, "Text"), text, h("h2", {}, "Calls"), calls), h("div", {}, h("h2", {}, "Bytes"), bytes))));
  const add = grower(bytes);
  let failure = "";
  const read = answer((piece) => text.append(readable(piece)), shower(calls), (piece) => {
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
