// Searches in the contents of turns: word by word, the latest turns first, a part at a time.

import { get } from "./api.js";
import { clear, clock, h } from "./dom.js";
import { horizon, known } from "./rows.js";

const MOST_WORDS = 5;
const MOST_KEPT = 20; // searches
const MOST_PARTS = 20; // answers about turns that are new since the last one

const searches = new Map(); // by word: the turns that have it, the change up to which it was looked for, and where to go on

export function holds(word, { id }) {
  return searches.get(word)?.ids.has(id) ?? false;
}

// What is shown of the search, and `look`, which goes on with it; `draw` is called when it has found something.
export function contents(draw) {
  const says = h("span", { role: "status" });
  const further = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => run(() => each(older)) }, "Search older turns");
  const element = h("p", { class: "soft contents", hidden: true }, says, further);
  let words = [];
  let isBusy = false;
  let failure = "";

  function look(wanted) {
    words = wanted.slice(0, MOST_WORDS);
    failure = wanted.length > MOST_WORDS ? `Only ${MOST_WORDS} words are looked for in contents. ` : "";
    show();
    return run(() => each(newest));
  }

  async function run(work) {
    if (isBusy || !words.length) return;
    isBusy = true;
    show();
    try {
      await work();
    } catch (error) {
      failure = error.message;
    } finally {
      isBusy = false;
      show();
      draw();
    }
  }

  async function each(work) {
    for (const word of words) await work(word);
  }

  function show() {
    const known = words.map((word) => searches.get(word));
    const before = Math.max(0, ...known.map((each) => each?.before ?? Infinity));
    const text = !words.length ? "" : before === Infinity ? "Searching in contents…" : before ? `Contents are searched back to ${clock(before)}.` : "All contents are searched.";
    if (says.textContent !== failure + text) clear(says, failure + text); // it may be selected, or read out
    element.hidden = !words.length;
    further.hidden = before === 0 || before === Infinity;
    further.disabled = isBusy;
  }

  return { element, look };
}

// Looks for a word for the first time, or in the turns that are new since then.
async function newest(word) {
  const reached = horizon();
  const found = searches.get(word);
  if (!found) {
    const answer = await get(`search?q=${encodeURIComponent(word)}`);
    searches.set(word, { ids: new Set(answer.ids), since: reached, before: answer.before ?? 0 });
    if (searches.size > MOST_KEPT) searches.delete(searches.keys().next().value);
    return;
  }
  if (![...known.values()].some((row) => row.seq > found.since)) return;
  let before = "";
  for (let part = 0; part < MOST_PARTS && before !== undefined; part += 1) {
    const answer = await get(`search?q=${encodeURIComponent(word)}&since=${found.since}${before && `&before=${before}`}`);
    for (const id of answer.ids) found.ids.add(id);
    before = answer.before;
  }
  found.since = reached;
}

async function older(word) {
  const found = searches.get(word);
  if (!found?.before) return;
  const answer = await get(`search?q=${encodeURIComponent(word)}&before=${found.before}`);
  for (const id of answer.ids) found.ids.add(id);
  found.before = answer.before ?? 0;
}
