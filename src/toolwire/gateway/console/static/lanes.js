// The time line of a turn: client, gateway and model on one axis, a tick for every frame, a bar for every call.

import { duration, h, plural, readable, s } from "./dom.js";

const LANE = 30;
const BAR = 25;
const TOP = 8;
const MOST_BARS = 12;

export function lanes(row, whole, answered) {
  const end = Math.max(row.ms / 1000, ...whole.attempts.flatMap((each) => each.frames.map(([t]) => t)), 0.001);
  const x = (t) => 1 + 98 * Math.min(1, Math.max(0, t / end));
  const shapes = [];
  let top = TOP;
  const lane = (name, height = LANE) => {
    shapes.push(s("rect", { class: "lane", x: 0, y: top, width: "100%", height: height - 3 }), s("text", { class: "name", x: -8, y: top + 18 }, name));
    const at = top;
    top += height;
    return at;
  };
  const tick = (t, kind, y, label) => s("rect", { class: `tick ${kind}`, x: `${x(t)}%`, y, width: 2, height: LANE - 16 }, s("title", {}, label));
  const ticks = (frames, y) => {
    const seen = new Set();
    for (const [t, event, kind] of frames) {
      const place = `${Math.round(x(t) * 8)} ${kind}`;
      if (seen.has(place)) continue;
      seen.add(place);
      shapes.push(tick(t, kind, y + 7, `${event || "frame"} at ${duration(t * 1000)}`));
    }
  };

  const client = lane("client");
  shapes.push(tick(0, "asked", client + 7, "the request"));
  ticks(whole.answer.frames, client);
  const gateway = lane("gateway");
  for (const attempt of whole.attempts) {
    if (!attempt.asked) continue;
    const until = attempt.replied || end;
    shapes.push(s("rect", { class: "waiting", x: `${x(attempt.asked)}%`, y: gateway + 9, width: `${Math.max(0.4, x(until) - x(attempt.asked))}%`, height: 8 },
      s("title", {}, `waits for ${attempt.backend} until ${duration(until * 1000)}`)));
  }
  for (const [index, attempt] of whole.attempts.entries()) {
    const model = lane(whole.attempts.length > 1 ? `${index + 1}. ${readable(attempt.backend)}` : `model`);
    if (attempt.asked) shapes.push(tick(attempt.asked, "asked", model + 7, "asked"));
    ticks(attempt.frames, model);
    if (attempt.status >= 300 || !attempt.status) shapes.push(s("text", { class: "fault", x: `${Math.min(80, x(attempt.replied || attempt.asked) + 1)}%`, y: model + 18 }, attempt.status ? `status ${attempt.status}` : "no reply"));
  }
  const bars = whole.calls.slice(0, MOST_BARS);
  if (bars.length) {
    const area = lane("calls", 6 + bars.length * BAR);
    bars.forEach((call, index) => {
      const own = call.model ?? call.client;
      const result = answered.get((call.client ?? own).id);
      const last = result ? end : Math.max(own.last, call.client?.last ?? 0);
      const y = area + 2 + index * BAR;
      const left = x(own.first);
      const says = `${readable(own.name)}: ${duration(own.first * 1000)} to ${duration(own.last * 1000)}${result ? `, result after ${duration((result.at - row.at) * 1000)}` : ""}`;
      shapes.push(s("rect", { class: `bar ${call.client ? "" : "withheld"}`, x: `${left}%`, y: y + 3, width: `${Math.max(0.6, x(Math.max(own.last, call.client?.last ?? 0)) - left)}%`, height: 7, rx: 3 }, s("title", {}, says)));
      if (result) shapes.push(s("rect", { class: `bar after ${result.failed ? "withheld" : ""}`, x: `${x(own.last)}%`, y: y + 5, width: `${Math.max(0.6, x(last) - x(own.last))}%`, height: 3 }, s("title", {}, says)));
      shapes.push(s("text", { class: "call", x: `${left < 55 ? left : x(own.last)}%`, y: y + 21, "text-anchor": left < 55 ? "start" : "end" }, `${readable(own.name).slice(0, 28)}${result ? ` › ${result.failed ? "failed" : "result"} after ${duration((result.at - row.at) * 1000)}` : ""}`));
    });
    if (whole.calls.length > MOST_BARS) shapes.push(s("text", { class: "call", x: "99%", y: area + 10, "text-anchor": "end" }, `and ${whole.calls.length - MOST_BARS} more`));
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    shapes.push(s("rect", { class: "mark", x: `${x(end * part)}%`, y: TOP, width: 1, height: top - TOP }),
      s("text", { class: "stop", x: `${x(end * part)}%`, y: top + 12, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, part ? duration(end * part * 1000) : "0"));
  }
  const about = `${plural(whole.attempts.at(-1)?.frames.length ?? 0, "frame")} from the model, ${plural(whole.answer.frames.length, "frame")} to the client, ${plural(whole.calls.length, "call")}, ${duration(row.ms)} in all.`;
  return h("figure", { class: "timeline" }, s("svg", { role: "img", "aria-label": about, width: "100%", height: top + 18 }, shapes),
    h("figcaption", {}, about, " ", h("span", { class: "key" }, ["text", "reasoning", "call", "other"].map((kind) => [h("i", { class: `swatch s-${kind}` }), ` ${kind} `]))));
}
