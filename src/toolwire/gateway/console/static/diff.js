// What differs between two texts: line by line for bodies, token by token for arguments.

import { h, more, plural } from "./dom.js";

const LINES = 4000; // lines shown at first
const CONTEXT = 200; // characters of unchanged text shown on each side of a change
const LONGEST = 500000; // characters; a longer text is not split into tokens
const WORD = 40; // characters; a longer change is narrowed to where its characters differ
const EXACT = 2250000; // pairs of lines up to which the longest common subsequence is computed
const LEVELS = 5; // depth of anchors between anchors
const WIDTHS = [1, 4, 16]; // lines that make one anchor; single lines may all be repeated
const ENOUGH = 0.05; // share of the lines; with fewer anchors, one that was moved would split the texts at the wrong place

// Arguments before and after, with the tokens that are gone or new marked.
export function marked(was, is) {
  const found = runs(was, is);
  const last = found.length - 1;
  const side = (name, tag, label) => h("pre", { tabindex: "0", "aria-label": label }, found.map((run, index) => {
    if (run.same) return shortened(run[name], index > 0 ? CONTEXT : 0, index < last ? CONTEXT : 0);
    return run[name] ? h(tag, {}, run[name]) : null;
  }));
  return h("div", { class: "marked" }, side("was", "del", "Before"), side("is", "ins", "After"));
}

// The beginning and the end of an unchanged text, with an ellipsis between them.
function shortened(text, beginning, end) {
  if (text.length <= beginning + end) return text;
  const whole = (part) => part.replace(/^\p{Cs}|\p{Cs}$/gu, ""); // without half a surrogate pair at the cut
  return `${whole(text.slice(0, beginning))}…${whole(text.slice(text.length - end))}`;
}

// Both texts as stretches that are the same or differ.
function runs(was, is) {
  const found = [];
  for (const [one, other] of aligned(tokens(was), tokens(is))) {
    const same = one === other;
    if (found.at(-1)?.same !== same) found.push({ same, was: "", is: "" });
    found.at(-1).was += one ?? "";
    found.at(-1).is += other ?? "";
  }
  return found.flatMap((run) => (run.same || Math.min(run.was.length, run.is.length) <= WORD ? run : narrowed(run)));
}

// Words, numbers, runs of white space, and single marks.
function tokens(text) {
  return text.length > LONGEST ? [text] : text.match(/[\p{L}\p{M}\p{N}_]+|\s+|./gsu) ?? [];
}

// A long change without the characters that are equal at its beginning and end.
function narrowed({ was, is }) {
  const [one, other] = [[...was], [...is]];
  const [start, end] = equalEnds(one, other);
  const same = (from, to) => ({ same: true, was: one.slice(from, to).join(""), is: one.slice(from, to).join("") });
  const differs = { same: false, was: one.slice(start, one.length - end).join(""), is: other.slice(start, other.length - end).join("") };
  return [same(0, start), differs, same(one.length - end)].filter((run) => run.was || run.is);
}

// Two texts beside each other, line by line; on a phone under each other, with what is equal only once.
export function compared(one, other, names) {
  const pairs = aligned(one.split("\n"), other.split("\n"));
  const lines = h("div", { class: "lines" }, blocks(pairs.slice(0, LINES)));
  const body = h("div", { class: "compared", tabindex: "0", role: "region", "aria-label": `${names[0]}, beside ${names[1]}` },
    h("div", { class: "names" }, names.map((name, index) => h("h4", { class: index ? "new" : "gone" }, name))), lines);
  return pairs.length > LINES ? [body, more(`Show ${plural(pairs.length - LINES, "more line")}`, () => blocks(pairs.slice(LINES)).forEach((block) => lines.append(block)))] : body;
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

// Pairs of equal lines; a line that is on one side only is paired with nothing, or with such a line of the other side.
export function aligned(one, other, levels = LEVELS) {
  const [start, end] = equalEnds(one, other);
  const same = (from, to) => one.slice(from, to).map((line) => [line, line]);
  return [...same(0, start), ...middle(one.slice(start, one.length - end), other.slice(start, other.length - end), levels), ...same(one.length - end)];
}

// How many lines are equal at the beginning, and how many at the end.
function equalEnds(one, other) {
  const most = Math.min(one.length, other.length);
  let start = 0;
  while (start < most && one[start] === other[start]) start += 1;
  let end = 0;
  while (end < most - start && one[one.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  return [start, end];
}

// Many lines are split at anchors, and what is between two anchors is aligned by itself, until it is small.
function middle(one, other, levels) {
  if (one.length * other.length <= EXACT) return exact(one, other);
  const found = levels ? anchors(one, other) : [];
  if (!found.length) return beside(one, other);
  const pairs = [];
  let [i, j] = [0, 0];
  for (const [nextI, nextJ] of [...found, [one.length, other.length]]) {
    for (const pair of aligned(one.slice(i, nextI), other.slice(j, nextJ), levels - 1)) pairs.push(pair);
    if (nextI < one.length) pairs.push([one[nextI], other[nextJ]]);
    [i, j] = [nextI + 1, nextJ + 1];
  }
  return pairs;
}

// Pairs of indexes where the same line, or the same few lines, occur once on each side. Of lines that only ever occur
// repeatedly, the first occurrence goes with the first on the other side, the second with the second.
function anchors(one, other) {
  let best = [];
  for (const width of WIDTHS) {
    const [here, there] = [indexes(one, width), indexes(other, width)];
    const isAnchor = (key, found) => found.length === 1 && there.get(key)?.length === 1;
    const found = inOrder([...here].filter(([key, each]) => isAnchor(key, each)).map(([key, [index]]) => [index, there.get(key)[0]]));
    if (found.length > best.length) best = found;
    if (best.length > Math.min(one.length, other.length) * ENOUGH) return best;
  }
  if (best.length) return best;
  const there = indexes(other, 1);
  const repeated = [...indexes(one, 1)].flatMap(([line, found]) => found.map((index, nth) => [index, there.get(line)?.[nth]]));
  return inOrder(repeated.filter(([, index]) => index !== undefined).sort((a, b) => a[0] - b[0]));
}

// Where each line begins, or each few lines.
function indexes(lines, width) {
  const found = new Map();
  for (let index = 0; index + width <= lines.length; index += 1) {
    const key = width > 1 ? lines.slice(index, index + width).join("\0") : lines[index];
    if (found.has(key)) found.get(key).push(index); else found.set(key, [index]);
  }
  return found;
}

// The longest subsequence of pairs, sorted by their first index, whose second index increases too.
function inOrder(pairs) {
  const ends = []; // ends[n] is the last pair of the subsequence of n + 1 pairs that ends lowest
  for (const pair of pairs) {
    let [low, high] = [0, ends.length];
    while (low < high) {
      const half = (low + high) >> 1;
      if (ends[half].pair[1] < pair[1]) low = half + 1; else high = half;
    }
    ends[low] = { pair, previous: ends[low - 1] };
  }
  const found = [];
  for (let each = ends.at(-1); each; each = each.previous) found.push(each.pair);
  return found.reverse();
}

// By the longest common subsequence.
function exact(one, other) {
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
  const flush = () => { for (const pair of beside(gone, added)) pairs.push(pair); gone = []; added = []; };
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
