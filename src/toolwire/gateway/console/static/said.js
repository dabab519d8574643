// A turn as a conversation: what was asked, what was answered, and each call with its result.

import { get } from "./api.js";
import { clear, count, duration, h, plural, pre, pretty } from "./dom.js";
import { marked } from "./diff.js";
import { rendered } from "./markdown.js";

const NAMES = { user: "User", assistant: "Model", system: "System", developer: "Developer", reasoning: "Reasoning" };
const OLD = 2; // earlier steps that are not folded

// The id of the element of a call.
export function callId(index) {
  return `call-${index}`;
}

// `answered` has the turn that brought the result of each call; `links` lead to the time line and the frames.
export function conversation(row, whole, answered, who, links) {
  const { entries, before } = whole.said;
  const earlier = entries.filter((each) => !each.is_new && each.by !== "user");
  const asked = entries.filter((each) => !each.is_new && each.by === "user");
  const { text, reasoning, withheld } = whole.answer;
  return h("section", { class: "conversation" }, h("h2", {}, "Conversation"),
    before ? h("p", { class: "soft" }, `After ${plural(before, "earlier entry", "earlier entries")} of the history, which `, h("a", { href: `#/conversation/${row.id}` }, "the conversation"), " shows.") : null,
    asked.map(speech),
    earlier.length > OLD ? fold("steps", `${plural(earlier.length, "earlier step")} of this task`, earlier.map(speech)) : earlier.map(speech),
    entries.filter((each) => each.is_new).map(speech),
    h("div", { class: "speaker model" }, h("h3", {}, "Model"),
      withheld ? h("p", { class: "note" }, "Not kept: a secret was spread over its frames.") : null,
      reasoning ? fold("Reasoning", `Reasoning, ${plural(reasoning.length, "character")}`, rendered(reasoning)) : null,
      text ? rendered(text) : null,
      whole.calls.map((call, index) => called(row, whole, call, index, answered, who, links)),
      text || reasoning || withheld || whole.calls.length ? null : h("p", { class: "soft" }, row.kept === "running" ? "Nothing yet." : "No text.")));
}

function speech(entry) {
  const { by, text, size, name, failed, added, id } = entry;
  const rest = text.length < size ? h("p", { class: "soft" }, `The first ${count(text.length)} of ${plural(size, "character")}.`) : null;
  if (by === "call" || by === "result" || by === "other") {
    const head = by === "call" ? "called" : by === "result" ? (failed ? "failed" : "returned") : "";
    return h("div", { class: `step ${failed ? "bad" : ""}` }, h("p", {}, h("code", {}, name || "(no name)"), ` ${head} `, id ? h("small", { class: "soft" }, id) : null), text ? pre(by === "call" ? pretty(text) : text, `${by} ${name}`) : h("p", { class: "soft" }, "No text."), rest);
  }
  return h("div", { class: `speaker ${by}` }, h("h3", {}, NAMES[by]), rendered(text || "(no text)"), rest, added ? fold(`added ${text.slice(0, 20)}`, "With what the client added", pre(added, "The whole message")) : null);
}

// A call with its result, and what was wrong with its arguments.
function called(row, whole, call, index, answered, who, links) {
  const own = call.client ?? call.model;
  const problems = whole.notes.filter((note) => note.code.startsWith("arguments_") && [own.id, call.model?.id].includes(note.subject.split(" ")[0]));
  const repair = whole.repairs[own.id];
  const place = h("div", { class: "result" });
  const result = answered.get(own.id);
  if (result) show(place, own, result, row);
  return h("div", { class: `step call ${problems.some((note) => note.code !== "arguments_repaired") ? "bad" : ""}`, id: callId(index), tabindex: "-1" },
    h("p", {}, h("code", {}, own.name || "(no name)"), " ", h("small", { class: "soft" }, own.id), " ",
      h("button", { type: "button", class: "quiet", onclick: () => links.tickOf(index) }, "time line"), h("button", { type: "button", class: "quiet", onclick: () => links.frameOf(index) }, "frames"),
      call.ran ? h("span", { class: "chip" }, "run by the gateway") : call.client || row.kept === "running" ? null : h("span", { class: "chip bad" }, "withheld")),
    pre(own.arguments ? pretty(own.arguments) : "(no arguments)", `Arguments of ${own.name}`),
    problems.map((note) => h("p", { class: note.code === "arguments_repaired" ? "" : "bad" }, h("a", { class: "chip noted", href: `#/notes/${note.code}` }, note.code), " ", note.subject.split(" ").slice(1).join(" ") || note.says || who.notes[note.code] || "")),
    repair ? fold(`repair ${own.id}`, "What repair would make of it", repair.text ? [h("p", { class: "soft" }, repair.fixes.join(", ")), marked(own.arguments, repair.text)] : h("p", {}, "Nothing: its meaning is not certain.")) : null,
    result ? place : h("p", { class: "soft" }, call.ran ? "" : "No result yet."));
}

// The result of a call, which a later turn has brought.
async function show(place, own, result, row) {
  const head = h("p", { class: result.failed ? "bad" : "soft" }, result.failed ? "Failed" : "Result", " after ", duration((result.at - row.at) * 1000), ", in ", h("a", { href: `#/turn/${result.turn}` }, "a later turn"));
  clear(place, head);
  const found = await load(result.turn).then((all) => all[own.id], () => undefined);
  if (found) place.append(pre(found.text || "(no text)", `Result of ${own.name}`), found.text.length < found.size ? h("p", { class: "soft" }, `The first ${count(found.text.length)} of ${plural(found.size, "character")}.`) : "");
}

const loaded = new Map(); // the results that turns have brought; the last few turns

function load(turn) {
  if (!loaded.has(turn)) {
    const asked = get(`turns/${encodeURIComponent(turn)}/results`);
    asked.catch(() => loaded.delete(turn));
    loaded.set(turn, asked);
    if (loaded.size > 10) loaded.delete(loaded.keys().next().value);
  }
  return loaded.get(turn);
}

function fold(name, summary, ...content) {
  return h("details", { "data-part": name }, h("summary", {}, summary), content);
}
