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
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export function clear(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

// Control characters, escape sequences of terminals and marks that turn the direction of text are shown, not obeyed.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function readable(text) {
  return String(text).replace(HIDDEN, (char) => `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export function pre(text, label, most = 200000) {
  const shown = readable(text.length > most ? text.slice(0, most) : text);
  const box = h("pre", { tabindex: "0", "aria-label": label, dir: "ltr" }, shown);
  if (text.length <= most) return box;
  const more = h("button", { type: "button", class: "quiet", onclick: () => {
    box.textContent = readable(text);
    more.remove();
  } }, `Show all ${size(text.length)}`);
  return h("div", {}, box, more);
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB"];
  let value = bytes;
  let unit = -1;
  do { value /= 1000; unit += 1; } while (value >= 1000 && unit < 2);
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
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

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function say(text) {
  document.getElementById("said").textContent = text;
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
