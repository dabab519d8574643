// The list of turns, live.

import { me, post } from "./api.js";
import { bytesOf, clear, clock, count, counted, duration, h, plural, readable, say, size } from "./dom.js";
import { filter } from "./filter.js";
import { list } from "./list.js";
import { polled } from "./poll.js";
import { all, facts, known, pin as pinTurn, refresh, running } from "./rows.js";

const EVERY = 1000;
const COLUMNS = [
  ["Time", "time"], ["Status", "status"], ["Key", "key"], ["Client", "client"], ["Dialect › backend", "way"], ["Model", "model"], ["First", "first"], ["Total", "total"],
  ["Tokens", "tokens"], ["Calls", "calls"], ["Notes", "notes"], ["Kept", "kept"],
];
const KEPT = {
  running: ["", "Running"], whole: ["whole", "All content is kept"], cut: ["part", "A part of the content is kept: this turn, or those that ran with it, were very long"],
  large: ["metadata", "Only metadata is kept: the content is too large"], failed: ["metadata", "Only metadata is kept: the content could not be prepared"],
};

// These survive a change of view: the filter with the position in the list, and the rows of a pause, by id.
let left;
let paused;

export async function turns(main) {
  const who = await me();
  let typed = sessionStorage.getItem("filter") ?? "";
  const head = h("div", { class: "row head", role: "row" }, COLUMNS.map(([name, kind]) => h("span", { class: `c-${kind}`, role: "columnheader" }, name)));
  const rows = list("Turns", head, line);
  rows.element.classList.toggle("keyless", !who.has_keys);
  const about = h("p", { class: "soft about" });
  const empty = h("p", { class: "empty" });
  const search = h("input", { type: "search", id: "filter", value: typed, placeholder: "Filter: demo status>=400 ms>1000 -note:retried pinned", autocomplete: "off", spellcheck: "false",
    oninput: () => {
      typed = search.value;
      sessionStorage.setItem("filter", typed);
      rows.toTop();
      draw();
    } });
  const pause = h("button", { type: "button", onclick: () => {
    paused = paused ? undefined : new Map(all().map((row) => [row.id, row]));
    draw();
  } });
  const poll = polled(EVERY, async () => {
    await refresh();
    draw();
  });

  // During a pause no rows are added; those in the list are still updated.
  function draw() {
    const now = all();
    const every = paused ? [...paused.values()].map((row) => known.get(row.id) ?? running.get(row.id) ?? row) : now;
    const matches = typed.trim() ? filter(typed) : () => true;
    const added = paused ? now.filter((row) => !paused.has(row.id) && matches(row)).length : 0;
    pause.setAttribute("aria-pressed", String(Boolean(paused)));
    put(pause, paused ? `Resume${added ? ` (${count(added)} new)` : ""}` : "Pause");
    const shown = every.filter(matches);
    about.textContent = said(shown.length, every.length, who);
    empty.textContent = shown.length ? "" : every.length ? "No turn matches." : "No turns yet. Send a request to the gateway, or use Try it.";
    rows.set(shown);
  }

  clear(main, h("h1", {}, "Turns"),
    h("div", { class: "tools" }, h("label", { for: "filter", class: "hidden" }, "Filter"), search, pause, who.keeps_everything ? null : capture(poll)),
    about, poll.stale, empty, rows.element);
  window.addEventListener("resize", draw);
  await poll.now();
  if (left?.typed === typed) rows.restore(left.position);
  return () => {
    if (all().length) left = { typed, position: rows.position() };
    poll.stop();
    window.removeEventListener("resize", draw);
  };
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
  const [time, date, code, error, replay, kept] = [h("span"), h("small"), h("b"), h("small"), h("small", { class: "tag" }), h("span", { class: "mark" })];
  const pin = h("button", { type: "button", class: "pin", tabindex: "-1", "aria-label": "Pin", title: "Pin (k)", onclick: toggle });
  const inside = { time: [date, time], model: [link, " ", replay], status: [code, error], kept: [kept, pin] };
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
      key: row.key ?? "", client: short(row.client), way: `${row.dialect}${row.transport ? " (ws)" : ""}${row.background ? " (bg)" : ""} › ${row.backend ?? "–"}`,
      first: duration(row.first_ms), total: duration(row.ms), tokens: row.input || row.output ? `${count(row.input ?? 0)} / ${count(row.output ?? 0)}` : "",
      calls: counted(row.calls ?? []), notes: (row.notes ?? []).join(", "),
    };
    for (const [kind, text] of Object.entries(texts)) put(cells[kind], text, kind === "client" ? row.client : text);
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
