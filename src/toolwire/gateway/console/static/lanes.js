// The time line of a turn: client, gateway and model on one axis, a tick for every frame, a bar for every call. The arrow
// keys go from tick to tick, and each leads to its frame and its call.

import { clear, duration, h, plural, s } from "./dom.js";

const LANE = 32;
const TOP = 8;
const NAME = 70; // pixels beside a lane for its name
const ROWS = { text: 1, reasoning: 8, call: 15, other: 22 }; // each kind of frame has its own height in a lane
const BAR = 25; // height of a call with its label under its bar
const DENSE_BAR = 12; // height of a call with its label beside its bar
const MOST_TALL = 12; // calls that have their labels under their bars
const MOST_BARS = 500;
const GROUND = "url(#label-ground)";
const LABEL = 28; // letters of a label
const NARROW_LABEL = 16; // and on a phone
const PIXELS = 1400; // maximum width of the time line

const NEAR = 3; // per cent of the width within which a press chooses a tick

export function lanes(row, whole, answered, links) {
  const stops = [];
  const end = whole.attempts.flatMap((each) => each.frames).reduce((latest, [t]) => Math.max(latest, t), Math.max(row.ms / 1000, 0.001));
  const x = (t) => 1 + 98 * Math.min(1, Math.max(0, t / end));
  const back = [];
  const shapes = [];
  let top = TOP;
  const lane = (name, height = LANE) => {
    back.push(s("rect", { class: "lane", x: 0, y: top, width: "100%", height: height - 3 }));
    const shown = fitting(name);
    shapes.push(s("text", { class: "name", x: -8, y: top + 18 }, shown, shown === name ? null : s("title", {}, name)));
    const at = top;
    top += height;
    return at;
  };
  const tick = (t, kind, y, height, label) => {
    shapes.push(s("rect", { class: `tick ${kind}`, x: `${x(t)}%`, y, width: 2, height }, s("title", {}, label)));
    return shapes.at(-1);
  };
  const asked = (t, y, label) => tick(t, "asked", y + 2, LANE - 7, label);
  const ticks = (frames, y, key, name) => {
    for (const [t, kind, events, indexes] of merged(frames, x)) {
      const label = `${events.length > 1 ? `${events.length} frames: ` : ""}${listed(events)} at ${duration(t * 1000)}`;
      const element = tick(t, kind, y + ROWS[kind], 6, label);
      stops.push({ t, y: y + ROWS[kind], key, indexes, call: frames[indexes[0]][3] ?? -1, says: `${name}: ${label}`, element });
    }
  };

  const client = lane("client");
  asked(0, client, "the request");
  ticks(whole.answer.frames, client, "client", "to the client");
  const gateway = lane("gateway");
  for (const attempt of whole.attempts) {
    if (!attempt.asked) continue;
    const until = attempt.replied || end;
    shapes.push(s("rect", { class: "waiting", x: `${x(attempt.asked)}%`, y: gateway + 10, width: `${Math.max(0.4, x(until) - x(attempt.asked))}%`, height: 8 },
      s("title", {}, `waits for ${attempt.backend} until ${duration(until * 1000)}`)));
  }
  const changed = whole.calls.filter((call) => isChanged(call, row));
  for (const [t, , names] of merged(changed.map(({ client: got }) => [got.last, got.name, "call"]), x)) {
    tick(t, "changed", gateway + 2, LANE - 7, `${names.length > 1 ? `${names.length} calls: ` : ""}${listed(names)} changed, delivered at ${duration(t * 1000)}`);
  }
  for (const [index, attempt] of whole.attempts.entries()) {
    const model = lane(laneName(whole.attempts, index));
    if (attempt.asked) asked(attempt.asked, model, "asked");
    ticks(attempt.frames, model, index, `from ${attempt.backend}`);
    if (attempt.status >= 300 || !attempt.status) shapes.push(s("text", { class: "fault", filter: GROUND, x: `${Math.min(80, x(attempt.replied || attempt.asked) + 1)}%`, y: model + 18 }, attempt.status ? `status ${attempt.status}` : "no reply"));
  }
  const bars = whole.calls.slice(0, MOST_BARS);
  if (bars.length) {
    const [draw, height] = bars.length > MOST_TALL ? [denseBar, DENSE_BAR] : [bar, BAR];
    const left = whole.calls.length - bars.length;
    const area = lane("calls", 6 + bars.length * height + (left ? 16 : 0));
    bars.forEach((call, index) => shapes.push(s("g", { "data-call": index }, draw(call, answered.get((call.client ?? call.model).id), area + 2 + index * height, x, end, row))));
    if (left) shapes.push(s("text", { class: "call", x: "1%", y: top - 8 }, `and ${plural(left, "more call")}`));
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    back.push(s("rect", { class: "mark", x: `${x(end * part)}%`, y: TOP, width: 1, height: top - TOP }));
    shapes.push(s("text", { class: part % 0.5 ? "quarter" : "stop", x: `${x(end * part)}%`, y: top + 12, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, part ? duration(end * part * 1000) : "0"));
  }
  const frames = hasRounds(whole.attempts) ? whole.attempts.reduce((sum, each) => sum + each.frames.length, 0) : whole.attempts.at(-1)?.frames.length ?? 0;
  const about = `${plural(frames, "frame")} from the model, ${plural(whole.answer.frames.length, "frame")} to the client, ${plural(whole.calls.length, "call")}${changed.length ? ` (${changed.length} changed)` : ""}, ${duration(row.ms)} in all.`;
  const svg = s("svg", { role: "img", "aria-label": about, width: "100%", height: top + 18 }, ground(), back, shapes);
  return h("figure", { class: "timeline" }, axis(svg, stops.sort((one, other) => one.t - other.t), x, links),
    h("figcaption", {}, about, " ", h("span", { class: "key" }, [...Object.keys(ROWS), ...(changed.length ? ["changed"] : [])].map((kind) => [h("i", { class: `swatch s-${kind}` }), ` ${kind} `]))));
}

// The drawing with one of its ticks chosen, and below it where that tick leads.
function axis(svg, stops, x, links) {
  if (!stops.length) return svg;
  const says = h("span", { role: "status" }, "Choose a tick with the arrow keys, or press one.");
  const chosen = h("p", { class: "chosen soft" }, says);
  let at = -1;
  const box = h("div", { class: "axis", tabindex: "0", role: "slider", "aria-label": "Frames", "aria-valuemin": 1, "aria-valuemax": stops.length, "aria-valuenow": 1, "aria-valuetext": "none chosen", onkeydown: press, onclick: point }, svg);
  box.addEventListener("choose", ({ detail: [key, index] }) => {
    choose(stops.findIndex((stop) => stop.key === key && stop.indexes.includes(index)));
    box.scrollIntoView({ block: "center" });
    box.focus({ preventScroll: true });
  });

  function choose(wanted) {
    if (!stops[wanted]) return;
    stops[at]?.element.classList.remove("chosen");
    at = wanted;
    const { key, indexes, call, says: text, element } = stops[at];
    element.classList.add("chosen");
    box.setAttribute("aria-valuenow", at + 1);
    box.setAttribute("aria-valuetext", text);
    says.textContent = text;
    const number = indexes.length > 1 ? `frames ${indexes[0] + 1} to ${indexes.at(-1) + 1}` : `frame ${indexes[0] + 1}`;
    clear(chosen, says, " ", h("button", { type: "button", class: "quiet", onclick: () => links.frame(key, indexes[0]) }, `Show ${number}`),
      call >= 0 ? h("button", { type: "button", class: "quiet", onclick: () => links.callOf(key, call) }, "Show the call") : null);
  }

  function press(event) {
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: stops.length - 1 }[event.key];
    if (event.key === "Enter" && stops[at]) links.frame(stops[at].key, stops[at].indexes[0]);
    else if (next === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    else choose(Math.min(stops.length - 1, Math.max(0, next)));
    event.preventDefault();
  }

  function point(event) {
    const call = event.target.closest("[data-call]");
    if (call) return links.call(Number(call.getAttribute("data-call")));
    const { left, top, width } = svg.getBoundingClientRect();
    const [px, py] = [100 * (event.clientX - left) / width, event.clientY - top];
    const distances = stops.map(({ t, y }) => Math.abs(x(t) - px) + (Math.abs(y + 3 - py) > LANE / 2 ? 100 : Math.abs(y + 3 - py) / 20));
    const nearest = distances.indexOf(Math.min(...distances));
    if (distances[nearest] < NEAR) choose(nearest);
  }

  return [box, chosen];
}

// One tick for frames of a kind that fall on the same pixel: when, which kind, what they are, and their indexes.
export function merged(frames, x) {
  const found = new Map();
  for (const [index, [t, event, kind]] of frames.entries()) {
    const place = `${Math.round(x(t) * PIXELS / 100)} ${kind}`;
    if (!found.has(place)) found.set(place, [t, kind, [], []]);
    found.get(place)[2].push(event || kind);
    found.get(place)[3].push(index);
  }
  return found.values();
}

// The background of labels that cross a bar or ticks.
function ground() {
  return s("filter", { id: "label-ground", x: 0, y: 0.15, width: 1, height: 1, "color-interpolation-filters": "sRGB" }, s("feFlood", { class: "ground" }), s("feComposite", { in: "SourceGraphic" }));
}

// Each name once; of many, the first five.
function listed(names) {
  const all = [...new Set(names)];
  return `${all.slice(0, 5).join(", ")}${all.length > 5 ? ` and ${all.length - 5} more` : ""}`;
}

// In a running turn, a call differs from the client's only because more of it is still to come.
function isChanged(call, row) {
  return call.client && !call.same && (row.kept !== "running" || (call.client.complete && call.model?.complete));
}

function hasRounds(attempts) {
  return attempts.some((each) => each.round > 0);
}

function laneName(attempts, index) {
  const { backend, round = 0 } = attempts[index];
  if (hasRounds(attempts)) return `round ${round + 1}: ${backend}`;
  return attempts.length > 1 ? `${index + 1}. ${backend}` : "model";
}

// A name, shortened to fit beside its lane. It is measured, because letters differ in width.
function fitting(name) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  if (pen.measureText(name).width <= NAME) return name;
  let length = name.length;
  while (length > 1 && pen.measureText(`${name.slice(0, length)}…`).width > NAME) length -= 1;
  return `${name.slice(0, length)}…`;
}

// A call from its first fragment to its last, and on to its result, with its label below.
function bar(call, result, y, x, end, row) {
  const { left, right, label, shapes } = track(call, result, y + 6.5, 7, x, end, row);
  const place = { class: "call", x: `${left < 55 ? left : Math.max(right, left + 0.6)}%`, y: y + 21, "text-anchor": left < 55 ? "start" : "end" };
  return [...shapes, s("text", place, label)];
}

// The same in less height: the label is beside the bar, or on it if there is no room.
function denseBar(call, result, y, x, end, row) {
  const { left, right, label, shapes } = track(call, result, y + 6, 6, x, end, row);
  const place = right < 60 ? { x: `${Math.max(right, left + 0.6)}%`, dx: 5 } : left > 40 ? { x: `${left}%`, dx: -5, "text-anchor": "end" } : { x: `${left}%`, dx: 5 };
  return [...shapes, s("text", { class: "call dense", filter: GROUND, y: y + 9.5, ...place }, label)];
}

// The bar of a call, and a thinner one that leads to its result, or ends in an arrow if the result came after the turn.
function track(call, result, middle, height, x, end, row) {
  const own = call.model ?? call.client;
  const last = Math.max(own.last, call.client?.last ?? 0);
  const [left, right] = [x(own.first), x(last)];
  const after = result ? result.at - row.at : 0;
  const says = result ? `${result.failed ? "failed" : "result"} after ${duration(after * 1000)}` : "";
  const title = () => s("title", {}, `${own.name}: ${duration(own.first * 1000)} to ${duration(last * 1000)}${says ? `, ${says}` : ""}`);
  const shapes = [s("rect", { class: `bar ${call.client ? "" : "withheld"}`, x: `${left}%`, y: middle - height / 2, width: `${Math.max(0.6, right - left)}%`, height, rx: 3 }, title())];
  const kind = `bar after ${result?.failed ? "withheld" : ""}`;
  if (result) shapes.push(s("rect", { class: kind, x: `${right}%`, y: middle - 1.5, width: `${Math.max(0.3, x(after) - right)}%`, height: 3 }, title()));
  if (after > end) shapes.push(s("svg", { x: "99%", y: middle - 5.5, width: 10, height: 11, overflow: "visible" }, s("path", { class: `${kind} arrow`, d: "M0 0 L8 5.5 L0 11 Z" })));
  return { left, right, label: labelled(own.name, says ? ` › ${says}` : ""), shapes };
}

// On a phone the style sheet shows an ellipsis in place of the end of a long label.
function labelled(name, ending) {
  const rest = name.length > LABEL ? `${name.slice(NARROW_LABEL, LABEL)}…` : name.slice(NARROW_LABEL);
  return [name.slice(0, NARROW_LABEL), rest ? s("tspan", { class: "narrow-only" }, "…") : null, s("tspan", { class: "wide-only" }, rest, ending)];
}
