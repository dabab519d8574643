// What every note means.

import { me } from "./api.js";
import { clear, h } from "./dom.js";

export async function notes(main, chosen) {
  const who = await me();
  const rows = Object.entries(who.notes).sort(([one], [other]) => one.localeCompare(other));
  clear(main, h("h1", {}, "Notes"),
    h("p", {}, "A note is one recorded deviation: something was dropped, repaired, renamed, cut or made up on the way. docs/notes.md says what to do about each."),
    h("section", { class: "wide" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Code"), h("th", { scope: "col" }, "What happened"))),
      h("tbody", {}, rows.map(([code, says]) => h("tr", { id: `note-${code}` }, h("td", {}, h("code", {}, code)), h("td", {}, code === chosen ? h("strong", {}, says) : says)))))));
  document.getElementById(`note-${chosen}`)?.scrollIntoView({ block: "center" });
}
