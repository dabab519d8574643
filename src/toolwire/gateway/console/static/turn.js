// One turn: what was said in it, its time line, each call as it was made, changed and delivered, and all bytes of both
// sides. A call, its frames and their ticks on the time line lead to each other.

import { get, me, post, urlOf } from "./api.js";
import { showCase } from "./case.js";
import { clear, clock, count, counted, download, duration, h, json, plural, pre, pretty, say, size } from "./dom.js";
import { compared, marked } from "./diff.js";
import { differences } from "./differences.js";
import { frameId, frames } from "./frames.js";
import { lanes } from "./lanes.js";
import { polled } from "./poll.js";
import { known, pin, refresh } from "./rows.js";
import { callId, conversation } from "./said.js";
import { save } from "./save.js";
import { table } from "./table.js";
import { lastAddress } from "./turns.js";

const EVERY = 1000;
const MOST_SUBJECTS = 5; // subjects that are shown of notes of one kind
const UNFOLDED = 5; // with more calls than this, unchanged ones are folded
const CARRIED = /^(x-proxy-[\w-]+|anthropic-(version|beta)|openai-beta)$/; // headers that change the answer
const PATHS = { chat: "/v1/chat/completions", responses: "/v1/responses", messages: "/v1/messages", gemini: "/v1beta/models" };

export async function turn(main, id) {
  const who = await me();
  const leaving = new AbortController(); // ends a replay
  let drawn;
  const load = async () => {
    await refresh();
    const found = await get(`turns/${encodeURIComponent(id)}`);
    const now = JSON.stringify([found.row.kept, found.whole]);
    if (now === drawn) main.querySelector(".facts").replaceWith(facts(found.row)); // nothing else changed
    else draw(main, who, found, leaving.signal, poll.stale);
    drawn = now;
    return found.row.kept === "running";
  };
  const poll = polled(EVERY, async () => { if (!await load()) poll.stop(); });
  if (await load()) poll.now();
  return () => {
    poll.stop();
    leaving.abort();
  };
}

// A running turn is redrawn; parts that are unfolded or focused stay so.
function draw(main, who, { row, whole }, signal, stale) {
  const unfolded = new Set([...main.querySelectorAll("details[open]")].map((each) => each.dataset.part));
  const focused = main.contains(document.activeElement) ? document.activeElement.parentElement.dataset.part : undefined;
  const answered = results(row);
  const article = h("article", { class: "turn" }, summary(row, whole), whole ? content(row, whole, answered, who) : notes(row, whole, who));
  for (const each of article.querySelectorAll("details")) each.open ||= unfolded.has(each.dataset.part);
  clear(main, crumbs(row, whole), h("h1", {}, title(row)), row.kept === "running" ? stale : buttons(row, whole, who, article, signal), article);
  if (focused) article.querySelector(`[data-part="${focused}"] > summary`)?.focus({ preventScroll: true });
}

function content(row, whole, answered, who) {
  const links = linked(whole);
  return [conversation(row, whole, answered, who, links), section("Time line", lanes(row, whole, answered, links)), notes(row, whole, who), calls(whole, row, answered, who), changedText(whole, row), requests(whole, row), streams(whole, row, links), section("Facts", facts(row)), headers(whole)];
}

// Ways between the ticks, frames and calls of a turn. The frames of the answer have the key "client", those of an attempt
// its index.
function linked(whole) {
  const isSame = (one, other) => Boolean(one && other) && one.id === other.id && one.name === other.name && one.first === other.first;
  const streamOf = (key) => (key === "client" ? whole.answer : whole.attempts[key]);
  // The first frame of a call, as the model sent it or else as the client got it.
  const placeOf = (index) => {
    const { model, client } = whole.calls[index];
    for (const [key, own] of [...whole.attempts.map((_, at) => [at, model]), ["client", client]]) {
      const call = streamOf(key).calls.findIndex((each) => isSame(each, own));
      const frame = call < 0 ? -1 : streamOf(key).frames.findIndex((each) => each[3] === call);
      if (frame >= 0) return [key, frame];
    }
    return ["client", -1];
  };
  const frame = (key, index) => {
    const find = () => document.getElementById(frameId(key, index));
    if (!find()) document.querySelector(`[data-stream="${key}"] button.more`)?.click();
    show(find());
  };
  const call = (index) => show(document.getElementById(callId(index)));
  const callOf = (key, at) => call(whole.calls.findIndex(({ model, client }) => isSame(streamOf(key).calls[at], key === "client" ? client : model)));
  const tick = (...place) => document.querySelector(".axis")?.dispatchEvent(new CustomEvent("choose", { detail: place }));
  return { frame, call, callOf, tick, frameOf: (index) => frame(...placeOf(index)), tickOf: (index) => tick(...placeOf(index)) };
}

function show(element) {
  if (!element) return;
  for (let each = element.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  element.scrollIntoView({ block: "center" });
  (element.querySelector("button") ?? element).focus({ preventScroll: true });
}

function crumbs(row, whole) {
  return h("p", { class: "crumbs" }, h("a", { href: lastAddress() }, "Turns"), " / ", h("code", {}, row.id), whole && row.kept !== "running" ? [" · ", h("a", { href: `#/conversation/${row.id}` }, "Conversation")] : null);
}

export function title(row) {
  return `${row.model || "no model"} · ${row.dialect} › ${row.backend || "no backend"}`;
}

function section(name, ...content) {
  return h("section", {}, h("h2", {}, name), content);
}

// A part that is folded at first; its name identifies it when it is redrawn.
function fold(name, summary, ...content) {
  return h("details", { "data-part": name }, h("summary", {}, summary), content);
}

function facts(row) {
  const usage = [["in", row.input], ["out", row.output], ["cached", row.cached], ["reasoning", row.reasoning]].filter(([, number]) => number);
  const list = [
    ["Status", row.kept === "running" ? "running" : `${row.status}${row.error ? ` ${row.error}` : ""}${row.reason ? ` (${row.reason})` : ""}`],
    ["When", `${new Date(row.at * 1000).toLocaleDateString("en-CA")} ${clock(row.at)}`],
    ["First token", duration(row.first_ms)], ["Total", duration(row.ms)],
    ["Tokens", usage.map(([name, number]) => `${count(number)} ${name}`).join(", ") || "not reported"],
    ["Client", row.client || "–"], ["Key", row.key], ["Session", row.session],
    ["Attempts", row.tried?.join(" › ")], ["Mode", [row.kept === "running" ? "" : row.stream ? "streamed" : "plain", row.transport, row.background ? "background" : ""].filter(Boolean).join(", ")],
    ["Calls", counted(row.calls ?? [])], ["Turn", row.id], ["Request id", row.request_id], ["Worker", row.worker],
  ];
  return h("dl", { class: "facts" }, list.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function summary(row, whole) {
  const missing = {
    metadata: "Only the metadata of this turn is kept, which is the default where the gateway has keys. “Capture the next turns” in the list of turns keeps their content.",
    large: "Only the metadata of this turn is kept: its content is larger than a quarter of the console’s memory.",
    failed: "Only the metadata of this turn is kept: its content could not be prepared. The gateway’s log has the reason.",
    running: "The content is shown when the turn is over, if it is kept.",
  }[row.kept ?? "metadata"];
  const chips = [h("span", { class: `chip ${row.kept === "running" ? "" : row.status >= 400 || row.error ? "bad" : "good"}` }, row.kept === "running" ? "running" : `${row.status}${row.error ? ` ${row.error}` : ""}`),
    ` ${new Date(row.at * 1000).toLocaleDateString("en-CA")} ${clock(row.at)}, ${duration(row.ms)}${row.input || row.output ? `, ${count(row.input ?? 0)} tokens in, ${count(row.output ?? 0)} out` : ""}`];
  return h("section", { class: "summary" }, whole ? h("p", {}, chips) : facts(row), failure(row, whole), row.kept === "running" ? h("p", { class: "note", role: "status" }, "This turn is running.") : null,
    row.replay_of && row.replay_of !== "form" ? h("p", {}, "A replay of ", h("a", { href: `#/turn/${row.replay_of}` }, row.replay_of), ".") : null,
    whole ? null : h("p", { class: "note" }, missing ?? ""),
    whole?.cut ? h("p", { class: "note" }, "A part of this turn is missing: it is larger than the limit for one turn.") : null);
}

// Why the turn failed.
function failure(row, whole) {
  if (row.kept === "running" || (row.status < 400 && !row.error)) return null;
  const why = whole?.answer.failure || whole?.attempts.at(-1)?.failure;
  return h("p", { class: "bad", role: "alert" }, row.status === 499 ? "The client disconnected before the end." : `Failed${row.error ? `, ${row.error}` : ""}${why ? `: ${why}` : "."}`);
}

// The notes, grouped by kind.
function notes(row, whole, who) {
  const list = whole?.notes ?? (row.notes ?? []).map((code) => ({ code, subject: "", says: who.notes[code] }));
  if (!list.length) return null;
  const kinds = new Map();
  for (const note of list) kinds.set(note.code, [...(kinds.get(note.code) ?? []), note]);
  return section("Notes", h("ul", { class: "notes" }, [...kinds.values()].map((each) => h("li", {}, noteLink(each[0]), each.length > 1 ? ` ×${each.length} ` : null,
    each.filter((note) => note.subject).slice(0, MOST_SUBJECTS).map((note) => [h("code", {}, note.subject), " "]), each.length > MOST_SUBJECTS ? "… " : null, each[0].says ?? ""))));
}

function noteLink(note) {
  return h("a", { class: "chip noted", href: `#/notes/${note.code}` }, note.code);
}

// Later turns with the results of this turn's calls.
function results(row) {
  const found = new Map();
  for (const later of known.values()) {
    for (const entry of later.results ?? []) {
      const failed = entry.endsWith(" failed");
      const id = failed ? entry.slice(0, -" failed".length) : entry;
      if (later.at > row.at && row.call_ids?.includes(id) && !found.has(id)) found.set(id, { turn: later.id, at: later.at, failed });
    }
  }
  return found;
}

function calls(whole, row, answered, who) {
  if (!whole.calls.length) return null;
  return section(plural(whole.calls.length, "call"), whole.calls.map((call) => {
    const own = call.client ?? call.model;
    const about = whole.notes.filter((note) => note.subject && [own.id, own.name, call.model?.id, call.model?.name].includes(note.subject.split(" ")[0]));
    const loose = call.same || about.length ? [] : whole.notes.filter((note) => /^(call|arguments|name|text_call|id_)/.test(note.code));
    const result = answered.get(own.id);
    const head = [own.name || "(no name)", " ", h("code", {}, own.id), " ",
      result ? h("a", { class: `chip ${result.failed ? "bad" : "good"}`, href: `#/turn/${result.turn}` }, `${result.failed ? "failed" : "result"} after ${duration((result.at - row.at) * 1000)}`) : null];
    const columns = h("div", { class: "columns three" },
        column("As the model sent it", call.model ? form(call.model, row) : call.written ? [h("p", { class: "soft" }, "Written in its text:"), pre(call.written, "Text of the model")] : h("p", { class: "soft" }, whole.attempts.some((each) => each.withheld) ? "Not kept: a secret was spread over the frames." : "Not found in the reply.")),
        column("What was changed", change(call, row), [...about, ...loose].map((note) => h("p", {}, noteLink(note), " ", note.says || who.notes[note.code] || ""))),
        column("As the client got it", got(call, row)));
    const isFolded = call.same && call.client?.complete && whole.calls.length > UNFOLDED;
    return h("div", { class: `call ${about.some((note) => note.code === "arguments_invalid") ? "bad" : kind(call, row)}` }, isFolded ? fold(`call ${own.id}`, head, columns) : [h("h3", {}, head), columns]);
  }));
}

function got(call, row) {
  if (call.client) return form(call.client, row);
  if (call.ran) return h("p", { class: "soft" }, "Nothing: the gateway ran the call.");
  return row.kept === "running" ? h("p", { class: "soft" }, "Not yet.") : h("p", { class: "bad" }, "The call was withheld.");
}

function kind(call, row) {
  if (row.kept === "running" || call.ran) return "";
  return call.client?.complete ? (call.same ? "good" : "noted") : "bad";
}

function column(name, ...content) {
  return h("div", {}, h("h4", {}, name), content);
}

function form(call, row) {
  const missing = row.kept === "running" ? h("p", { class: "soft" }, "The rest is still to come.") : h("p", { class: "bad" }, "The call is not complete.");
  return [call.complete ? null : missing, pre(call.arguments || "(no arguments)", `Arguments of ${call.name}`)];
}

function change(call, row) {
  if (row.kept === "running" && !(call.client?.complete && call.model?.complete)) return h("p", { class: "soft" }, "Not known yet.");
  if (call.ran) return h("p", { class: "soft" }, "This is one of the gateway’s own tools.");
  if (!call.client || !call.model) return h("p", {}, call.client ? "Text became a call." : "The client did not get it.");
  if (call.same) return h("p", { class: "soft" }, "Nothing.");
  const parts = [["name", call.model.name, call.client.name], ["id", call.model.id, call.client.id], ["arguments", call.model.arguments, call.client.arguments]];
  return parts.filter(([, was, is]) => was !== is).map(([name, was, is]) => h("div", {}, h("p", { class: "soft" }, `${name}:`), json(was) && json(is) ? differences(json(was), json(is), ["Before", "After"]) : marked(was, is)));
}

// What was changed in the text: calls taken out of it, or written into it.
function changedText(whole, row) {
  const { text, withheld } = whole.answer;
  if (row.kept === "running" || withheld || !whole.attempts.length || whole.text === text) return null;
  return section("Text, changed", h("div", { class: "columns three" }, column("As the model sent it", pre(whole.text || "(no text)", "Text of the model")), column("What was changed", marked(whole.text, text)), column("As the client got it", pre(text || "(no text)", "Text for the client"))));
}

function requests(whole, row) {
  const attempt = whole.attempts.at(-1);
  const sent = attempt?.sent ?? [];
  const given = whole.request.body;
  const other = sent.length === 1 ? sent[0].body : sent.map((each) => `${each.path}\n${pretty(each.body)}`).join("\n\n");
  const names = [`From the client, ${row.dialect}`, `To ${attempt?.backend}, ${attempt?.kind}`];
  const [one, two] = [json(given), json(other)];
  return section("Requests",
    sent.length ? fold("requests", `What differs between the client’s, ${size(given.length)}, and what ${attempt.backend} was sent, ${size(other.length)}`,
      one && two ? differences(one, two, names) : compared(pretty(given), pretty(other), names)) : h("p", { class: "soft" }, "This backend runs inside the gateway; nothing was sent."),
    fold("request", "The client’s request", pre(pretty(given), "Request of the client")),
    sent.length ? fold("sent", `The request to ${attempt.backend}`, pre(pretty(other), `Request to ${attempt.backend}`)) : null);
}

function streams(whole, row, links) {
  const body = (stream, key, label) => h("div", { "data-stream": key }, stream.withheld
    ? h("p", { class: "note" }, "Not kept: a secret was spread over its frames.")
    : frames(stream, key, label, links));
  const answer = () => column(`To the client, ${row.dialect}`, body(whole.answer, "client", "Bytes to the client"));
  return section("Streams", whole.attempts.map((attempt, index) => fold(`stream ${index}`,
    `${attempt.round ? `Round ${attempt.round + 1}: ` : ""}${whole.attempts.length > 1 && !attempt.round ? `Attempt ${index + 1}: ` : ""}${attempt.backend}, status ${attempt.status || "none"}, ${plural(attempt.frames.length, "frame")}${index === whole.attempts.length - 1 ? `, beside the client’s ${plural(whole.answer.frames.length, "frame")}` : ""}`,
    h("div", { class: "columns two" },
      column(`From ${attempt.backend}`, body(attempt, index, `Bytes from ${attempt.backend}`), attempt.failure && row.kept !== "running" ? h("p", { class: "bad" }, attempt.failure) : null),
      index === whole.attempts.length - 1 ? answer() : null))),
  whole.attempts.length ? null : answer());
}

function headers(whole) {
  const table = (name, list) => list.length ? h("div", {}, h("h4", {}, name), h("dl", { class: "facts" }, list.map(([header, value]) => [h("dt", {}, header), h("dd", {}, value)]))) : null;
  const last = whole.attempts.at(-1);
  return section("Headers", fold("headers", "Of request and answer, on both sides", h("div", { class: "columns two" },
    table("Request of the client", whole.request.headers), table("Request to the backend", last?.sent_headers ?? []),
    table("Answer of the backend", last?.headers ?? []), table("Answer to the client", whole.answer.headers))));
}

function buttons(row, whole, who, article, signal) {
  const compare = h("div", { class: "replayed" });
  const testCase = h("div", { class: "made-case" });
  const model = h("input", { id: "model", list: "models", value: json(whole?.request.body ?? "")?.model ?? row.model ?? "", autocomplete: "off" });
  const replay = h("form", { class: "inline", onsubmit: async (event) => {
    event.preventDefault();
    clear(compare, h("p", { class: "soft", role: "status" }, "Sending…"));
    try {
      const done = await post(`turns/${row.id}/replay`, { model: model.value }, signal);
      const other = done.turn ? await get(`turns/${done.turn}`) : undefined;
      clear(compare, replayed(whole, other, done));
    } catch (error) { clear(compare, h("p", { class: "bad", role: "alert" }, error.message)); }
  } }, h("label", { for: "model" }, "Replay on"), model,
  h("datalist", { id: "models" }, [...who.models, ...who.backends.map((each) => `${each.name}/`)].map((name) => h("option", { value: name }))), h("button", {}, "Replay"));
  const pinned = h("button", { type: "button", "aria-pressed": String(Boolean(row.pinned)), onclick: async () => {
    pinned.setAttribute("aria-pressed", String(await pin(row.id, pinned.getAttribute("aria-pressed") !== "true")));
  } }, "Pin");
  return h("div", { class: "tools" }, whole ? replay : null, pinned, whole ? [
    h("button", { type: "button", onclick: () => copy(curl(row, whole)) }, "Copy as curl"),
    h("button", { type: "button", onclick: () => save(`turn-${row.id}.html`, title(row), article) }, "Save as HTML"),
    h("a", { class: "button", href: urlOf(`api/turns/${row.id}/recording`), download: `${row.id}.jsonl` }, "Download recording"),
    h("button", { type: "button", onclick: () => showCase(testCase, row.id) }, "Save as test case"),
  ] : null, compare, testCase);
}

function replayed(whole, other, done) {
  const link = other ? h("a", { href: `#/turn/${other.row.id}` }, "the new turn") : "the new turn";
  const head = h("p", { class: done.status < 400 ? "" : "bad", role: "status" }, `Status ${done.status}. `, link, done.error ? `: ${done.error}` : "");
  if (!other?.whole) return head;
  const list = (turn) => turn.calls.filter((call) => call.client).map((call) => call.client);
  const before = list(whole);
  const after = list(other.whole);
  const rows = Array.from({ length: Math.max(before.length, after.length) }, (_, index) => {
    const [one, two] = [before[index], after[index]];
    const same = one && two && one.name === two.name && pretty(one.arguments) === pretty(two.arguments);
    const cell = (call) => (call ? h("code", {}, `${call.name} ${call.arguments}`) : "–");
    return [cell(one), cell(two), h("span", { class: `chip ${same ? "good" : "noted"}` }, same ? "same" : "differs")];
  });
  return [head, rows.length
    ? table("Calls, then and now", [["Calls then", "text"], ["Calls now", "text"], ["", "code"]], rows)
    : h("div", { class: "columns two" }, column("Then", pre(whole.answer.text || "(no text)", "Text then")), column("Now", pre(other.whole.answer.text || "(no text)", "Text now")))];
}

// The request as a command. The body is standard input, because the length of arguments is limited.
export function curl(row, whole) {
  const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const headers = ["content-type: application/json"];
  for (const [name, value] of whole.request.headers ?? []) {
    if (name === "authorization") headers.push("authorization: Bearer YOUR_KEY");
    else if (name === "x-api-key" || name === "x-goog-api-key") headers.push(`${name}: YOUR_KEY`);
    else if (CARRIED.test(name)) headers.push(`${name}: ${value}`);
  }
  const { body } = whole.request;
  const path = whole.path || PATHS[row.dialect];
  const query = path.endsWith(":streamGenerateContent") ? "?alt=sse" : "";
  let end = "BODY";
  while (body.split("\n").includes(end)) end += "_";
  return `curl -N ${quoted(urlOf("..").replace(/\/$/, "") + path + query)} ${headers.map((each) => `-H ${quoted(each)}`).join(" ")} --data-binary @- <<'${end}'\n${body}\n${end}\n`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(text.includes("YOUR_KEY") ? "Copied, with YOUR_KEY in place of the key." : "Copied.");
  } catch {
    download("turn.sh", "text/plain", text);
    say("Saved as turn.sh: the browser does not let pages copy here.");
  }
}
