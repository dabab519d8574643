// Which view is shown: the part of the address behind # says it. A view returns a function that ends it.

import { clear, h, say } from "./dom.js";
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
let end = () => {};
let shown = 0;

async function show() {
  const [name, ...rest] = location.hash.slice(2).split("/").map(decodeURIComponent);
  const chosen = Object.hasOwn(VIEWS, name) ? name : "turns";
  const number = ++shown;
  end();
  end = () => {};
  say("");
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.getAttribute("href") === `#/${PARENTS[chosen] ?? chosen}`;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  clear(main, h("p", { class: "soft" }, "Loading…"));
  main.dataset.view = "";
  try {
    const ended = await VIEWS[chosen](main, ...rest);
    if (number === shown) {
      end = ended ?? end;
      main.dataset.view = chosen;
    } else {
      ended?.();
    }
  } catch (error) {
    if (number === shown) clear(main, h("h1", {}, "That did not work"), h("p", { class: "bad", role: "alert" }, error.message));
    main.dataset.view = "error";
  }
}

window.addEventListener("hashchange", () => {
  show().then(() => main.focus({ preventScroll: true }));
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
show();
