// A table that scrolls within its container. On a phone it is a list of cards, unless it is small.

import { h } from "./dom.js";

// A column is its name and its kind: numbers, times and codes stay on one line, a title heads the card. One that is
// empty in all rows is left out.
export function table(label, all, everything, { small = false } = {}) {
  const used = all.map((_, index) => everything.some((row) => [row[index]].flat(Infinity).some((value) => value != null && value !== "")));
  const [columns, ...rows] = [all, ...everything].map((row) => row.filter((_, index) => used[index]));
  const cell = (value, index) => h("td", { role: "cell", class: columns[index][1], "data-name": columns[index][0] }, value);
  return h("div", { class: `wide${small ? "" : " becomes-cards"}`, tabindex: "0", role: "region", "aria-label": label }, h("table", { role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([name, kind]) => h("th", { role: "columnheader", scope: "col", class: kind }, name)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map(cell))))));
}
