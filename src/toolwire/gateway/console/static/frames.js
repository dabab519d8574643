// The bytes of a stream, frame by frame: when each came, what it carries, and where it is on the time line.

import { duration, h, more } from "./dom.js";

const SHOWN = 300; // frames at first

// `stream` is the reply of an attempt, or the answer; `key` names it; `links` lead to the time line and the calls.
export function frames(stream, key, label, links) {
  const rows = blocks(stream);
  const box = h("div", { class: "frames", tabindex: "0", role: "region", "aria-label": label });
  const show = (part) => box.append(...part.map((row) => line(row, stream, key, links)));
  show(rows.slice(0, SHOWN));
  if (rows.length > SHOWN) box.append(more(`Show ${rows.length - SHOWN} more`, () => show(rows.slice(SHOWN))));
  return box;
}

// The id of the element of a frame.
export function frameId(key, index) {
  return `frame-${key}-${index}`;
}

function line({ t, text, index }, stream, key, links) {
  const [, , lane = "other", call = -1] = stream.frames[index] ?? [];
  const time = duration(t * 1000);
  return h("div", { class: `frame s-${lane}`, id: index === undefined ? null : frameId(key, index) },
    h("span", { class: "at" }, index === undefined ? time : h("button", { type: "button", class: "quiet", title: "Show on the time line", "aria-label": `${time}, show on the time line`, onclick: () => links.tick(key, index) }, time),
      call >= 0 ? h("button", { type: "button", class: "quiet", title: "Show the call", "aria-label": `Show the call ${stream.calls[call]?.name ?? ""}`, onclick: () => links.callOf(key, call) }, "call") : null),
    h("pre", { dir: "ltr" }, text));
}

// The text of a stream, split as its frames are; a part that is no frame, such as a comment, has no index.
export function blocks({ parts, frames: known }) {
  const text = parts.map(([, part]) => part).join("");
  const isSse = /(^|[\r\n])(data|event):/.test(text);
  const found = split(text, isSse ? /\r\n\r\n|\n\n|\r\r/g : known.length > 1 ? /\n/g : /$^/g);
  const isFrame = (block) => (isSse ? /(^|[\r\n])data(:|[\r\n]|$)/.test(block) : Boolean(block.trim()));
  const isComplete = found.filter(({ text: block }) => isFrame(block)).length === known.length;
  let [index, part, reached] = [0, 0, parts[0]?.[1].length ?? 0];
  return found.map(({ text: block, end }) => {
    while (reached < end && part + 1 < parts.length) reached += parts[part += 1][1].length;
    return { t: parts[part]?.[0] ?? 0, text: block, index: isComplete && isFrame(block) ? index++ : undefined };
  });
}

function split(text, separator) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(separator)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), end: match.index });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push({ text: text.slice(from), end: text.length });
  return found;
}
