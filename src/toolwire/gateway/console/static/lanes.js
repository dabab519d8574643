// The time line of a turn: client, gateway and model on one axis, a tick for every frame, a bar for every call.

import { duration, h, plural, s } from "./dom.js";

const LANE = 30;
const BAR = 25;
const TOP = 8;
const MOST_BARS = 12;
const PIXELS = 1400; // no wider than this is the time line drawn

export function lanes(row, whole, answered) {
  const end = Math.max(row.ms / 1000, ...whole.attempts.flatMap((each) => each.frames.map(([t]) => t)), 0.001);
  const x = (t) => 1 + 98 * Math.min(1, Math.max(0, t / end));
  const back = [];
  const shapes = [];
  let top = TOP;
  const lane = (name, height = LANE) => {
    back.push(s("rect", { class: "lane", x: 0, y: top, width: "100%", height: height - 3 }));
    shapes.push(s("text", { class: "name", x: -8, y: top + 18 }, name));
    const at = top;
    top += height;
    return at;
  };
  const tick = (t, kind, y, label) => s("rect", { class: `tick ${kind}`, x: `${x(t)}%`, y, width: 2, height: LANE - 16 }, s("title", {}, label));
  const ticks = (frames, y) => {
    for (const [t, kind, events] of merged(frames, x)) {
      shapes.push(tick(t, kind, y + 7, `${events.length > 1 ? `${events.length} frames: ` : ""}${[...new Set(events)].slice(0, 5).join(", ")} at ${duration(t * 1000)}`));
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
    const model = lane(whole.attempts.length > 1 ? `${index + 1}. ${attempt.backend}` : `model`);
    if (attempt.asked) shapes.push(tick(attempt.asked, "asked", model + 7, "asked"));
    ticks(attempt.frames, model);
    if (attempt.status >= 300 || !attempt.status) shapes.push(s("text", { class: "fault", x: `${Math.min(80, x(attempt.replied || attempt.asked) + 1)}%`, y: model + 18 }, attempt.status ? `status ${attempt.status}` : "no reply"));
  }
  const bars = whole.calls.slice(0, MOST_BARS);
  if (bars.length) {
    const area = lane("calls", 6 + bars.length * BAR);
    bars.forEach((call, index) => shapes.push(...bar(call, answered.get((call.client ?? call.model).id), area + 2 + index * BAR, x, end, row)));
    if (whole.calls.length > MOST_BARS) shapes.push(s("text", { class: "call", x: "99%", y: area + 10, "text-anchor": "end" }, `and ${whole.calls.length - MOST_BARS} more`));
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    back.push(s("rect", { class: "mark", x: `${x(end * part)}%`, y: TOP, width: 1, height: top - TOP }));
    shapes.push(s("text", { class: part % 0.5 ? "quarter" : "stop", x: `${x(end * part)}%`, y: top + 12, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, part ? duration(end * part * 1000) : "0"));
  }
  const about = `${plural(whole.attempts.at(-1)?.frames.length ?? 0, "frame")} from the model, ${plural(whole.answer.frames.length, "frame")} to the client, ${plural(whole.calls.length, "call")}, ${duration(row.ms)} in all.`;
  return h("figure", { class: "timeline" }, s("svg", { role: "img", "aria-label": about, width: "100%", height: top + 18 }, back, shapes),
    h("figcaption", {}, about, " ", h("span", { class: "key" }, ["text", "reasoning", "call", "other"].map((kind) => [h("i", { class: `swatch s-${kind}` }), ` ${kind} `]))));
}

// One tick for frames of a kind that fall on the same pixel: when, which kind, what they are.
export function merged(frames, x) {
  const found = new Map();
  for (const [t, event, kind] of frames) {
    const place = `${Math.round(x(t) * PIXELS / 100)} ${kind}`;
    if (!found.has(place)) found.set(place, [t, kind, []]);
    found.get(place)[2].push(event || "frame");
  }
  return found.values();
}

// A call from its first fragment to its last, and on to its result: up to it if it came before the end, else an arrow.
function bar(call, result, y, x, end, row) {
  const own = call.model ?? call.client;
  const last = Math.max(own.last, call.client?.last ?? 0);
  const [left, right] = [x(own.first), x(last)];
  const after = result ? result.at - row.at : 0;
  const ending = result ? `${result.failed ? "failed" : "result"} after ${duration(after * 1000)}` : "";
  const says = `${own.name}: ${duration(own.first * 1000)} to ${duration(last * 1000)}${ending ? `, ${ending}` : ""}`;
  const shapes = [s("rect", { class: `bar ${call.client ? "" : "withheld"}`, x: `${left}%`, y: y + 3, width: `${Math.max(0.6, right - left)}%`, height: 7, rx: 3 }, s("title", {}, says))];
  const kind = `bar after ${result?.failed ? "withheld" : ""}`;
  if (result) shapes.push(s("rect", { class: kind, x: `${right}%`, y: y + 5, width: `${Math.max(0.3, x(after) - right)}%`, height: 3 }, s("title", {}, says)));
  if (after > end) shapes.push(s("svg", { x: "99%", y: y + 1, width: 10, height: 11, overflow: "visible" }, s("path", { class: `${kind} arrow`, d: "M0 0 L8 5.5 L0 11 Z" })));
  const name = `${own.name.slice(0, 28)}${ending ? ` › ${ending}` : ""}`;
  shapes.push(s("text", { class: "call", x: `${left < 55 ? left : Math.max(right, left + 0.6)}%`, y: y + 21, "text-anchor": left < 55 ? "start" : "end" }, name));
  return shapes;
}
