// What each note means, and what to do about it.

import { get, me } from "./api.js";
import { clear, h } from "./dom.js";
import { table } from "./table.js";
import { turnsAddress } from "./turns.js";

export async function notes(main, chosen) {
  const [{ notes: meanings }, advice] = await Promise.all([me(), get("advice")]);
  const rows = Object.entries(meanings).sort(([one], [other]) => one.localeCompare(other));
  clear(main, h("h1", {}, chosen ? `Note ${chosen}` : "Notes"),
    h("p", { class: "soft" }, "A note is one recorded deviation: something was dropped, repaired, renamed, cut or synthesised on the way."),
    chosen ? one(chosen, meanings[chosen], advice[chosen]) : null,
    h("section", {}, chosen ? h("h2", {}, "All notes") : null,
      table("All notes", [["Code", "title code"], ["What happened", "text plain"], ["What to do", "text"]],
        rows.map(([code, says]) => [h("a", { href: `#/notes/${code}` }, code), says, marked(advice[code] ?? "Nothing.")]))));
}

function one(code, says, advice) {
  return h("section", { class: "chosen" }, h("h2", {}, h("span", { class: "chip noted" }, code)),
    h("p", { class: "says" }, says ?? "This gateway has no such note."),
    says ? h("p", {}, h("b", {}, "What to do: "), marked(advice ?? "Nothing.")) : null,
    h("p", {}, h("a", { href: turnsAddress(`note:${code}`) }, "Turns with this note")));
}

// Text in which `words` are code.
function marked(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}
