// A long list. Only the rows in sight are in the page. A row is changed in place, so that clicks, selections
// and the focus stay where they are, and the visible rows stay in sight while rows are added above them.

import { h } from "./dom.js";

const AROUND = 10;

// `make` gives a new row: its element, the link that is focused in it, and a function that updates it. `seen` is called
// with the ids of the rows in the page. Above the first row are the buttons of the head.
export function list(label, head, make, seen = () => {}) {
  const body = h("div", { class: "rows", role: "rowgroup" });
  const top = h("div", { class: "fixed", role: "rowgroup" }, head);
  const element = h("div", { class: "scroller", role: "grid", "aria-label": label }, top, body);
  const lines = new Map();
  let shown = [];
  let active;

  const height = () => parseFloat(getComputedStyle(element).getPropertyValue("--row"));
  const indexOf = (id) => shown.findIndex((row) => row.id === id);

  function set(rows) {
    const size = height();
    const before = element.scrollTop > 0 ? Math.floor(element.scrollTop / size) : -1;
    const anchor = shown[before]?.id;
    shown = rows;
    body.style.height = `${rows.length * size}px`;
    element.setAttribute("aria-rowcount", String(rows.length + 1));
    const now = anchor === undefined ? -1 : indexOf(anchor);
    if (now >= 0 && now !== before) element.scrollTop += (now - before) * size;
    render();
  }

  function render() {
    const size = height();
    const first = Math.floor(element.scrollTop / size);
    const wanted = inSight(first, Math.ceil(element.clientHeight / size));
    const ids = new Set(wanted.map((index) => shown[index].id));
    for (const [id, line] of lines) {
      if (ids.has(id)) continue;
      line.element.remove();
      lines.delete(id);
    }
    const stop = ids.has(active) ? active : shown[first]?.id;
    let next = body.firstChild;
    for (const index of wanted) {
      const line = place(shown[index], index * size, index);
      line.link.tabIndex = shown[index].id === stop ? 0 : -1;
      if (line.element === next) next = next.nextSibling;
      else body.insertBefore(line.element, next);
    }
    seen([...ids]);
  }

  // The rows in the page: those in sight, some around them, and the one that has the focus.
  function inSight(from, count) {
    const first = Math.max(0, from - AROUND);
    const last = Math.min(shown.length, from + count + AROUND);
    const wanted = Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset);
    const at = body.contains(document.activeElement) ? indexOf(active) : -1;
    if (at >= 0 && at < first) wanted.unshift(at);
    if (at >= last) wanted.push(at);
    return wanted;
  }

  function place(row, y, index) {
    if (!lines.has(row.id)) lines.set(row.id, make(row.id));
    const line = lines.get(row.id);
    line.update(row);
    line.element.style.transform = `translateY(${y}px)`;
    line.element.setAttribute("aria-rowindex", String(index + 2));
    return line;
  }

  function focus(index) {
    const size = height();
    const room = element.clientHeight - top.offsetHeight;
    active = shown[index].id;
    element.scrollTop = Math.min(index * size, Math.max(element.scrollTop, (index + 1) * size - room));
    render();
    lines.get(active).link.focus({ preventScroll: true });
  }

  element.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (head.contains(event.target) ? fromHead(event) : event.key === "ArrowUp" && shown[0]?.id === active && toHead()) return event.preventDefault();
    if (!shown.length || head.contains(event.target)) return;
    const page = Math.max(1, Math.floor(element.clientHeight / height()) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    focus(Math.min(shown.length - 1, Math.max(0, indexOf(active) + step)));
  });
  function toHead() {
    head.querySelector("button")?.focus();
    return head.contains(document.activeElement);
  }

  // From a button of the head to the next one, or down to the rows; returns whether the key does that.
  function fromHead({ key, target }) {
    const buttons = [...head.querySelectorAll("button")];
    const next = buttons.indexOf(target) + { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (key === "ArrowDown" && shown.length) focus(0);
    else if (buttons[next]) buttons[next].focus();
    else return false;
    return true;
  }

  body.addEventListener("focusin", (event) => {
    active = event.target.closest("[data-id]").dataset.id;
    for (const [id, line] of lines) line.link.tabIndex = id === active ? 0 : -1;
  });
  element.addEventListener("scroll", render, { passive: true });

  // The position: the first row in sight and how much of it is above the edge, and the row that has the focus.
  function position() {
    const first = Math.floor(element.scrollTop / height());
    return { first: element.scrollTop > 0 ? shown[first]?.id : undefined, above: element.scrollTop - first * height(), active, isFocused: body.contains(document.activeElement) };
  }

  // Go back to such a position; newer turns are above it.
  function restore(wanted) {
    const first = indexOf(wanted.first);
    if (first >= 0) element.scrollTop = first * height() + wanted.above;
    active = wanted.active;
    render();
    const line = lines.get(active);
    if (wanted.isFocused && line) line.link.focus({ preventScroll: true });
  }

  return { element, set, render, position, restore, toTop: () => { element.scrollTop = 0; } };
}
