// How the backends do, and a check of one.

import { get, post } from "./api.js";
import { clear, clock, count, duration, h, plural, readable, s, say } from "./dom.js";

const EVERY = 3000;

export async function backends(main) {
  const cards = h("div", { class: "cards" });
  const report = h("div", {});
  clear(main, h("h1", {}, "Backends"), report, cards);
  let timer;
  let ended = false;
  let checking = false;

  async function tick() {
    const found = await get("backends");
    if (ended) return;
    const focused = document.activeElement?.dataset?.backend;
    clear(cards, found.map((each) => card(each, check)));
    if (focused) cards.querySelector(`[data-backend="${CSS.escape(focused)}"]`)?.focus();
    timer = setTimeout(() => tick().catch(() => {}), EVERY);
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
      h("details", { open: !state.has_report }, h("summary", {}, "What the command said"), h("pre", { tabindex: "0", "aria-label": "What the command said" }, readable(state.said)))));
  }

  await tick();
  const first = await get("check").catch(() => ({}));
  if (first.backend) follow();
  return () => { ended = true; clearTimeout(timer); };
}

function card(each, check) {
  const last = each.turns.at(-1);
  const failed = each.turns.filter(([, , , status]) => status >= 500).length;
  const state = each.cooling ? ["bad", `cooling down, ${Math.ceil(each.cooling)} s`] : !last ? (each.failovers ? ["bad", "failing"] : ["", "not asked yet"]) : last[3] >= 500 ? ["bad", "failing"] : ["good", "answering"];
  const models = each.models.length > 12 ? [...each.models.slice(0, 12), `and ${each.models.length - 12} more`] : each.models;
  return h("section", {}, h("h2", {}, readable(each.name), " ", h("span", { class: `chip ${state[0]}` }, state[1])),
    h("dl", { class: "facts" },
      fact("Kind", each.kind), fact("Address", each.url), fact("Turns seen", count(each.turns.length)), fact("Failed", count(failed)), fact("Failed over", count(each.failovers)),
      last ? fact("Last turn", `${clock(last[0])}, status ${last[3]}${last[4] ? ` ${last[4]}` : ""}`) : null,
      fact("First bytes p50", duration(middle(each.turns.map((turn) => turn[1]).filter(Boolean)))), fact("Models", models.join(", "))),
    plot(each.turns),
    each.checkable ? h("button", { type: "button", "data-backend": each.name, onclick: () => check(each.name) }, `Check ${each.name}`) : null);
}

function fact(name, value) {
  return value ? [h("dt", {}, name), h("dd", {}, readable(value))] : null;
}

function middle(numbers) {
  return numbers.sort((one, other) => one - other)[Math.floor(numbers.length / 2)];
}

function plot(turns) {
  const timed = turns.filter((turn) => turn[1] || turn[2]);
  if (timed.length < 2) return null;
  const most = Math.max(...timed.map((turn) => turn[1] || turn[2]));
  const [from, to] = [timed[0][0], timed.at(-1)[0]];
  const dots = timed.map(([at, first, all, status]) => s("circle", { class: `dot${status >= 400 ? " bad" : ""}`, cx: `${1 + 98 * (at - from) / Math.max(0.001, to - from)}%`, cy: 66 - 56 * (first || all) / most, r: 2.5 }, s("title", {}, `${clock(at)}: ${duration(first || all)}`)));
  return s("svg", { class: "plot", height: 84, role: "img", "aria-label": `Time to the first bytes of ${plural(timed.length, "turn")}, at most ${duration(most)}` },
    s("rect", { class: "axis", x: 0, y: 68, width: "100%", height: 1 }), dots, s("text", { x: 0, y: 10 }, duration(most)), s("text", { x: 0, y: 80 }, clock(from)), s("text", { x: "100%", y: 80, "text-anchor": "end" }, clock(to)));
}
