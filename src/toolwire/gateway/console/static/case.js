// A turn as a test case: what its client must get, which the viewer may change, and what this version does otherwise.

import { get, stream } from "./api.js";
import { clear, download, h, json, say } from "./dom.js";

export async function showCase(place, id) {
  let made;
  try { made = await get(`turns/${id}/case`); } catch (error) { return clear(place, h("p", { class: "bad", role: "alert" }, error.message)); }
  const expected = h("textarea", { id: "expected", spellcheck: "false", rows: "12" });
  expected.value = JSON.stringify(made.expected, null, 2);
  const { differences } = made;
  clear(place, h("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); saveCase(id, expected.value); } },
    differences.length
      ? h("div", { class: "note" }, h("p", {}, "This version gives something else:"), h("ul", {}, differences.map((text) => h("li", {}, text))))
      : h("p", { class: "soft" }, "This version gives the same."),
    h("label", { for: "expected" }, "What the client must get; a field that is left out is not compared"), expected,
    h("div", { class: "tools" }, h("button", { class: "main" }, "Save test case"), h("button", { type: "button", onclick: () => clear(place) }, "Close"))));
  expected.focus();
}

async function saveCase(id, text) {
  const expected = json(text);
  if (!expected) return say("The expectation is not valid JSON.");
  try {
    const response = await stream(`turns/${id}/case`, JSON.stringify({ expected }));
    const content = await response.text();
    if (!response.ok) return say(json(content)?.error?.message ?? `The gateway answers with status ${response.status}.`);
    download(`${id}.jsonl`, "application/jsonl", content);
    say("Saved. Run it with toolwire replay --assert.");
  } catch (error) { say(error.message); }
}
