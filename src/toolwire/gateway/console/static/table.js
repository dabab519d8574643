// A table that scrolls within its container, and is sorted by the column whose heading is pressed. On a phone it is a list
// of cards, unless it is small.

import { h } from "./dom.js";

const orders = new Map(); // the column and the direction that each table was last sorted by, by its label

// A column is its name and its kind: numbers, times and codes stay on one line, a title heads the card. One that is
// empty in all rows is left out.
export function table(label, all, everything, { small = false } = {}) {
  const used = all.map((_, index) => everything.some((row) => [row[index]].flat(Infinity).some((value) => value != null && value !== "")));
  const [columns, ...rows] = [all, ...everything].map((row) => row.filter((_, index) => used[index]));
  const cell = (value, index) => h("td", { role: "cell", class: columns[index][1], "data-name": columns[index][0] }, value);
  const lines = rows.map((row) => h("tr", { role: "row" }, row.map(cell)));
  const body = h("tbody", { role: "rowgroup" });
  const heads = columns.map(([name, kind]) => h("th", { role: "columnheader", scope: "col", class: kind }, rows.length > 1 && name ? h("button", { type: "button", class: "sort", "data-part": `sort ${name}`, onclick: () => press(name) }, name) : name));

  // The first press sorts numbers from the largest and texts from A, the second the other way, the third as it was.
  function press(name) {
    const isNumber = columns.find(([each]) => each === name)[1].startsWith("number");
    const { name: before, sign, presses } = orders.get(label) ?? {};
    if (before !== name) orders.set(label, { name, sign: isNumber ? -1 : 1, presses: 1 });
    else if (presses === 1) orders.set(label, { name, sign: -sign, presses: 2 });
    else orders.delete(label);
    sort();
  }

  function sort() {
    const { name, sign } = orders.get(label) ?? {};
    const index = columns.findIndex(([each]) => each === name);
    heads.forEach((head, at) => head.setAttribute("aria-sort", at !== index ? "none" : sign > 0 ? "ascending" : "descending"));
    const keyed = index < 0 ? lines : lines.map((line) => [valueOf(line.children[index]), line]).sort(([one], [other]) => sign * compare(one, other)).map(([, line]) => line);
    body.replaceChildren(...keyed);
  }

  sort();
  return h("div", { class: `wide${small ? "" : " becomes-cards"}`, tabindex: "0", role: "region", "aria-label": label }, h("table", { role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body));
}

// The number of a cell, or else its text.
function valueOf(cell) {
  const text = cell.textContent.trim();
  const number = Number.parseFloat(text.replaceAll(",", ""));
  return cell.classList.contains("number") ? (Number.isNaN(number) ? -Infinity : number) : text;
}

// Numbers by size, texts by the alphabet.
export function compare(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}
