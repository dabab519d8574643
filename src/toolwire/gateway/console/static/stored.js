// Responses in the store, whichever process or machine produced them.

import { get } from "./api.js";
import { clear, clock, count, h, pre, pretty, readable } from "./dom.js";
import { polled } from "./poll.js";
import { known, refresh, running } from "./rows.js";
import { table } from "./table.js";

const EVERY = 3000;

const COLUMNS = [["Created", "time"], ["Response", "title code"], ["Key", "code"], ["Model", "text"], ["Tokens in", "number"], ["Tokens out", "number"], ["Continues", "code"], ["Status", "code"], ["Turn", "code"]];

export async function stored(main) {
  const body = h("div");
  let drawn;
  const poll = polled(EVERY, async () => {
    const [found] = await Promise.all([get("stored"), refresh()]);
    const rows = found.map((each) => ({ ...each, turn: turnOf(each.id) }));
    if (JSON.stringify(rows) === drawn) return; // nothing moves under the reader
    drawn = JSON.stringify(rows);
    draw(body, rows);
  });
  clear(main, h("h1", {}, "Stored responses"),
    h("p", { class: "soft" }, "Responses in the store, of every process and machine that uses it; the last used first."), poll.stale, body);
  await poll.now();
  return poll.stop;
}

function draw(body, found) {
  const rows = found.map((each) => [
    moment(each.created), h("a", { href: address(each.id, each.owner) }, short(each.id)), each.owner, each.model,
    count(each.input_tokens), count(each.output_tokens), continued(each), chip(each), each.turn ? turnLink(each.turn) : ""]);
  clear(body, rows.length ? h("section", {}, table("Stored responses", COLUMNS, rows)) : h("p", {}, "Nothing is stored."));
}

export async function storedOne(main, id, owner = "") {
  const [found] = await Promise.all([get(`stored/${encodeURIComponent(id)}?owner=${encodeURIComponent(owner)}`), refresh()]);
  const turn = turnOf(id);
  clear(main, h("p", { class: "crumbs" }, h("a", { href: "#/stored" }, "Stored"), " / ", h("code", {}, readable(id))),
    h("h1", {}, readable(found.model || "Response"), " ", chip(found)),
    h("p", { class: "soft" }, `${moment(found.created)}, ${count(found.input_tokens)} tokens in, ${count(found.output_tokens)} out. `, continued(found)),
    turn ? h("p", {}, turnLink(turn)) : null,
    found.shown ? [side("Input", found.input), side("Output", found.output)]
      : h("p", { class: "note" }, "The content is shown only to the key that owns it."));
}

// The turn of a response, if it is still in memory: resp_ID is the response of the turn ID.
function turnOf(id) {
  const turn = id.replace(/^resp_/, "");
  return known.has(turn) || running.has(turn) ? turn : "";
}

function turnLink(turn) {
  return h("a", { href: `#/turn/${encodeURIComponent(turn)}` }, "Open the turn");
}

function side(name, items) {
  return h("section", {}, h("h2", {}, name),
    items === null ? h("p", {}, "Too large to be shown here.")
      : items.length ? items.map((item, index) => pre(pretty(item), `${name} ${index + 1}`)) : h("p", { class: "soft" }, "Nothing."));
}

function continued({ previous, conversation, owner }) {
  return [previous ? h("a", { href: address(previous, owner) }, short(previous)) : null,
    previous && conversation ? ", " : null, conversation ? `conversation ${short(conversation)}` : null];
}

function chip({ status, background }) {
  const kind = status === "completed" ? "good" : status === "failed" ? "bad" : "";
  return h("span", { class: `chip ${kind}` }, background ? `${readable(status)}, background` : readable(status));
}

function address(id, owner) {
  return `#/response/${encodeURIComponent(id)}/${encodeURIComponent(owner)}`;
}

function short(id) {
  return readable(id.length > 20 ? `${id.slice(0, 12)}…${id.slice(-6)}` : id);
}

function moment(seconds) {
  const date = new Date(seconds * 1000);
  return `${date.toLocaleDateString("en-CA")} ${clock(seconds)}`;
}
