// A turn from a form: any model, any dialect, with tools; the answer as text, as calls and as bytes.

import { get, me, stream } from "./api.js";
import { clear, h, json, plural, pre, readable, say } from "./dom.js";

const WEATHER = [{ name: "get_weather", description: "The weather in a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];

// The request in each dialect, from plain tools and a prompt.
export const BODIES = {
  chat: (model, prompt, system, tools, streamed) => ({
    model, stream: streamed, messages: [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }],
    ...(tools.length ? { tools: tools.map((tool) => (tool.function ? tool : { type: "function", function: tool })) } : {}),
  }),
  responses: (model, prompt, system, tools, streamed) => ({
    model, stream: streamed, store: false, input: prompt, ...(system ? { instructions: system } : {}),
    ...(tools.length ? { tools: tools.map((tool) => ({ type: "function", ...(tool.function ?? tool) })) } : {}),
  }),
  messages: (model, prompt, system, tools, streamed) => ({
    model, stream: streamed, max_tokens: 4096, messages: [{ role: "user", content: prompt }], ...(system ? { system } : {}),
    ...(tools.length ? { tools: tools.map(({ function: inner, ...tool }) => { const own = inner ?? tool; return { name: own.name, description: own.description, input_schema: own.parameters ?? own.input_schema ?? { type: "object" } }; }) } : {}),
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
  const parameters = h("input", { id: "tool-parameters", placeholder: "path, lines:integer" });
  const add = h("button", { type: "button", onclick: () => {
    if (!name.value.trim()) return;
    tools.value = JSON.stringify([...(json(tools.value || "[]") ?? []), toolOf(name.value.trim(), parameters.value)], null, 1);
    name.value = parameters.value = "";
  } }, "Add tool");
  const out = h("div", { class: "tried" });
  const form = h("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); run(); } },
    h("div", { class: "columns three" }, h("div", {}, field("try-model", "Model ", model)), h("div", {}, field("try-dialect", "Dialect ", dialect)), h("div", {}, streamed, " ", h("label", { for: "try-stream" }, "streamed"))),
    h("datalist", { id: "try-models" }, [...who.models, ...who.backends.map((each) => `${each.name}/`)].map((each) => h("option", { value: each }))),
    field("try-prompt", "Prompt", prompt), h("details", {}, h("summary", {}, "System text"), field("try-system", "System text", system)),
    field("try-tools", "Tools, as JSON of any dialect", tools),
    h("div", { class: "inline" }, h("label", { for: "tool-name" }, "Tool"), name, h("label", { for: "tool-parameters" }, "parameters"), parameters, add),
    h("div", { class: "tools" }, h("button", {}, "Ask")));
  clear(main, h("h1", {}, "Try it"), h("section", {}, form), out);
  let aborter = new AbortController();

  async function run() {
    aborter.abort();
    aborter = new AbortController();
    const declared = json(tools.value.trim() || "[]");
    if (!Array.isArray(declared)) return say("The tools are not a JSON list.");
    const body = BODIES[dialect.value](model.value.trim(), prompt.value, system.value.trim(), declared, streamed.checked);
    const text = h("pre", { tabindex: "0", "aria-label": "Text" });
    const bytes = h("pre", { tabindex: "0", "aria-label": "Bytes" });
    const status = h("p", { role: "status" }, "Asking…");
    const calls = h("div", {}, h("p", { class: "soft" }, "–"));
    clear(out, h("section", {}, status, h("div", { class: "columns two" }, h("div", {}, h("h2", {}, "Text"), text, h("h2", {}, "Calls"), calls), h("div", {}, h("h2", {}, "Bytes"), bytes))));
    try {
      const response = await stream(`try?dialect=${dialect.value}`, JSON.stringify(body), aborter.signal);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let all = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        all += value;
        bytes.textContent = readable(all.length > 200000 ? all.slice(-200000) : all);
        text.textContent = readable(textOf(all));
      }
      const id = response.headers.get("x-toolwire-turn");
      clear(status, h("span", { class: `chip ${response.ok ? "good" : "bad"}` }, `status ${response.status}`), " ", id ? h("a", { href: `#/turn/${id}` }, "Look at the turn") : "");
      if (id) show(calls, text, (await settled(id)).whole);
    } catch (error) {
      if (error.name !== "AbortError") clear(status, h("span", { class: "bad" }, error.message));
    }
  }
  return () => aborter.abort();
}

// A turn is over a little after its last bytes.
async function settled(id) {
  for (let left = 50; ; left -= 1) {
    try {
      return await get(`turns/${id}`);
    } catch (error) {
      if (!left) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

function show(calls, text, whole) {
  if (!whole) return;
  text.textContent = readable(whole.answer.text);
  clear(calls, whole.answer.calls.length ? whole.answer.calls.map((call) => h("div", { class: "call good" }, h("h3", {}, readable(call.name), " ", h("code", {}, readable(call.id))), pre(call.arguments, `Arguments of ${call.name}`))) : h("p", { class: "soft" }, `${plural(0, "call")}.`));
}

function toolOf(name, parameters) {
  const properties = {};
  for (const part of parameters.split(",").map((each) => each.trim()).filter(Boolean)) {
    const [field, type] = part.split(":");
    properties[field.trim()] = { type: (type ?? "string").trim() };
  }
  return { name, parameters: { type: "object", properties, required: Object.keys(properties) } };
}

// The text of a stream that is not over, in any dialect.
export function textOf(bytes) {
  const parts = [];
  for (const line of bytes.split("\n")) {
    const value = line.startsWith("data:") ? json(line.slice(5)) : undefined;
    const delta = value?.choices?.[0]?.delta?.content ?? (value?.type === "response.output_text.delta" ? value.delta : value?.delta?.text);
    if (typeof delta === "string") parts.push(delta);
  }
  return parts.join("");
}
