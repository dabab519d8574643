// The language of the filter: words, fields, comparisons, flags, each negated by a leading -.

const SHORTEST = 2; // characters of a word that is looked for in contents

const TEXTS = {
  key: (row) => row.key, client: (row) => row.client, dialect: (row) => row.dialect, backend: (row) => [row.backend, ...(row.tried ?? [])].join(" "),
  model: (row) => row.model, status: (row) => row.status || "running", note: (row) => row.notes?.join(" "), tool: (row) => row.calls?.join(" "),
  error: (row) => row.error, session: (row) => row.session, worker: (row) => row.worker, id: (row) => [row.id, row.request_id ?? ""].join(" "), request: (row) => row.request_id, transport: (row) => row.transport,
  reason: (row) => row.reason, kept: content, replay: replayed,
};
const NUMBERS = {
  ms: (row) => row.ms, first: (row) => row.first_ms, tokens: (row) => (row.input ?? 0) + (row.output ?? 0), input: (row) => row.input, output: (row) => row.output,
  cached: (row) => row.cached, reasoning: (row) => row.reasoning, calls: (row) => row.call_count, notes: (row) => row.notes?.length, status: (row) => row.status,
};
const FLAGS = {
  pinned: (row) => row.pinned, background: (row) => row.background, stream: (row) => row.stream, replay: replayed,
  running: (row) => row.kept === "running", whole: (row) => content(row) === "whole", metadata: (row) => content(row) === "metadata",
};

// What is kept of a turn, as the list says it.
function content(row) {
  return { large: "metadata", failed: "metadata" }[row.kept] ?? row.kept ?? "metadata";
}

function replayed(row) {
  return row.replay_of === "form" ? "" : row.replay_of;
}

const COMPARED = {
  ">": (one, other) => one > other, "<": (one, other) => one < other, ">=": (one, other) => one >= other, "<=": (one, other) => one <= other, "=": (one, other) => one === other,
};
const TERM = /(-?)(?:([a-z]+)(:|>=|<=|=|>|<))?("[^"]*"?|\S+)?/giy;

const FIELDS = [...new Set([...Object.keys(TEXTS), ...Object.keys(NUMBERS), ...Object.keys(FLAGS)])];

// Reads what was typed: a test of a row, the words that are looked for in contents too, and what is wrong. `holds` says
// whether the content of a row has a word.
export function filter(typed, holds = () => false) {
  const read = { words: [], faults: [] };
  const tests = terms(typed.trim(), read, holds);
  return { ...read, test: (row) => tests.every((test) => test(row)) };
}

function terms(typed, read, holds) {
  const tests = [];
  TERM.lastIndex = 0;
  while (TERM.lastIndex < typed.length) {
    const from = TERM.lastIndex;
    const [whole, minus, field, sign, value = ""] = TERM.exec(typed) ?? [""];
    const isNegated = minus && whole !== "-";
    if (whole) tests.push(negated(isNegated, term(field, sign, isNegated ? value : value || minus, read, holds)));
    TERM.lastIndex = from + Math.max(1, whole.length);
  }
  return tests;
}

function term(field, sign, value, read, holds) {
  const wanted = value.replaceAll('"', "").toLowerCase();
  const name = field?.toLowerCase();
  if (!field) return !value.startsWith('"') && Object.hasOwn(FLAGS, wanted) ? (row) => Boolean(FLAGS[wanted](row)) : anywhere(wanted, read, holds);
  if (!FIELDS.includes(name)) {
    read.faults.push(`There is no field ${field}; it is looked for as a text. Fields are ${FIELDS.join(", ")}.`);
    return anywhere(`${name}${sign}${wanted}`, read, holds);
  }
  if (sign !== ":" && Object.hasOwn(NUMBERS, name)) {
    if (Number.isNaN(Number(wanted))) read.faults.push(`${field} is compared with a number, not with ${wanted}.`);
    return (row) => wanted === "" || COMPARED[sign](NUMBERS[name](row) ?? 0, Number(wanted));
  }
  if (sign !== ":") read.faults.push(`${field} is not a number: write ${field}:${wanted}.`);
  if (name === "id") return (row) => has(TEXTS.id(row), wanted) || has(row.id, bare(wanted));
  if (Object.hasOwn(TEXTS, name)) return (row) => has(TEXTS[name](row), wanted);
  if (Object.hasOwn(NUMBERS, name)) return (row) => (wanted ? (NUMBERS[name](row) ?? 0) === Number(wanted) : Boolean(NUMBERS[name](row)));
  return (row) => Boolean(FLAGS[name](row)) !== ["no", "false"].includes(wanted);
}

// A field without a value matches if it is not empty.
function has(text, wanted) {
  return wanted ? String(text ?? "").toLowerCase().includes(wanted) : Boolean(text);
}

function anywhere(wanted, read, holds) {
  const id = bare(wanted);
  if (wanted.length >= SHORTEST && !read.words.includes(wanted)) read.words.push(wanted);
  return (row) => row.id.toLowerCase().includes(id) || Object.values(TEXTS).some((text) => String(text(row) ?? "").toLowerCase().includes(wanted)) || holds(wanted, row);
}

// The id of a turn in the id of its answer, as the client has it: chatcmpl-ID, resp_ID or msg_ID.
function bare(id) {
  return id.replace(/^(chatcmpl-|resp_|msg_)(?=.)/, "");
}

function negated(isNegated, test) {
  return isNegated ? (row) => !test(row) : test;
}
