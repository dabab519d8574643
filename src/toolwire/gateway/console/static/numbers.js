// Sums: of the last hour, and since the gateway started.

import { get } from "./api.js";
import { clear, clock, count, duration, h, readable, s } from "./dom.js";

const EVERY = 5000;

export async function numbers(main) {
  const body = h("div", {});
  clear(main, h("h1", {}, "Numbers"), body);
  let timer;
  let ended = false;
  async function tick() {
    const found = await get("numbers");
    if (ended) return;
    clear(body,
      found.own ? h("p", { class: "note" }, "These are the turns of your own key that are still kept.") : null,
      found.own ? null : [h("h2", {}, "The last hour"), plot(found.minutes), block(found.hour)],
      h("h2", {}, found.own ? "Your turns" : `Since ${new Date(found.since * 1000).toISOString().slice(0, 10)} ${clock(found.since)}`), block(found.start));
    timer = setTimeout(() => tick().catch(() => {}), EVERY);
  }
  await tick();
  return () => { ended = true; clearTimeout(timer); };
}

function block(sums) {
  const tiles = [
    ["Turns", count(sums.turns)], ["Errors", `${count(sums.errors)}${sums.turns ? ` (${Math.round(100 * sums.errors / sums.turns)} %)` : ""}`],
    ["Tokens in", count(sums.input)], ["of them cached", count(sums.cached)], ["Tokens out", count(sums.output)],
    ["First bytes p50", duration(sums.first_p50)], ["First bytes p99", duration(sums.first_p99)], ["Total p50", duration(sums.total_p50)], ["Total p99", duration(sums.total_p99)],
  ];
  const tools = Object.entries(sums.tools);
  const notes = Object.entries(sums.notes);
  return [
    h("ul", { class: "tiles" }, tiles.map(([name, value]) => h("li", {}, h("b", {}, value), name))),
    h("div", { class: "cards" },
      h("section", {}, h("h3", {}, "Calls by tool"), tools.length ? table(["Tool", "Calls", "Results", "Failed"],
        tools.map(([name, each]) => [readable(name), count(each.calls), count(each.results), each.results ? `${count(each.failed)} (${Math.round(100 * each.failed / each.results)} %)` : "–"])) : h("p", { class: "soft" }, "None.")),
      h("section", {}, h("h3", {}, "Turns with notes"), notes.length ? table(["Note", "Turns"], notes.map(([code, number]) => [h("a", { href: `#/notes/${code}` }, code), count(number)])) : h("p", { class: "soft" }, "None."))),
  ];
}

function table(names, rows) {
  const cell = (tag, value, index, extra = {}) => h(tag, { class: index ? "number" : null, ...extra }, value);
  return h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, names.map((name, index) => cell("th", name, index, { scope: "col" })))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, index) => cell("td", value, index)))))));
}

function plot(minutes) {
  const now = Math.floor(Date.now() / 60000);
  const by = new Map(minutes.map(([minute, turns, errors]) => [minute, [turns, errors]]));
  const most = Math.max(1, ...minutes.map(([, turns]) => turns));
  const shapes = [s("rect", { class: "axis", x: 0, y: 80, width: "100%", height: 1 })];
  for (let index = 0; index < 60; index += 1) {
    const [turns, errors] = by.get(now - 59 + index) ?? [0, 0];
    const x = `${index / 60 * 100}%`;
    if (turns) shapes.push(s("rect", { class: "turns", x, y: 80 - 70 * turns / most, width: "1.3%", height: 70 * turns / most }));
    if (errors) shapes.push(s("rect", { class: "errors", x, y: 80 - 70 * errors / most, width: "1.3%", height: 70 * errors / most }));
  }
  shapes.push(s("text", { x: 0, y: 94 }, "an hour ago"), s("text", { x: "100%", y: 94, "text-anchor": "end" }, "now"), s("text", { x: 0, y: 10 }, `${most} a minute`));
  return h("section", {}, s("svg", { class: "plot", height: 98, role: "img", "aria-label": `Turns by minute, at most ${most}` }, shapes));
}
