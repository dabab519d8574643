// Shows the view that the address names after the #. A view returns a function that ends it.

import { me } from "./api.js";
import { clear, h, readable, say } from "./dom.js";
import { turns } from "./turns.js";
import { turn } from "./turn.js";
import { conversation, conversations } from "./conversations.js";
import { stored, storedOne } from "./stored.js";
import { backends } from "./backends.js";
import { tryIt } from "./tryit.js";
import { numbers } from "./numbers.js";
import { notes } from "./notes.js";

const VIEWS = { turns, turn, conversations, conversation, stored, response: storedOne, backends, try: tryIt, numbers, notes };
const PARENTS = { turn: "turns", conversation: "conversations", response: "stored" };
const main = document.getElementById("main");
const nav = document.querySelector("nav");
let end = () => {};
let shown = 0;

async function show() {
  const [name, ...rest] = location.hash.slice(2).split("/").map(decoded);
  const chosen = Object.hasOwn(VIEWS, name) ? name : "turns";
  const number = ++shown;
  end();
  end = () => {};
  say("");
  mark(PARENTS[chosen] ?? chosen);
  scrollTo(0, 0);
  const place = h("div", {}, h("p", { class: "soft" }, "Loading…")); // a view that finishes late draws into a detached element
  clear(main, place);
  main.dataset.view = "";
  try {
    const ended = await VIEWS[chosen](place, ...rest);
    if (number !== shown) return ended?.();
    end = ended ?? end;
    main.dataset.view = chosen;
  } catch (error) {
    if (number !== shown) return;
    clear(place, h("h1", {}, "Something went wrong"), h("p", { class: "bad", role: "alert" }, error.message));
    main.dataset.view = "error";
  }
  document.title = `${main.querySelector("h1").textContent} · Toolwire`;
}

// A part of the address, decoded where possible.
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

// Marks the current entry of the navigation, and scrolls it into view.
function mark(name) {
  for (const link of nav.children) {
    const current = link.getAttribute("href") === `#/${name}`;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (current) nav.scrollTo({ left: link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2 });
  }
}

// Fades an edge of the navigation that hides entries.
function edges() {
  nav.classList.toggle("more-left", nav.scrollLeft > 2);
  nav.classList.toggle("more-right", nav.scrollLeft + nav.clientWidth < nav.scrollWidth - 2);
}

nav.addEventListener("scroll", edges, { passive: true });
window.addEventListener("resize", edges);
window.addEventListener("hashchange", () => {
  show().then(() => { if (!main.contains(document.activeElement)) main.focus({ preventScroll: true }); });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
show();
edges();
me().then((who) => { document.getElementById("who").textContent = readable(who.key || "token"); }, () => {}); // the view reports the error
