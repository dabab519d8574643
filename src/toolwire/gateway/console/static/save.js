// Saves a part of the page as one file: with whole texts, without scripts, buttons and forms.

import { urlOf } from "./api.js";
import { download, h, say } from "./dom.js";

export async function save(name, title, part) {
  for (const more of part.querySelectorAll("button.more")) more.click();
  const style = await (await fetch(urlOf("static/style.css"))).text();
  const copied = part.cloneNode(true);
  for (const button of copied.querySelectorAll(".at button, .sort")) button.replaceWith(button.textContent);
  for (const dead of copied.querySelectorAll("button, form, input")) dead.remove();
  for (const link of copied.querySelectorAll("a")) link.replaceWith(h("span", { class: link.className }, ...link.childNodes));
  for (const details of copied.querySelectorAll("details")) details.setAttribute("open", "");
  const page = document.implementation.createHTMLDocument(title);
  page.documentElement.lang = "en";
  page.head.append(
    h("meta", { charset: "utf-8" }),
    h("meta", { "http-equiv": "Content-Security-Policy", content: "default-src 'none'; style-src 'unsafe-inline'" }),
    h("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }));
  page.body.append(h("main", {}, h("h1", {}, title), copied));
  const [head, rest] = split(page.documentElement.outerHTML, "</head>"); // this page's policy allows no style in a document
  download(name, "text/html", `<!doctype html>\n${head}<style>${style}</style></head>${rest}`);
  say("Saved.");
}

function split(text, at) {
  const index = text.indexOf(at);
  return [text.slice(0, index), text.slice(index + at.length)];
}
