// The state of the backends, and checks of them.

import { get, post, urlOf } from "./api.js";
import { clear, clock, count, duration, h, plural, s } from "./dom.js";
import { polled } from "./poll.js";
import { turnsAddress } from "./turns.js";

const EVERY = 3000;
const CHECKED_EVERY = 1000;

export async function backends(main) {
  const cards = h("div", { class: "cards" });
  const drawn = new Map(); // the card of each backend, by its name
  let ended = false;
  let following = false;
  const poll = polled(EVERY, async () => {
    for (const each of await get("backends")) {
      if (!drawn.has(each.name)) add(each.name);
      drawn.get(each.name).update(each);
    }
  });
  clear(main, h("h1", {}, "Backends"), poll.stale, cards);

  function add(name) {
    const made = card(name, () => check(name));
    drawn.set(name, made);
    cards.append(made.element);
  }

  async function check(name) {
    const { report } = drawn.get(name);
    allow(false);
    clear(report, progress({ backend: name }));
    report.scrollIntoView({ block: "nearest" });
    report.focus({ preventScroll: true }); // the button, which had the focus, is disabled
    try {
      await post(`backends/${encodeURIComponent(name)}/check`, {});
      await follow();
      report.scrollIntoView({ block: "nearest" });
    } catch (error) {
      clear(report, h("p", { class: "bad", role: "alert" }, error.message));
      allow(true);
    }
  }

  // One check at a time.
  function allow(isAllowed) {
    for (const { button } of drawn.values()) button.disabled = !isAllowed;
  }

  // Shows the running check, or the last one, until it ends.
  async function follow() {
    if (following) return;
    following = true;
    try {
      for (;;) {
        const state = await get("check");
        if (ended || !state.backend) return;
        allow(!state.running);
        for (const [name, made] of drawn) made.show(name === state.backend ? state : undefined);
        if (!state.running) return;
        await new Promise((resolve) => setTimeout(resolve, CHECKED_EVERY));
      }
    } finally { following = false; }
  }

  await poll.now();
  follow().catch(() => {}); // viewers without the right to check see no report
  return () => { ended = true; poll.stop(); };
}

// A turn is [when, first token, total, status, error]. A backend has failed if it refused the gateway's key or its rate
// (401, 403, 408, 429), had an error of its own (5xx), or broke off an answer that had begun. Other 4xx are faults
// of the client's request, and with 499 the client left.
const REFUSALS = new Set([401, 403, 408, 429]);
function hasFailed([, , , status, error]) {
  return status >= 500 || REFUSALS.has(status) || (Boolean(error) && status < 400);
}

// The state in words: a kind and a text.
export function health({ unavailable, cooling, failovers, turns }) {
  if (unavailable) return ["bad", `unavailable: ${unavailable}`];
  if (cooling) return ["bad", `cooling down for ${Math.ceil(cooling)} s`];
  if (!turns.length) return failovers ? ["bad", "failing"] : ["", "not asked yet"];
  if (hasFailed(turns.at(-1))) return ["bad", "failing"];
  return turns.slice(-20).some(hasFailed) ? ["noted", "answering, some turns failed"] : ["good", "answering"];
}

// The card of one backend. It is redrawn only when something changed, so that nothing moves under the reader.
function card(name, check) {
  const facts = h("div");
  const button = h("button", { type: "button", hidden: true, onclick: check }, `Check ${name}`);
  const report = h("div", { class: "report", tabindex: "-1" });
  const element = h("section", { class: "backend", "data-name": name }, facts, button, report);
  let known;
  let shown;

  function update(each) {
    const now = JSON.stringify(each);
    if (now === known) return;
    known = now;
    button.hidden = !each.checkable;
    clear(facts, about(each));
  }

  function show(state) {
    const now = state && JSON.stringify(state);
    if (now === shown) return;
    shown = now;
    element.classList.toggle("reported", Boolean(state?.has_report));
    clear(report, !state ? null : state.running ? progress(state) : outcome(state));
  }

  return { element, button, report, update, show };
}

function about(each) {
  const { turns, failovers, models } = each;
  const [kind, words] = health(each);
  const bad = turns.filter(hasFailed);
  const failures = bad.length + failovers;
  const asked = turns.length + failovers;
  const times = (name) => `p50 ${duration(each[`${name}_p50`])}, p99 ${duration(each[`${name}_p99`])}`;
  const said = ([at, , , status, error]) => `${clock(at)}, ${status || "no status"}${error ? ` ${error}` : ""}`;
  return [h("h2", {}, each.name, " ", h("span", { class: `chip ${kind}` }, words)),
    h("dl", { class: "facts" },
      fact("Kind", each.kind), fact("Address", each.url),
      fact("Failures", asked ? `${count(failures)} of ${count(asked)} (${Math.round(100 * failures / asked)} %)${failovers ? `, ${count(failovers)} answered by others` : ""}` : ""),
      bad.length ? fact("Last failure", said(bad.at(-1))) : null,
      turns.length ? [fact("Last turn", said(turns.at(-1))), fact("First token", times("first")), fact("Total", times("total"))] : null,
      fact("Models", [...models.slice(0, 12), ...(models.length > 12 ? [`and ${models.length - 12} more`] : [])].join(", "))),
    plot(turns)];
}

function fact(name, value) {
  return value ? [h("dt", {}, name), h("dd", {}, value)] : null;
}

function progress({ backend, budget, through_gateway: throughGateway }) {
  return h("div", { role: "status" }, h("h3", {}, `Checking ${backend}…`), h("progress", { "aria-label": `Check of ${backend}` }),
    budget ? h("p", { class: "soft" }, `At most ${budget} requests, usually less than a minute.`) : null, throughGateway ? itsTurns() : null);
}

function itsTurns() {
  return h("p", { class: "soft" }, "The requests go through this gateway: they are ",
    h("a", { href: turnsAddress("client:toolwire-check") }, "turns of the client toolwire-check"), ".");
}

function outcome(state) {
  const result = state.code === 0 ? "all rules passed" : state.code === 1 ? "some rules are broken" : "it could not be checked";
  return [h("h3", {}, `Check of ${state.backend}: ${result}`), state.through_gateway ? itsTurns() : null,
    state.has_report ? [h("p", {}, h("a", { href: urlOf("api/check/report"), target: "_blank", rel: "noopener" }, "Open the report by itself")), h("iframe", { src: urlOf(`api/check/report?at=${Date.now()}`), title: `Report of the check of ${state.backend}`, sandbox: "" })] : null,
    h("details", { open: !state.has_report }, h("summary", {}, "Output of toolwire check"), h("pre", { tabindex: "0", "aria-label": "Output of toolwire check" }, state.said))];
}

// Times on a logarithmic scale with a line at each power of ten, so that one slow turn does not flatten all others.
const [TOP, BOTTOM] = [22, 84]; // of the scale
function plot(turns) {
  const timed = turns.map((turn) => ({ at: turn[0], ms: turn[1] || turn[2], failed: hasFailed(turn) })).filter(({ ms }) => ms);
  if (timed.length < 2) return null;
  const [least, most] = [Math.min, Math.max].map((of) => of(...timed.map(({ ms }) => ms)));
  const low = Math.floor(Math.log10(least));
  const high = Math.max(low + 1, Math.ceil(Math.log10(most)));
  const [from, to] = [timed[0].at, timed.at(-1).at];
  const y = (ms) => BOTTOM - (BOTTOM - TOP) * (Math.log10(ms) - low) / (high - low);
  const powers = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
  const lines = powers.map((ms) => [s("rect", { class: "axis", x: "15%", y: y(ms), width: "85%", height: 1 }), s("text", { x: "14%", y: y(ms) + 4, "text-anchor": "end" }, round(ms))]);
  const dots = timed.map(({ at, ms, failed }) => s("circle", { class: `dot${failed ? " bad" : ""}`, cx: `${17 + 81 * (at - from) / Math.max(0.001, to - from)}%`, cy: y(ms), r: 2.5 }, s("title", {}, `${clock(at)}: ${duration(ms)}`)));
  return s("svg", { class: "plot", height: 102, role: "img", "aria-label": `Time to the first token, or to the end of plain turns, of ${plural(timed.length, "turn")}, from ${duration(least)} to ${duration(most)}` },
    s("text", { x: 0, y: 10 }, `First token, or end of plain turns: ${duration(least)} to ${duration(most)}, logarithmic scale`), lines, dots,
    s("text", { x: "15%", y: 99 }, clock(from)), s("text", { x: "100%", y: 99, "text-anchor": "end" }, clock(to)));
}

function round(ms) {
  return ms < 1000 ? `${ms} ms` : `${ms / 1000} s`;
}
