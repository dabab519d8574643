// What every note means.

import { me } from "./api.js";
import { clear, h } from "./dom.js";
import { table } from "./table.js";

export async function notes(main, chosen) {
  const who = await me();
  const rows = Object.entries(who.notes).sort(([one], [other]) => one.localeCompare(other));
  clear(main, h("h1", {}, chosen ? `Note ${chosen}` : "Notes"),
    h("p", { class: "soft" }, "A note is one recorded deviation: something was dropped, repaired, renamed, cut or made up on the way. docs/notes.md says what to do about each."),
    chosen ? one(chosen, who.notes[chosen]) : null,
    h("section", {}, chosen ? h("h2", {}, "All notes") : null,
      table("All notes", [["Code", "title code"], ["What happened", "text plain"]], rows.map(([code, says]) => [h("a", { href: `#/notes/${code}` }, code), says]))));
}

function one(code, says) {
  return h("section", { class: "chosen" }, h("h2", {}, h("span", { class: "chip noted" }, code)),
    h("p", { class: "says" }, says ?? "This gateway does not know such a note."), h("p", {}, h("a", { href: "#/turns", onclick: () => sessionStorage.setItem("filter", `note:${code}`) }, "Turns with this note")));
}
