// What differs between two texts: by line for bodies, by beginning and end for short ones.

import { h, more, plural } from "./dom.js";

const MOST = 3000;
const LINES = 4000;

// A short text before and after, with what is new or gone marked.
export function marked(was, is) {
  let start = 0;
  while (start < was.length && start < is.length && was[start] === is[start]) start += 1;
  let end = 0;
  while (end < was.length - start && end < is.length - start && was[was.length - 1 - end] === is[is.length - 1 - end]) end += 1;
  const around = (text, tag) => h("pre", { tabindex: "0", "aria-label": tag === "del" ? "Before" : "After" }, cut(text.slice(0, start), true), h(tag, {}, text.slice(start, text.length - end)), cut(text.slice(text.length - end), false));
  return h("div", { class: "marked" }, around(was, "del"), around(is, "ins"));
}

function cut(text, fromEnd) {
  if (text.length <= 200) return text;
  return fromEnd ? `…${text.slice(-200)}` : `${text.slice(0, 200)}…`;
}

// Two texts beside each other, line by line; on a phone under each other, with what is equal only once.
export function compared(one, other, names) {
  const pairs = aligned(one.split("\n"), other.split("\n"));
  const lines = h("div", { class: "lines" }, blocks(pairs.slice(0, LINES)));
  const body = h("div", { class: "compared", tabindex: "0", role: "region", "aria-label": `${names[0]}, beside ${names[1]}` },
    h("div", { class: "names" }, names.map((name, index) => h("h4", { class: index ? "new" : "gone" }, name))), lines);
  return pairs.length > LINES ? [body, more(`Show ${plural(pairs.length - LINES, "more line")}`, () => lines.append(...blocks(pairs.slice(LINES))))] : body;
}

// Lines that are equal stand beside each other one by one; where they differ, all of one side come first.
function blocks(pairs) {
  const found = [];
  for (let index = 0; index < pairs.length;) {
    const from = index;
    while (index < pairs.length && pairs[index][0] !== pairs[index][1]) index += 1;
    if (index > from) found.push(h("div", { class: "block" }, side(pairs.slice(from, index), 0, "gone"), side(pairs.slice(from, index), 1, "new")));
    for (; index < pairs.length && pairs[index][0] === pairs[index][1]; index += 1) found.push(h("div", { class: "block" }, pairs[index].map((line) => h("span", { class: "line same" }, line || " "))));
  }
  return found;
}

function side(pairs, which, kind) {
  return pairs.map((pair) => pair[which]).filter((line) => line !== undefined).map((line, index) => {
    const element = h("span", { class: `line ${kind}` }, line || " ");
    element.style.gridRow = String(index + 1);
    return element;
  });
}

// Pairs of lines; what is on one side only has nothing beside it.
export function aligned(one, other) {
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) start += 1;
  let end = 0;
  while (end < one.length - start && end < other.length - start && one[one.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  const head = one.slice(0, start).map((line) => [line, line]);
  const tail = one.slice(one.length - end).map((line) => [line, line]);
  return [...head, ...middle(one.slice(start, one.length - end), other.slice(start, other.length - end)), ...tail];
}

function middle(one, other) {
  if (one.length * other.length > MOST * MOST / 4) return beside(one, other);
  const width = other.length + 1;
  const table = new Uint16Array((one.length + 1) * width);
  for (let i = one.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = one[i] === other[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const pairs = [];
  let gone = [];
  let added = [];
  const flush = () => { pairs.push(...beside(gone, added)); gone = []; added = []; };
  let i = 0;
  let j = 0;
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) {
      flush();
      pairs.push([one[i], other[j]]);
      i += 1;
      j += 1;
    } else if (j >= other.length || (i < one.length && table[(i + 1) * width + j] >= table[i * width + j + 1])) {
      gone.push(one[i]);
      i += 1;
    } else {
      added.push(other[j]);
      j += 1;
    }
  }
  flush();
  return pairs;
}

function beside(gone, added) {
  return Array.from({ length: Math.max(gone.length, added.length) }, (_, index) => [gone[index], added[index]]);
}
