// Builds the page from values. Text is only ever set as text, so nothing that a model wrote can become markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, SPOKEN.has(name) ? readable(value) : String(value));
  }
  element.append(...nodes(children));
  return element;
}

export function clear(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity).filter((child) => child != null && child !== false).map((child) => (typeof child === "string" ? readable(child) : child));
}

// Attributes that are read out or shown.
const SPOKEN = new Set(["aria-label", "title", "placeholder"]);

// Invisible characters are shown, not interpreted: control characters, escape sequences of terminals, marks that turn the
// direction of text, fillers, tags, and variation selectors other than an emoji's own.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e" +
  "\\u2060-\\u206f\\u3164\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\ufffb\\ud800-\\udfff\\u{e0000}-\\u{e0fff}]" +
  "|(?<!\\p{Extended_Pictographic})[\\ufe0e\\ufe0f](?!\\u20e3)", "gu");

export function readable(text) {
  return String(text).replace(HIDDEN, (char) => `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export function pre(text, label, most = 200000) {
  const box = h("pre", { tabindex: "0", "aria-label": label, dir: "ltr" }, text.slice(0, most));
  return text.length <= most ? box : h("div", {}, box, more(`Show all ${size(text.length)}`, () => { box.textContent = readable(text); }));
}

// A button that shows the rest of something, once.
export function more(name, show) {
  const button = h("button", { type: "button", class: "quiet more", onclick: () => {
    show();
    button.remove();
  } }, name);
  return button;
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB"];
  let value = bytes;
  let unit = -1;
  do { value /= 1000; unit += 1; } while (value >= 1000 && unit < 2);
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

// Bytes of a size as the settings write it: 64MB, 1 GiB, or a number.
export function bytesOf(written) {
  const [, number, unit = "", binary] = /^\s*(\d+)\s*(?:([kmg])(i?)b)?/i.exec(String(written)) ?? [0, 0];
  return Number(number) * (binary ? 1024 : 1000) ** " kmg".indexOf(unit.toLowerCase() || " ");
}

export function duration(ms) {
  if (!ms) return "–";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

export function clock(seconds) {
  const date = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function count(number) {
  return Number(number).toLocaleString("en");
}

export function plural(number, word, words = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : words}`;
}

// Each name once, with its number.
export function counted(names) {
  const by = new Map();
  for (const name of names) by.set(name, (by.get(name) ?? 0) + 1);
  return [...by].map(([name, number]) => (number > 1 ? `${name} ×${number}` : name)).join(", ");
}

// A message at the edge of the window that disappears by itself.
let saying;
export function say(text) {
  clearTimeout(saying);
  document.getElementById("said").textContent = readable(text);
  if (text) saying = setTimeout(say, 6000, "");
}

export function json(text) {
  try { return JSON.parse(text); } catch { return undefined; }
}

// JSON over many lines; what is not JSON stays as it is.
export function pretty(text) {
  const value = json(text);
  return value === undefined ? text : JSON.stringify(value, null, 2);
}

export function download(name, type, content) {
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
