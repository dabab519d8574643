// Turns that belong together: how the context grows, which result answers which call, where the prompt cache broke.

import { get } from "./api.js";
import { clear, clock, count, duration, h, plural, pre, readable, size } from "./dom.js";
import { table } from "./table.js";

const PARTS = [["system", "system", "system"], ["tools", "tools", "tools-part"], ["history", "history", "history"], ["results", "results", "results"]];

const COLUMNS = [["Last turn", "time"], ["Began with", "title"], ["Key", "code"], ["Client", "code"], ["Models", "text"], ["Turns", "number"], ["Calls", "number"], ["Context", "number"], ["Tokens out", "number"], ["Errors", "number"]];

export async function conversations(main) {
  const found = await get("conversations");
  const rows = found.map((each) => [
    clock(each.ended), h("a", { href: `#/conversation/${each.id}` }, (each.title || "(no text)").slice(0, 90)),
    each.key, (each.client ?? "").split(/[ /]/)[0], each.models.join(", "), count(each.turns), count(each.calls), count(each.input), count(each.output),
    each.errors ? h("span", { class: "bad" }, count(each.errors)) : ""]);
  clear(main, h("h1", {}, "Conversations"), h("p", { class: "soft" }, "Turns are joined by previous_response_id, conversation, the session that Claude Code and Codex name, and equal beginnings of their history. Only turns that are kept whole can be joined."),
    rows.length ? h("section", {}, table("Conversations", COLUMNS, rows)) : h("p", {}, "No turn is kept whole yet."));
}

export async function conversation(main, id) {
  const { overview, turns } = await get(`conversations/${encodeURIComponent(id)}`);
  const most = Math.max(1, ...turns.map((turn) => total(turn.context)));
  clear(main, h("p", { class: "crumbs" }, h("a", { href: "#/conversations" }, "Conversations"), " / ", h("code", {}, overview.id)),
    h("h1", {}, readable(overview.title || "Conversation").slice(0, 120)),
    h("p", { class: "soft" }, `${plural(overview.turns, "turn")} in ${duration((overview.ended - overview.began) * 1000)}, ${plural(overview.calls, "call")}, ${count(overview.output)} tokens out. Context: `,
      PARTS.map(([, name, kind]) => [h("i", { class: `swatch ${kind}` }), ` ${name} `])),
    turns.map((turn) => one(turn, most)));
}

function total(context) {
  return Object.values(context).reduce((sum, bytes) => sum + bytes, 0);
}

function one({ row, asked, context, cache, calls }, most) {
  const bytes = total(context);
  const bar = h("div", { class: "stack", role: "img", "aria-label": PARTS.map(([part, name]) => `${name} ${size(context[part])}`).join(", ") },
    PARTS.map(([part, , kind]) => {
      const piece = h("i", { class: kind });
      piece.style.width = `${100 * context[part] / most}%`;
      return piece;
    }));
  return h("section", { class: "timeline-turn" },
    h("h2", {}, clock(row.at), " ", h("a", { href: `#/turn/${row.id}` }, `${readable(row.model)} › ${readable(row.backend ?? "nobody")}`), " ", h("span", { class: `chip ${row.status < 400 ? "good" : "bad"}` }, `${row.status}`)),
    asked ? h("p", {}, readable(asked.slice(0, 300)), asked.length > 300 ? "…" : "") : null,
    bar,
    h("p", { class: "soft" }, `${size(bytes)} of context (${PARTS.filter(([part]) => context[part]).map(([part, name]) => `${name} ${size(context[part])}`).join(", ")}), ${count(row.input ?? 0)} tokens in, ${count(row.cached ?? 0)} of them cached, ${count(row.output ?? 0)} out, ${duration(row.ms)}.`),
    broken(cache),
    calls.map((call) => h("details", { class: "result" }, h("summary", {}, h("code", {}, readable(call.name)), call.result === null ? " no result yet" : ` › result, ${plural(call.result.length, "character")}`),
      call.result === null ? null : [pre(call.result || "(empty)", `Result of ${call.name}`), h("p", {}, "It came with ", h("a", { href: `#/turn/${call.result_turn}` }, "a later turn"), ".")])));
}

function broken(cache) {
  if (!cache) return null;
  if (!cache.broken) return h("p", { class: "soft" }, `The prompt begins with all ${size(cache.before)} of the turn before: the cache can hold.`);
  return h("div", { class: "note" },
    h("p", {}, `The prompt cache broke at byte ${count(cache.byte)} of ${count(cache.before)}, in ${cache.part}: ${readable(cache.label)}.`),
    cache.was === undefined ? null : h("div", { class: "columns two" }, h("div", {}, h("h4", {}, "It was"), pre(cache.was, "Before")), h("div", {}, h("h4", {}, "It is"), pre(cache.now, "Now"))));
}
