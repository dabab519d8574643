// Text with marks, as models write it, as elements: headings, lists, code, quotations, tables as they are, bold and italic.
// It makes elements and texts only, never markup from a text, and links lead nowhere: their addresses are shown.

import { h, more, readable, size } from "./dom.js";

const MOST = 20000; // characters that are rendered at first
const LONG = 300; // characters; a longer line is no heading and begins no code
const MARKS = /(`+)([^`][^]*?)\1(?!`)|\*\*(?=\S)([^]+?)\*\*|(?<![\p{L}\p{N}*])\*(?=\S)([^*\n]+?)\*(?![\p{L}\p{N}*])|!?\[([^\]\n]{0,300})\]\(([^()\s]{1,2000})\)/gu;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const ITEM = /^(\s*)(?:[-*+]|(\d+)[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;

export function rendered(text) {
  const box = h("div", { class: "rendered", dir: "auto" }, blocks(text.slice(0, MOST)));
  if (text.length > MOST) box.append(more(`Show all ${size(text.length)}`, () => box.replaceChildren(...blocks(text))));
  return box;
}

function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) found.push(h("p", {}, inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const [, fence, language] = (line.length < LONG && FENCE.exec(line)) || [];
    const [, , heading] = (line.length < LONG && HEADING.exec(line)) || [];
    if (fence) {
      flush();
      let last = at + 1;
      while (last < lines.length && !(lines[last].trim().startsWith(fence) && !lines[last].trim().replaceAll(fence[0], ""))) last += 1;
      found.push(code(lines.slice(at + 1, last).join("\n"), language));
      at = last;
    } else if (heading) {
      flush();
      found.push(h("p", { class: "heading" }, inline(heading)));
    } else if (ITEM.test(line)) {
      flush();
      const items = [];
      for (; at < lines.length && (ITEM.test(lines[at]) || (/^\s+\S/.test(lines[at]) && items.length)); at += 1) {
        const [, indent, number, words] = ITEM.exec(lines[at]) ?? [];
        if (words === undefined) items.at(-1).words += `\n${lines[at].trim()}`;
        else items.push({ depth: Math.min(5, Math.floor(indent.length / 2)), number, words });
      }
      at -= 1;
      found.push(h("ul", { class: "items" }, items.map((item) => h("li", { class: `deep-${item.depth}` }, h("span", { class: "bullet" }, item.number ? `${item.number}. ` : "• "), h("span", {}, inline(item.words))))));
    } else if (line.startsWith(">")) {
      flush();
      let end = at;
      while (lines[end + 1]?.startsWith(">")) end += 1;
      found.push(h("blockquote", {}, inline(lines.slice(at, end + 1).map((each) => each.replace(/^> ?/, "")).join("\n"))));
      at = end;
    } else if (/^\s*\|.*\|\s*$/.test(line)) {
      flush();
      let end = at;
      while (/^\s*\|/.test(lines[end + 1] ?? "")) end += 1;
      found.push(code(lines.slice(at, end + 1).join("\n"), "table"));
      at = end;
    } else if (line.trim()) paragraph.push(line);
    else flush();
  }
  flush();
  return found;
}

function code(text, language) {
  return h("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code", dir: "ltr" }, text);
}

// Texts and elements for marks within a paragraph; marks in bold and italic text are read too.
function inline(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(MARKS)) {
    const [whole, , quoted, bold, italic, label, address] = match;
    if (match.index > from) found.push(readable(text.slice(from, match.index)));
    from = match.index + whole.length;
    if (quoted !== undefined) found.push(h("code", {}, quoted));
    else if (bold !== undefined) found.push(h("strong", {}, inline(bold)));
    else if (italic !== undefined) found.push(h("em", {}, inline(italic)));
    else found.push(label, " ", h("code", { class: "address" }, address));
  }
  if (from < text.length) found.push(readable(text.slice(from)));
  return found;
}
