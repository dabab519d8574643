// Conversations: excerpts of their turns, the growth of the context, which result answers which call, where the prompt
// cache broke. Both views are updated while they are shown; parts that did not change are not redrawn.

import { get } from "./api.js";
import { clear, clock, count, duration, h, plural, pre, pretty, readable, size } from "./dom.js";
import { polled } from "./poll.js";
import { table } from "./table.js";

const EVERY = 3000;
const LONG = 600; // characters; a longer text is shown in a box that scrolls
const CLIENT_LEFT = 499;
const PARTS = [["system", "system", "system"], ["tools", "tools", "tools-part"], ["history", "history", "history"], ["results", "results", "results"]];

const COLUMNS = [["Last turn", "time"], ["Began with", "title"], ["Key", "code"], ["Client", "code"], ["Models", "text"], ["Turns", "number"], ["Side requests", "number"], ["Calls", "number"], ["Tokens in", "number"], ["Tokens out", "number"], ["Errors", "number"]];

export async function conversations(main) {
  const body = h("div", {});
  let drawn;
  const poll = polled(EVERY, async () => {
    const found = await get("conversations");
    const now = JSON.stringify(found);
    if (now !== drawn) keepingFocus(body, () => clear(body, list(found)));
    drawn = now;
  });
  clear(main, h("h1", {}, "Conversations"),
    h("p", { class: "soft" }, "Turns are joined by previous_response_id, by conversation, by the session that Claude Code and Codex name, by cache key, and by a common beginning of their history. The last two never join different sessions. Turns without content, and replays, are left out."),
    poll.stale, body);
  await poll.now();
  return poll.stop;
}

function list(found) {
  const rows = found.map((each) => [
    clock(each.ended), h("a", { href: `#/conversation/${each.id}`, "data-part": each.id }, each.title.slice(0, 90)),
    each.key, (each.client ?? "").split(/[ /]/)[0], each.models.join(", "), count(each.turns), each.side_requests ? count(each.side_requests) : "", count(each.calls), count(each.input), count(each.output),
    each.errors ? h("span", { class: "bad" }, count(each.errors)) : ""]);
  return rows.length ? h("section", {}, table("Conversations", COLUMNS, rows)) : h("p", {}, "No turn with content yet.");
}

export async function conversation(main, id) {
  const summary = h("p", { class: "soft" });
  const title = h("h1", {});
  const place = h("div", {});
  const drawn = new Map(); // turns in the page: the element of each, and the JSON that it was made from
  let last = id;
  let version = "";

  async function load() {
    const found = await get(`conversations/${encodeURIComponent(last)}?unless=${version}`);
    if (found.version === version) return;
    const { overview, turns } = found;
    version = found.version;
    last = turns.at(-1).row.id; // the first turn may be dropped for newer ones
    clear(title, overview.title.slice(0, 120));
    clear(summary, about(overview, turns.length));
    place.style.setProperty("--most", Math.max(1, ...turns.map((turn) => total(turn.context ?? {}))));
    update(turns);
  }

  function update(turns) {
    const shown = new Set(turns.map((turn) => turn.row.id));
    for (const [known, { element }] of drawn) {
      if (shown.has(known)) continue;
      element.remove();
      drawn.delete(known);
    }
    for (const [index, turn] of turns.entries()) {
      const now = JSON.stringify(turn);
      const before = drawn.get(turn.row.id);
      if (before?.now === now) continue;
      const element = one(turn);
      if (before) keepingFocus(before.element, () => before.element.replaceWith(element), element);
      else place.insertBefore(element, place.children[index] ?? null);
      drawn.set(turn.row.id, { now, element });
    }
  }

  const poll = polled(EVERY, load);
  await load();
  clear(main, h("p", { class: "crumbs" }, h("a", { href: "#/conversations" }, "Conversations"), " / ", h("code", {}, id)), title, summary, poll.stale, place);
  poll.now();
  return poll.stop;
}

// Redraws something; parts that are unfolded or focused stay so.
function keepingFocus(old, draw, fresh = old) {
  const unfolded = new Set([...old.querySelectorAll("details[open]")].map((each) => each.dataset.part));
  const focused = old.contains(document.activeElement) ? document.activeElement.closest("[data-part]")?.dataset.part : undefined;
  draw();
  for (const each of fresh.querySelectorAll("[data-part]")) {
    if (unfolded.has(each.dataset.part)) each.open = true;
    if (each.dataset.part === focused) (each.querySelector("summary") ?? each).focus({ preventScroll: true });
  }
}

function about(overview, shown) {
  const beside = overview.side_requests ? `, ${plural(overview.side_requests, "side request")} (folded)` : "";
  return [`${plural(overview.turns, "turn")}${beside} in ${duration((overview.ended - overview.began) * 1000)}, ${plural(overview.calls, "call")}, ${count(overview.input)} tokens in, ${count(overview.output)} out. `,
    shown < overview.turns + overview.side_requests ? `The last ${count(shown)} are shown. ` : null,
    "Context: ", PARTS.map(([, name, kind]) => [h("i", { class: `swatch ${kind}` }), ` ${name} `])];
}

function total(context) {
  return Object.values(context).reduce((sum, bytes) => sum + bytes, 0);
}

// A turn; a side request is folded.
function one(turn) {
  const { row, side } = turn;
  const heading = h("h2", {}, clock(row.at), " ", h("a", { href: `#/turn/${row.id}`, "data-part": "turn" }, `${row.model} › ${row.backend || "no backend"}`), " ", chip(row));
  if (!side) return h("section", { class: "timeline-turn" }, heading, content(turn));
  return h("section", { class: "timeline-turn side" }, h("details", { "data-part": "side" }, h("summary", {}, clock(row.at), " side request ", h("span", { class: "chip" }, side)), heading, content(turn)));
}

function content(turn) {
  const { asked, brought, answer, reasoning, calls, more_calls: more } = turn;
  return [
    brought ? h("p", { class: "soft" }, `With ${plural(brought, "new result")}.`) : null,
    asked ? speech("User", asked) : null,
    answer.size || reasoning ? speech("Model", answer, reasoning) : null,
    calls.map(called), more ? h("p", { class: "soft" }, `and ${plural(more, "more call")}`) : null,
    context(turn), broken(turn.cache)];
}

// An error may follow the status: a stream that broke off has 200.
function chip({ status, error }) {
  const kind = status === CLIENT_LEFT ? "" : status >= 400 || error ? "bad" : "good";
  return h("span", { class: `chip ${kind}` }, error ? `${status} ${error}` : `${status}`);
}

function speech(name, text, reasoning = 0) {
  const box = text.size > LONG ? { class: "says speech", tabindex: "0", role: "group", "aria-label": `${name}, ${plural(text.size, "character")}`, "data-part": name } : { class: "says speech" };
  return h("div", { class: "speaker" }, h("h3", {}, name, reasoning ? h("small", { class: "soft" }, `after ${plural(reasoning, "character")} of reasoning`) : null),
    text.size ? h("div", box, shortened(text)) : null, rest(text));
}

function shortened({ text, cut }) {
  return cut ? `${text}…` : text;
}

function rest({ text, size: all, cut }) {
  return cut ? h("p", { class: "soft" }, `The first ${count([...text].length)} of ${plural(all, "character")}.`) : null;
}

function called({ id, name, arguments: given, result, result_turn: turn, result_at: at }) {
  return h("div", { class: "called" },
    given.size ? fold(`arguments ${id}`, [h("code", {}, name), ` arguments, ${plural(given.size, "character")}`], given.cut ? given : { ...given, text: pretty(given.text) }, `Arguments of ${name}`)
      : h("p", {}, h("code", {}, name), " no arguments"),
    result === null ? h("p", { class: "soft" }, "no result yet") : [
      result.text ? fold(`result ${id}`, `result, ${plural(result.size, "character")}`, result, `Result of ${name}`)
        : h("p", {}, `result, ${plural(result.size, "character")}${result.size ? ", its text is not kept here" : ""}`),
      h("p", { class: "soft" }, "returned in ", h("a", { href: `#/turn/${turn}`, "data-part": `brought ${id}` }, `the turn of ${clock(at)}`))]);
}

function fold(part, summary, text, label) {
  return h("details", { "data-part": part }, h("summary", {}, summary), pre(shortened(text), label), rest(text));
}

function context({ row, context: made, added }) {
  const counted = row.input || row.output ? `${count(row.input ?? 0)} tokens in, ${count(row.cached ?? 0)} of them cached, ${count(row.output ?? 0)} out` : "tokens not reported";
  const tokens = `${counted}, ${duration(row.ms)}.`;
  if (!made) return h("p", { class: "soft" }, `The request has ${size(added)}; the history before it is in the store; ${tokens}`);
  const parts = PARTS.filter(([part]) => made[part]).map(([part, name]) => `${name} ${size(made[part])}`).join(", ");
  const bar = h("div", { class: "stack", role: "img", "aria-label": `Context: ${parts || "nothing"}` }, PARTS.map(([part, , kind]) => {
    const piece = h("i", { class: kind });
    piece.style.width = `calc(100% * ${made[part]} / var(--most))`;
    return piece;
  }));
  return [bar, h("p", { class: "soft" }, `${size(total(made))} of context${parts ? ` (${parts})` : ""}, ${tokens}`)];
}

function broken(cache) {
  if (!cache) return null;
  const other = h("a", { href: `#/turn/${cache.against}`, "data-part": "against" }, "an earlier turn");
  if (!cache.broken) {
    return cache.shared < cache.before
      ? h("p", { class: "soft" }, "The whole prompt is the beginning of the prompt of ", other, ": the cache can hold.")
      : h("p", { class: "soft" }, `The prompt begins with all ${size(cache.before)} of the prompt of `, other, ": the cache can hold.");
  }
  return h("div", { class: "note" },
    h("p", {}, `The prompt cache broke at byte ${count(cache.byte)} of ${count(cache.before)}${cache.part ? `, in ${cache.part}: ${readable(cache.label)}` : ""}, compared with `, other, "."),
    cache.was === undefined ? null : h("div", { class: "columns two" }, h("div", {}, h("h4", {}, "It was"), pre(cache.was, "Before")), h("div", {}, h("h4", {}, "It is"), pre(cache.now, "Now"))));
}
