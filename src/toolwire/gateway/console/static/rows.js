// The rows of all turns, for all views. They are fetched once; after that only changes are.

import { get, post } from "./api.js";
import { say } from "./dom.js";

const MOST = 20000;
const MOST_ASKED = 50; // turns in one question for what was asked in them
const HAS_CONTENT = ["whole", "cut"];

export const known = new Map(); // finished turns, by id
export let running = new Map(); // running turns, by id
export let facts = { workers: 1, bytes: 0, capturing: 0 };
export const asked = new Map(); // what was asked in finished turns, by id; null if their content is gone
const cursors = new Map(); // the last change that is known of each process
let asking;

export function refresh() {
  asking ??= load().finally(() => { asking = undefined; });
  return asking;
}

async function load() {
  for (let more = true; more;) {
    const { workers } = await get(`turns?after=${encodeURIComponent(JSON.stringify(Object.fromEntries(cursors)))}`);
    const present = new Set(workers.map((worker) => worker.process));
    for (const process of cursors.keys()) if (!present.has(process)) forget(process);
    more = workers.filter(take).length > 0;
    running = new Map(workers.flatMap((worker) => worker.running).map((row) => [row.id, row]));
    const sum = (name) => workers.reduce((all, worker) => all + worker[name], 0);
    facts = { workers: workers.length, bytes: sum("kept_bytes"), capturing: Math.max(0, ...workers.map((worker) => worker.capturing)) };
  }
  for (const [id, row] of known) {
    if (known.size <= MOST) break;
    if (!row.pinned) known.delete(id);
  }
  for (const id of asked.keys()) if (!known.has(id)) asked.delete(id);
}

// All changes up to this number are known.
export function horizon() {
  return Math.min(...cursors.values());
}

// Asks what was asked in the first of these turns for which it is not known; returns whether there were any.
export async function ask(ids) {
  const missing = ids.filter((id) => HAS_CONTENT.includes(known.get(id)?.kept) && !asked.has(id)).slice(0, MOST_ASKED);
  if (!missing.length) return false;
  const found = await get(`asked?ids=${missing.join(",")}`);
  const reached = missing.findLastIndex((id) => found[id]);
  const looked = reached < 0 ? missing : missing.slice(0, reached + 1); // the others took too long
  for (const id of looked) asked.set(id, found[id] ?? null);
  return true;
}

// Takes the answer of one process; returns whether the process has more rows.
function take({ process, seq, rows, more }) {
  cursors.set(process, seq);
  for (const row of rows) known.set(row.id, { ...row, process });
  return more;
}

// The turns of a process are gone when it ends.
function forget(process) {
  cursors.delete(process);
  for (const row of known.values()) if (row.process === process) known.delete(row.id);
}

// Every turn once, the latest first.
export function all() {
  const over = [...known.values()];
  return [...running.values()].filter((row) => !known.has(row.id)).concat(over).sort((one, other) => other.at - one.at || (one.id < other.id ? 1 : -1));
}

// Pins or unpins a turn; returns whether it is pinned now.
export async function pin(id, wanted) {
  try {
    const { pinned } = await post(`turns/${id}/pin`, { pinned: wanted });
    if (known.has(id)) known.get(id).pinned = pinned;
    say(pinned ? "Pinned." : wanted ? "There is no room for more pinned turns. Unpin another one first." : "Unpinned: it may be dropped for newer turns.");
    return pinned;
  } catch (error) {
    say(error.message);
    return !wanted;
  }
}
