// Sums: of the last hour, and since the gateway started.

import { get } from "./api.js";
import { clear, clock, count, duration, h, s } from "./dom.js";
import { polled } from "./poll.js";
import { table } from "./table.js";

const EVERY = 5000;

export async function numbers(main) {
  const body = h("div", { class: "sums" });
  const poll = polled(EVERY, async () => draw(body, await get("numbers")));
  clear(main, h("h1", {}, "Numbers"), poll.stale, body);
  await poll.now();
  return poll.stop;
}

function draw(body, found) {
  const since = `${new Date(found.since * 1000).toLocaleDateString("en-CA")} ${clock(found.since)}`;
  clear(body,
    found.own ? h("p", { class: "note" }, "These are the turns of your own key that are still in memory.") : null,
    found.own ? null : [h("h2", {}, "The last hour"), plot(found.minutes), block(found.hour, "in the last hour")],
    h("h2", {}, found.own ? "Your turns" : `Since ${since}`), block(found.start, found.own ? "still kept" : "since the start"));
}

function block(sums, span) {
  const share = (part, whole) => (whole ? `${Math.round(100 * part / whole)} %` : "–");
  const tiles = [
    ["Turns", count(sums.turns), span], ["Errors", count(sums.errors), `${share(sums.errors, sums.turns)} of the turns`],
    ["Tokens in", count(sums.input), `${count(sums.cached)} cached`], ["Tokens out", count(sums.output), sums.turns ? `${count(Math.round(sums.output / sums.turns))} a turn` : "–"],
    ["First token, p50", duration(sums.first_p50), `p99 ${duration(sums.first_p99)}`], ["Total, p50", duration(sums.total_p50), `p99 ${duration(sums.total_p99)}`],
  ];
  const tools = Object.entries(sums.tools).map(([name, each]) => [name, count(each.calls), count(each.results), each.results ? `${count(each.failed)} (${share(each.failed, each.results)})` : "–"]);
  const notes = Object.entries(sums.notes).map(([code, number]) => [h("a", { href: `#/notes/${code}` }, code), count(number)]);
  return [
    h("ul", { class: "tiles" }, tiles.map(([name, value, more]) => h("li", {}, h("span", {}, name), h("b", {}, value), h("small", {}, more)))),
    h("div", { class: "columns two" },
      listed("Calls by tool", span, [["Tool", "text"], ["Calls", "number"], ["Results", "number"], ["Failed", "number"]], tools),
      listed("Turns with notes", span, [["Note", "text"], ["Turns", "number"]], notes)),
  ];
}

function listed(name, span, columns, rows) {
  return h("section", {}, h("h3", {}, name), rows.length ? table(`${name}, ${span}`, columns, rows, { small: true }) : h("p", { class: "soft" }, "None."));
}

function plot(minutes) {
  const now = Math.floor(Date.now() / 60000);
  const by = new Map(minutes.map(([minute, turns, errors]) => [minute, [turns, errors]]));
  const most = Math.max(1, ...minutes.map(([, turns]) => turns));
  const shapes = [s("rect", { class: "axis", x: 0, y: 88, width: "100%", height: 1 })];
  const bar = (kind, index, number) => s("rect", { class: kind, x: `${index / 60 * 100}%`, y: 88 - 68 * number / most, width: "1.3%", height: 68 * number / most });
  for (let index = 0; index < 60; index += 1) {
    const [turns, errors] = by.get(now - 59 + index) ?? [0, 0];
    if (turns) shapes.push(bar("turns", index, turns));
    if (errors) shapes.push(bar("errors", index, errors));
  }
  shapes.push(s("text", { x: 0, y: 102 }, "an hour ago"), s("text", { x: "100%", y: 102, "text-anchor": "end" }, "now"), s("text", { x: 0, y: 10 }, `${count(most)} a minute`));
  return h("section", {}, s("svg", { class: "plot", height: 106, role: "img", "aria-label": `Turns by minute, at most ${most}` }, shapes));
}
