// How the backends do, and a check of one.

import { get, post } from "./api.js";
import { clear, clock, count, duration, h, plural, s, say } from "./dom.js";
import { polled } from "./poll.js";

const EVERY = 3000;

export async function backends(main) {
  const cards = h("div", { class: "cards" });
  const report = h("div", {});
  const drawn = new Map();
  let ended = false;
  let checking = false;
  const poll = polled(EVERY, async () => {
    for (const each of await get("backends")) update(each);
  });
  clear(main, h("h1", {}, "Backends"), poll.stale, report, cards);

  // A card is made anew only if something changed, so that nothing jumps while one reads.
  function update(each) {
    const now = JSON.stringify(each);
    const before = drawn.get(each.name);
    if (before?.now === now) return;
    const element = card(each, check);
    const focused = before?.element.contains(document.activeElement);
    if (before) before.element.replaceWith(element);
    else cards.append(element);
    drawn.set(each.name, { now, element });
    if (focused) element.querySelector("button")?.focus();
  }

  async function check(name, model) {
    try {
      await post(`backends/${encodeURIComponent(name)}/check`, { model });
      await follow();
    } catch (error) { say(error.message); }
  }

  async function follow() {
    if (checking) return;
    checking = true;
    try {
      for (;;) {
        const state = await get("check");
        if (ended || !state.backend) return;
        draw(state);
        if (!state.running) return;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    } finally { checking = false; }
  }

  function draw(state) {
    if (state.running) return clear(report, h("section", { role: "status" }, h("h2", {}, `Checking ${state.backend}…`), h("p", { class: "soft" }, "This takes a minute or two.")));
    const result = state.code === 0 ? "sound" : state.code === 1 ? "some rules are broken" : "it could not be checked";
    return clear(report, h("section", {}, h("h2", {}, `Check of ${state.backend}: ${result}`),
      state.has_report ? [h("p", {}, h("a", { href: "/console/api/check/report", target: "_blank", rel: "noopener" }, "Open the report by itself")), h("iframe", { src: `/console/api/check/report?at=${Date.now()}`, title: `Report of the check of ${state.backend}`, sandbox: "" })] : null,
      h("details", { open: !state.has_report }, h("summary", {}, "What the command said"), h("pre", { tabindex: "0", "aria-label": "What the command said" }, state.said))));
  }

  await poll.now();
  const first = await get("check").catch(() => ({}));
  if (first.backend) follow();
  return () => { ended = true; poll.stop(); };
}

// A turn is [when, first bytes, total, status, error].
const hasFailed = ([, , , status, error]) => Boolean(error) || status >= 500;

// How it does, in words: a kind and a text.
export function health({ cooling, failovers, turns }) {
  if (cooling) return ["bad", `cooling down for ${Math.ceil(cooling)} s`];
  if (!turns.length) return failovers ? ["bad", "failing"] : ["", "not asked yet"];
  if (hasFailed(turns.at(-1))) return ["bad", "failing"];
  return turns.slice(-20).some(hasFailed) ? ["noted", "answering, not always"] : ["good", "answering"];
}

export function percentile(numbers, share) {
  const sorted = numbers.filter(Boolean).sort((one, other) => one - other);
  return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)];
}

function card(each, check) {
  const { turns, failovers, models } = each;
  const [kind, words] = health(each);
  const bad = turns.filter(hasFailed);
  const failures = bad.length + failovers;
  const asked = turns.length + failovers;
  const times = (index) => `p50 ${duration(percentile(turns.map((turn) => turn[index]), 0.5))}, p99 ${duration(percentile(turns.map((turn) => turn[index]), 0.99))}`;
  const said = ([at, , , status, error]) => `${clock(at)}, ${status || "no status"}${error ? ` ${error}` : ""}`;
  return h("section", { class: "backend" }, h("h2", {}, each.name, " ", h("span", { class: `chip ${kind}` }, words)),
    h("dl", { class: "facts" },
      fact("Kind", each.kind), fact("Address", each.url),
      fact("Failures", asked ? `${count(failures)} of ${count(asked)} (${Math.round(100 * failures / asked)} %)${failovers ? `, ${count(failovers)} answered by others` : ""}` : ""),
      bad.length ? fact("Last failure", said(bad.at(-1))) : null,
      turns.length ? [fact("Last turn", said(turns.at(-1))), fact("First bytes", times(1)), fact("Total", times(2))] : null,
      fact("Models", [...models.slice(0, 12), ...(models.length > 12 ? [`and ${models.length - 12} more`] : [])].join(", "))),
    plot(turns),
    each.checkable ? h("button", { type: "button", onclick: () => check(each.name) }, `Check ${each.name}`) : null);
}

function fact(name, value) {
  return value ? [h("dt", {}, name), h("dd", {}, value)] : null;
}

function plot(turns) {
  const timed = turns.filter((turn) => turn[1] || turn[2]);
  if (timed.length < 2) return null;
  const most = Math.max(...timed.map((turn) => turn[1] || turn[2]));
  const [from, to] = [timed[0][0], timed.at(-1)[0]];
  const dots = timed.map((turn) => s("circle", { class: `dot${hasFailed(turn) ? " bad" : ""}`, cx: `${2 + 96 * (turn[0] - from) / Math.max(0.001, to - from)}%`, cy: 82 - 58 * (turn[1] || turn[2]) / most, r: 2.5 },
    s("title", {}, `${clock(turn[0])}: ${duration(turn[1] || turn[2])}`)));
  return s("svg", { class: "plot", height: 102, role: "img", "aria-label": `Time to the first bytes of ${plural(timed.length, "turn")}, at most ${duration(most)}` },
    s("text", { x: 0, y: 10 }, `First bytes, at most ${duration(most)}`), s("rect", { class: "axis", x: 0, y: 86, width: "100%", height: 1 }), dots,
    s("text", { x: 0, y: 99 }, clock(from)), s("text", { x: "100%", y: 99, "text-anchor": "end" }, clock(to)));
}
