// What differs between two JSON values, key by key: the order of keys does not matter, and items of a list that have a
// name or an id are compared with those of the same name.

import { aligned, marked } from "./diff.js";
import { h, more, plural, pre } from "./dom.js";

const SHOWN = 200; // differences at first
const LONG = 4000; // characters of a value that are shown at first

// The differences as an element, `names` are those of both sides.
export function differences(one, other, names) {
  const { rows, equal } = compare(one, other);
  const lines = h("div", { class: "lines" }, rows.slice(0, SHOWN).map(line));
  const summary = h("p", { class: "soft" }, rows.length ? `${plural(rows.length, "value")} differ${rows.length === 1 ? "s" : ""}, ${equal} are equal.` : "All values are equal; only the writing may differ.");
  if (!rows.length) return [summary];
  return [summary, h("div", { class: "compared", tabindex: "0", role: "region", "aria-label": `${names[0]}, beside ${names[1]}` },
    h("div", { class: "names" }, names.map((name, index) => h("h4", { class: index ? "new" : "gone" }, name))), lines),
  rows.length > SHOWN ? more(`Show ${plural(rows.length - SHOWN, "more difference")}`, () => lines.append(...rows.slice(SHOWN).map(line))) : null];
}

function line({ path, was, is }) {
  const isText = typeof was === "string" && typeof is === "string";
  return h("div", { class: "difference" }, h("div", { class: "path" }, path || "(all)"),
    isText ? marked(was, is) : h("div", { class: "block" }, side(was, "gone"), side(is, "new")));
}

function side(value, kind) {
  return value === undefined ? h("span", { class: "line" }) : h("div", { class: `line ${kind}` }, pre(typeof value === "string" ? value : JSON.stringify(value, null, 2), kind === "gone" ? "Before" : "After", LONG));
}

// The rows that differ, each with its path, and the number of values that are equal.
export function compare(one, other) {
  const rows = [];
  let equal = 0;
  const walk = (path, was, is) => {
    if (isObject(was) && isObject(is)) {
      for (const key of new Set([...Object.keys(was), ...Object.keys(is)])) walk(`${path}${path && "."}${key}`, was[key], is[key]);
    } else if (Array.isArray(was) && Array.isArray(is)) {
      for (const [name, before, after] of pairs(was, is)) walk(`${path}[${name}]`, before, after);
    } else if (canonical(was) === canonical(is)) equal += 1;
    else rows.push({ path, was, is });
  };
  walk("", one, other);
  return { rows, equal };
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// The items of two lists that belong together, each pair with a name for its path.
function pairs(one, other) {
  const [here, there] = [named(one), named(other)];
  if (here && there) return [...new Set([...here.keys(), ...there.keys()])].map((name) => [name, here.get(name), there.get(name)]);
  const [was, is] = [one, other].map((items) => items.map(canonical));
  let [before, after] = [0, 0];
  return aligned(was, is).map(([left, right]) => {
    const at = right === undefined ? before : after;
    return [at, left === undefined ? undefined : one[before++], right === undefined ? undefined : other[after++]];
  });
}

// Items by their names or ids, if all have one of their own.
function named(items) {
  const names = items.map((item) => item?.name ?? item?.function?.name ?? item?.id);
  return items.length && names.every((name) => typeof name === "string") && new Set(names).size === names.length ? new Map(items.map((item, index) => [names[index], item])) : undefined;
}

// JSON with the keys in one order; undefined stays so.
function canonical(value) {
  return JSON.stringify(value, (_, each) => (isObject(each) ? Object.fromEntries(Object.entries(each).sort(([a], [b]) => (a < b ? -1 : 1))) : each));
}
