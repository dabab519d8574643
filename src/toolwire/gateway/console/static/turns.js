// The list of turns, live.

import { me, post } from "./api.js";
import { contents, holds } from "./contents.js";
import { bytesOf, clear, clock, count, counted, duration, h, plural, readable, say, size } from "./dom.js";
import { filter } from "./filter.js";
import { list } from "./list.js";
import { polled } from "./poll.js";
import { all, ask as askFor, asked, facts, known, pin as pinTurn, refresh, running } from "./rows.js";
import { compare } from "./table.js";

const EVERY = 1000;
const PAUSE = 300; // milliseconds without typing after which contents are searched
// Name, kind, and what the list is sorted by.
const COLUMNS = [
  ["Time", "time", (row) => row.at], ["Status", "status", (row) => row.status ?? 0], ["Key", "key", (row) => row.key], ["Asked", "asked"],
  ["Client, dialect › backend", "way", (row) => `${row.client} ${row.dialect} ${row.backend}`], ["Model", "model", (row) => row.model], ["Total", "total", (row) => row.ms],
  ["Tokens", "tokens", (row) => (row.input ?? 0) + (row.output ?? 0)], ["Calls", "calls", (row) => row.call_count], ["Notes", "notes", (row) => row.notes?.length], ["Kept", "kept", (row) => row.kept],
];
const KEPT = {
  running: ["", "Running"], whole: ["whole", "All content is kept"], cut: ["part", "A part of the content is kept: this turn, or those that ran with it, were very long"],
  large: ["metadata", "Only metadata is kept: the content is too large"], failed: ["metadata", "Only metadata is kept: the content could not be prepared"],
};

// These survive a change of view: the address with the position in the list, and the rows of a pause, by id.
let left;
let paused;

// The address of the list with a filter, sorted by a kind of column, from the largest with a leading -.
export function turnsAddress(typed = "", order = "") {
  const parts = order ? [typed, order] : typed ? [typed] : [];
  return `#/turns${parts.map((part) => `/${encodeURIComponent(part)}`).join("")}`;
}

// The address of the list as it was last shown.
export function lastAddress() {
  return left?.address ?? turnsAddress();
}

export async function turns(main, typed = "", order = "") {
  const who = await me();
  const rows = list("Turns", head(sortBy), line, ask);
  rows.element.classList.toggle("keyless", !who.has_keys);
  const about = h("p", { class: "soft about" });
  const empty = h("p", { class: "empty" });
  const faults = h("p", { class: "note faults empty", role: "status" });
  const searched = contents(draw);
  let resting;
  const search = h("input", { type: "search", id: "filter", value: typed, placeholder: "Words in a turn, or: demo status>=400 ms>1000 -note:retried pinned", autocomplete: "off", spellcheck: "false",
    oninput: () => {
      typed = search.value;
      clearTimeout(resting);
      resting = setTimeout(look, PAUSE);
      changed();
    } });
  const sorting = h("select", { id: "sort", onchange: () => sortBy(sorting.value) }, COLUMNS.filter(([, , by]) => by).map(([name, kind]) => h("option", { value: kind }, `by ${name.toLowerCase()}`)));
  const pause = h("button", { type: "button", onclick: () => {
    paused = paused ? undefined : new Map(all().map((row) => [row.id, row]));
    draw();
  } });
  const poll = polled(EVERY, async () => {
    await refresh();
    draw();
    if (!resting) look();
  });

  // The address has the filter and the order, so that they survive a reload and can be shared.
  function changed() {
    history.replaceState(null, "", turnsAddress(typed, order));
    rows.toTop();
    draw();
  }

  function sortBy(kind) {
    order = order === `-${kind}` ? kind : order === kind ? "" : `-${kind}`;
    changed();
  }

  function look() {
    resting = undefined;
    searched.look(filter(typed).words);
  }

  // During a pause no rows are added; those in the list are still updated.
  function draw() {
    const now = all();
    const every = paused ? [...paused.values()].map((row) => known.get(row.id) ?? running.get(row.id) ?? row) : now;
    const read = filter(typed, holds);
    const added = paused ? now.filter((row) => !paused.has(row.id) && read.test(row)).length : 0;
    pause.setAttribute("aria-pressed", String(Boolean(paused)));
    put(pause, paused ? `Resume${added ? ` (${count(added)} new)` : ""}` : "Pause");
    const shown = sorted(every.filter(read.test), order);
    about.textContent = said(shown.length, every.length, who);
    empty.textContent = shown.length ? "" : every.length ? "No turn matches." : "No turns yet. Send a request to the gateway, or use Try it.";
    put(faults, read.faults.join(" "));
    for (const cell of rows.element.querySelectorAll("[data-kind]")) cell.setAttribute("aria-sort", { [cell.dataset.kind]: "ascending", [`-${cell.dataset.kind}`]: "descending" }[order] ?? "none");
    sorting.value = order.replace("-", "") || "time";
    rows.set(shown);
  }

  let asking = false;

  // Asks what was asked in the turns in sight.
  async function ask(ids) {
    if (asking) return;
    asking = true;
    try {
      if (await askFor(ids)) rows.render();
    } catch {
      // the next poll says what is wrong
    } finally { asking = false; }
  }

  clear(main, h("h1", {}, "Turns"),
    h("div", { class: "tools" }, h("label", { for: "filter", class: "hidden" }, "Filter and search"), search, h("label", { for: "sort", class: "hidden" }, "Sort"), sorting, pause, who.keeps_everything ? null : capture(poll)),
    faults, about, searched.element, poll.stale, empty, rows.element);
  window.addEventListener("resize", draw);
  await poll.now();
  const address = turnsAddress(typed, order);
  if (left?.address === address) rows.restore(left.position);
  return () => {
    if (all().length) left = { address: turnsAddress(typed, order), position: rows.position() };
    poll.stop();
    clearTimeout(resting);
    window.removeEventListener("resize", draw);
  };
}

function head(sortBy) {
  return h("div", { class: "row head", role: "row" }, COLUMNS.map(([name, kind, by]) => h("span", { class: `c-${kind}`, role: "columnheader", "data-kind": by ? kind : null },
    by ? h("button", { type: "button", class: "sort", tabindex: "-1", onclick: () => sortBy(kind) }, name) : name)));
}

// Rows by a kind of column; the latest first where they are equal, and if there is no order.
function sorted(rows, order) {
  const by = COLUMNS.find(([, kind]) => kind === order.replace("-", ""))?.[2];
  if (!by) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  return rows.map((row) => [by(row) ?? "", row]).sort(([one], [other]) => sign * compare(one, other)).map(([, row]) => row);
}

function said(shown, known, who) {
  return [
    `${plural(shown, "turn")}${shown === known ? "" : ` of ${count(known)}`}`,
    `${size(facts.bytes)} of ${size(bytesOf(who.max_size) * facts.workers)} kept${facts.workers > 1 ? ` by ${facts.workers} workers` : ""}`,
    who.keeps_everything ? "" : facts.capturing ? `the content of the next ${facts.capturing} is kept` : "only metadata is kept",
  ].filter(Boolean).join(" · ");
}

function capture(poll) {
  const number = h("input", { id: "number", type: "number", min: "0", max: "1000", value: "10" });
  return h("form", { class: "inline", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const wanted = Number(number.value);
      await post("capture", { count: wanted });
      say(wanted ? `The content of the next ${plural(wanted, "turn")} will be kept.` : "No further content will be kept.");
      await poll.now();
    } catch (error) { say(error.message); }
  } }, h("label", { for: "number" }, "Capture the next turns:"), number, h("button", {}, "Capture"));
}

// One row, empty at first.
function line(id) {
  const address = `#/turn/${encodeURIComponent(id)}`;
  const link = h("a", { href: address });
  const [time, date, code, error, replay, kept, side, words, client, way, total, first] = [h("span"), h("small"), h("b"), h("small"), h("small", { class: "tag" }), h("span", { class: "mark" }), h("small", { class: "tag" }), h("span"), h("small"), h("span"), h("span"), h("small")];
  const pin = h("button", { type: "button", class: "pin", tabindex: "-1", "aria-label": "Pin", title: "Pin (k)", onclick: toggle });
  const inside = { time: [date, time], model: [link, " ", replay], status: [code, error], kept: [kept, pin], asked: [side, words], way: [client, way], total: [total, first] };
  const cells = Object.fromEntries(COLUMNS.map(([name, kind]) => [kind, h("span", { class: `c-${kind}`, role: "gridcell", "data-name": name }, inside[kind] ?? [])]));
  const element = h("div", { role: "row", "data-id": id, onclick: open, onkeydown: (event) => { if (event.key === "k" && !event.ctrlKey && !event.metaKey && !event.altKey) toggle(); } }, Object.values(cells));

  function open(event) {
    if (event.target.closest("a, button") || !getSelection().isCollapsed) return;
    link.focus({ preventScroll: true }); // the row to come back to
    location.hash = address;
  }

  async function toggle() {
    if (!pin.hidden) press(await pinTurn(id, pin.getAttribute("aria-pressed") !== "true"));
  }

  function press(pinned) {
    pin.setAttribute("aria-pressed", String(Boolean(pinned)));
    put(pin, pinned ? "◆" : "◇");
  }

  function update(row) {
    const [word, says] = KEPT[row.kept] ?? ["metadata", "Only metadata is kept"];
    const texts = {
      key: row.key ?? "", tokens: row.input || row.output ? `${count(row.input ?? 0)} / ${count(row.output ?? 0)}` : "",
      calls: counted(row.calls ?? []), notes: (row.notes ?? []).join(", "),
    };
    for (const [kind, text] of Object.entries(texts)) put(cells[kind], text, text);
    put(client, short(row.client), row.client);
    put(way, `${row.dialect}${row.transport ? " (ws)" : ""}${row.background ? " (bg)" : ""} › ${row.backend ?? "–"}`);
    put(total, duration(row.ms));
    put(first, row.first_ms ? `first ${duration(row.first_ms)}` : "");
    const question = asked.get(id);
    put(side, question?.side ? `${question.side} ` : "");
    put(words, question ? questionOf(question) : "", question?.text);
    cells.asked.classList.toggle("soft", Boolean(question) && !question.is_new);
    put(time, clock(row.at), `${day(row.at)}, ${clock(row.at)}`);
    put(date, isToday(row.at) ? "" : day(row.at));
    put(link, row.model || "no model", row.model);
    put(replay, row.replay_of && row.replay_of !== "form" ? "replay" : "");
    put(code, row.kept === "running" ? "running" : String(row.status));
    put(error, row.error ?? "", row.error);
    put(kept, word, says);
    pin.hidden = row.kept === "running";
    press(row.pinned);
    element.className = `row ${state(row)}${row.pinned ? " pinned" : ""}`;
  }

  return { element, link, update };
}

function state(row) {
  if (row.kept === "running") return "live";
  return row.status >= 400 || row.error ? "bad" : row.notes ? "noted" : "good";
}

// What was asked; a turn that goes on with a task has results instead.
function questionOf({ text, is_new: isNew, results }) {
  return isNew ? text : `↳ ${results ? plural(results, "result") : "goes on"}: ${text}`;
}

// Sets a text only if it differs, because it may be selected.
function put(element, text, title) {
  const clean = readable(text);
  if (element.textContent !== clean) element.textContent = clean;
  if (title && element.title !== readable(title)) element.title = readable(title);
}

function isToday(seconds) {
  return new Date(seconds * 1000).toDateString() === new Date().toDateString();
}

function day(seconds) {
  return new Date(seconds * 1000).toLocaleDateString("en", { month: "short", day: "numeric" });
}

function short(client) {
  return (client ?? "").split(/[\s(/]/)[0].slice(0, 30);
}
