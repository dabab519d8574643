// The list of turns, live. Only the rows in sight are in the page, so that many thousand of them scroll.

import { get, me, post } from "./api.js";
import { clear, clock, count, duration, h, plural, readable, say, size } from "./dom.js";

const EVERY = 1000;
const MOST = 20000;
const FIELDS = {
  key: (row) => row.key, client: (row) => row.client, dialect: (row) => row.dialect, backend: (row) => row.backend,
  model: (row) => row.model, status: (row) => row.status || "running", note: (row) => row.notes?.join(" "),
  tool: (row) => row.calls?.join(" "), error: (row) => row.error, session: (row) => row.session, worker: (row) => row.worker,
  id: (row) => row.id, transport: (row) => row.transport, reason: (row) => row.reason,
};
const COLUMNS = [
  ["Time", "time"], ["Key", "key"], ["Client", "client"], ["Dialect › backend", "way"], ["Model", "model"],
  ["First", "number"], ["Total", "number"], ["Tokens", "number"], ["Calls", "calls"], ["Notes", "notes"], ["Status", "status"],
];

// Rows by id, for all views: they are fetched once and then only what changed.
export const known = new Map();
const cursors = {};
let running = [];
let facts = {};

export async function refresh() {
  let more = true;
  while (more) {
    const answer = await get(`turns?after=${encodeURIComponent(JSON.stringify(cursors))}`);
    more = false;
    running = [];
    facts = { bytes: 0, busy: 0, capturing: 0, now: answer.now };
    for (const worker of answer.workers) {
      cursors[worker.process] = worker.seq;
      for (const row of worker.rows) known.set(row.id, row);
      running.push(...worker.running);
      more ||= worker.more;
      facts.bytes += worker.kept_bytes;
      facts.busy += worker.busy;
      facts.capturing = Math.max(facts.capturing, worker.capturing);
    }
  }
  while (known.size > MOST) known.delete(known.keys().next().value);
}

export function matches(row, filter) {
  return filter.trim().toLowerCase().split(/\s+/).every((word) => {
    const [, field, wanted] = /^(\w+):(.*)$/.exec(word) ?? [];
    if (field && Object.hasOwn(FIELDS, field)) return String(FIELDS[field](row) ?? "").toLowerCase().includes(wanted);
    return Object.values(FIELDS).some((read) => String(read(row) ?? "").toLowerCase().includes(word));
  });
}

export async function turns(main) {
  const who = await me();
  let filter = sessionStorage.getItem("filter") ?? "";
  let paused = false;
  let shown = [];
  const spacer = h("div", { class: "spacer" });
  const body = h("div", { class: "rows", role: "rowgroup" });
  const head = h("div", { class: "row head", role: "row" }, COLUMNS.map(([name, kind]) => h("span", { class: `c-${kind}`, role: "columnheader" }, name)));
  const grid = h("div", { class: "grid", role: "table", "aria-label": "Turns" }, h("div", { role: "rowgroup" }, head), body);
  const scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "List of turns" }, grid, spacer);
  const about = h("p", { class: "soft about" });
  const search = h("input", { type: "search", id: "filter", value: filter, placeholder: "Filter: demo status:200 note:retried", autocomplete: "off",
    oninput: (event) => { filter = event.target.value; sessionStorage.setItem("filter", filter); draw(); } });
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) tick();
  } }, "Pause");

  function rowHeight() {
    return matchMedia("(max-width: 48rem)").matches ? 84 : 36;
  }

  function draw() {
    const all = [...running, ...[...known.values()].sort((a, b) => b.at - a.at)];
    const ids = new Set();
    shown = all.filter((row) => !ids.has(row.id) && ids.add(row.id) && (!filter.trim() || matches(row, filter)));
    about.textContent = [
      `${plural(shown.length, "turn")}${filter.trim() ? ` of ${count(ids.size)}` : ""}`,
      `${size(facts.bytes ?? 0)} of ${who.max_size} kept`,
      facts.busy ? `${count(facts.busy)} kept without their content under load` : "",
      who.keeps_everything ? "" : facts.capturing ? `the next ${facts.capturing} are kept whole` : "only facts are kept",
    ].filter(Boolean).join(" · ");
    spacer.style.height = `${Math.max(0, shown.length * rowHeight())}px`;
    window_();
  }

  function window_() {
    const height = rowHeight();
    const first = Math.max(0, Math.floor(scroller.scrollTop / height) - 10);
    const last = Math.min(shown.length, first + Math.ceil(scroller.clientHeight / height) + 20);
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
    body.style.transform = `translateY(${first * height}px)`;
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    clear(body, shown.slice(first, last).map((row, index) => line(row, first + index)));
    if (shown.length === 0) clear(body, h("div", { class: "row empty", role: "row" }, h("span", { role: "cell" }, filter.trim() ? "No turn matches." : "No turns yet. Ask the gateway something, or use Try it.")));
    if (focused) body.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  function line(row, index) {
    const live = row.kept === "running";
    const cells = [
      live ? "now" : clock(row.at), row.key ?? "", short(row.client), `${row.dialect}${row.transport ? " (ws)" : ""}${row.background ? " (bg)" : ""} › ${row.backend ?? "–"}`,
      row.model ?? "", duration(row.first_ms), duration(row.ms), row.input || row.output ? `${count(row.input ?? 0)} / ${count(row.output ?? 0)}` : "",
      row.calls?.join(", ") ?? "", row.notes?.join(", ") ?? "",
      live ? "running" : `${row.status}${row.error ? ` ${row.error}` : ""}`,
    ];
    const state = live ? "live" : row.status >= 400 || row.error ? "bad" : row.notes ? "noted" : "good";
    return h("a", { class: `row ${state}${row.pinned ? " pinned" : ""}`, role: "row", href: live ? null : `#/turn/${row.id}`, "data-id": row.id, "aria-rowindex": index + 2,
      tabindex: live ? "-1" : "0", onkeydown: move },
    cells.map((text, column) => h("span", { class: `c-${COLUMNS[column][1]}`, role: "cell", "data-name": COLUMNS[column][0], title: text.length > 18 ? readable(text) : null }, readable(text))));
  }

  function move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = step > 0 ? event.currentTarget.nextElementSibling : event.currentTarget.previousElementSibling;
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "nearest" });
  }

  const capture = who.keeps_everything ? null : h("form", { class: "inline", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post("capture", { count: Number(number.value) });
      say(`The next ${number.value} turns are kept whole.`);
      await tick();
    } catch (error) { say(error.message); }
  } }, h("label", { for: "number" }, "Capture the next"));
  const number = h("input", { id: "number", type: "number", min: "0", max: "1000", value: "10" });
  capture?.append(number, h("button", {}, "turns whole"));

  clear(main,
    h("h1", {}, "Turns"),
    h("div", { class: "tools" }, h("label", { for: "filter", class: "hidden" }, "Filter"), search, pause, capture),
    about, scroller);
  scroller.addEventListener("scroll", window_, { passive: true });
  window.addEventListener("resize", draw);

  let timer;
  let ended = false;
  async function tick() {
    clearTimeout(timer);
    try {
      if (!document.hidden) {
        await refresh();
        if (!ended && !paused) draw();
      }
    } catch (error) { say(error.message); }
    if (!ended && !paused) timer = setTimeout(tick, EVERY);
  }
  await tick();
  return () => {
    ended = true;
    clearTimeout(timer);
    window.removeEventListener("resize", draw);
  };
}

function short(client) {
  return (client ?? "").split(/[\s(]/)[0].slice(0, 30);
}
