"""A real browser looks at every view of the console, wide and narrow, light and dark."""

# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.app_server import Workers, done, say
from tests.support.app_server import calls as codex_calls
from tests.support.browser import browse
from tests.support.console import PAGES, ConsoleClient
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, response_body, tool
from tests.support.upstream import Hold, Reply, Upstream

WEATHER = [tool("get_weather", city={"type": "string"})]
HOSTILE = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">\u202eevil\x1b[31mred'
HIDDEN = "\u00ad \u115f \u1160 \u3164 \uffa0 \ufe01 \U000e0048 \U000e0101 a\ufe0f \u034f \u206a"
SHOWN = "⟨U+00AD⟩ ⟨U+115F⟩ ⟨U+1160⟩ ⟨U+3164⟩ ⟨U+FFA0⟩ ⟨U+FE01⟩ ⟨U+E0048⟩ ⟨U+E0101⟩ a⟨U+FE0F⟩ ⟨U+034F⟩ ⟨U+206A⟩"
HARMLESS = "❤\ufe0f ☂\ufe0e 1\ufe0f\u20e3 日本語 é"
FILTERS = {
    "": "abc",
    "long": "ab",
    "LONG -name": "a",
    'model:"long name"': "b",
    '"up/long n"': "b",
    "ms>100": "ac",
    "ms>100 ms<=250": "a",
    "first>=20": "a",
    "tokens>=1000": "a",
    "tokens>1100": "",
    "calls:1": "a",
    "calls=0": "bc",
    "-status:200": "bc",
    "status>=400": "b",
    "status:running": "c",
    "running": "c",
    "pinned": "a",
    "-pinned": "bc",
    "background": "b",
    "background:no": "ac",
    "stream": "a",
    "replay": "c",
    "replay:a": "c",
    "kept:whole": "a",
    "metadata": "b",
    "note:": "b",
    "-error:": "ac",
    "note:retried -tool:search": "b",
    "-": "",
    "nothing:here": "",
}
"""What is typed into the filter, and which of three turns it finds."""
SHOTS = os.environ.get("TOOLWIRE_SCREENSHOTS", "")
"""A folder for pictures of all views, for docs/images; none are taken without it."""

DRIVE = r"""
import { readFileSync } from "node:fs";
const axe = readFileSync("node_modules/axe-core/axe.min.js", "utf-8");
Object.assign(seen, { axe: [], wide: [], squeezed: [], current: {}, titles: {}, turns: {}, shots: {} });
async function judge(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const each of violations) seen.axe.push(`${name}: ${each.id} ${each.nodes[0].html.slice(0, 200)} ${each.nodes[0].failureSummary}`);
  const [wide, shown] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  if (wide > shown) seen.wide.push(`${name}: ${wide} in ${shown}`);
  seen.squeezed.push(...await page.evaluate((name) => [...document.querySelectorAll("th, td")].filter((cell) => {
    const inside = document.createRange(); // the cell itself is as high as its row
    inside.selectNodeContents(cell);
    const lines = Math.round(inside.getBoundingClientRect().height / parseFloat(getComputedStyle(cell).lineHeight));
    return cell.clientHeight > 2 && lines > (cell.tagName === "TH" ? 1 : 1 + cell.innerText.length / 12);
  }).map((cell) => `${name}: ${cell.innerText}`), name));
  seen.current[name] = await page.evaluate(() => {
    const [nav, link] = [document.querySelector("nav"), document.querySelector("nav [aria-current]")].map((each) => each?.getBoundingClientRect());
    return !link || (link.left >= nav.left - 1 && link.right <= nav.right + 1);
  });
}
async function shoot(page, name) {
  await page.mouse.move(0, 0);
  if (given.shots) seen.shots[name] = (await page.screenshot({ fullPage: !name.startsWith("turns") })).toString("base64");
}
const VIEWS = [["turns", "#/turns", "turns"], ["turn", `#/turn/${given.turns.repaired}`, "turn"], ["conversations", "#/conversations", "conversations"],
  ["conversation", `#/conversation/${given.conversation}`, "conversation"], ["stored", "#/stored", "stored"], ["response", `#/response/${given.stored}`, "response"], ["backends", "#/backends", "backends"], ["try", "#/try", "try"], ["numbers", "#/numbers", "numbers"], ["notes", "#/notes/retried", "notes"]];
"""

WIDE = r"""
let page = await open(1280, "light");
await page.goto(given.link);
await page.waitForSelector(".rows .row");
seen.address = page.url();
seen.rows = await page.locator(".rows .row").count();
await page.fill("#filter", "note:arguments_repaired");
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 1);
seen.filtered = await page.locator(".rows .row").innerText();
await page.click(".rows .pin");
await page.waitForSelector('.rows .pin[aria-pressed="true"]');
await page.fill("#filter", "pinned");
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 1);
seen.pinned = await page.locator(".rows .row").innerText();
await page.fill("#filter", "");
await page.waitForFunction((count) => document.querySelectorAll(".rows .row").length >= count, seen.rows);
await page.click("text=Pause");
seen.paused = await page.getAttribute("button[aria-pressed]", "aria-pressed");
await page.click("text=Resume");
await page.focus(".rows .row a");
const focused = () => page.evaluate(() => document.activeElement.closest(".row").getAttribute("aria-rowindex"));
seen.keys = {};
for (const key of ["ArrowDown", "End", "ArrowDown", "Home", "PageDown", "PageUp", "ArrowDown"]) {
  await page.keyboard.press(key);
  (seen.keys[key] ??= []).push(Number(await focused()));
}
seen.stops = await page.locator('.scroller [tabindex="0"]').count();
await page.keyboard.press("Enter");
await page.waitForSelector('main[data-view="turn"]');

seen.readable = await page.evaluate(async (texts) => {
  const { h, readable } = await import("/console/static/dom.js");
  const element = h("p", { "aria-label": texts[0], title: texts[0] }, texts[0]);
  return [...texts.map(readable), element.getAttribute("aria-label"), element.title, element.textContent];
}, given.texts);

for (const [name, id] of Object.entries(given.turns)) {
  await go(page, `#/turn/${id}`, "turn");
  await page.evaluate(() => document.querySelectorAll("main details").forEach((each) => { each.open = true; }));
  seen.turns[name] = await page.evaluate(() => ({
    text: document.querySelector("main").innerText, ticks: document.querySelectorAll(".timeline .tick").length, bars: document.querySelectorAll(".timeline .bar").length,
    injected: document.querySelectorAll("main img, main script, main iframe").length, hacked: Boolean(window.hacked), columns: document.querySelectorAll(".call .columns.three > div").length,
    marked: [...document.querySelectorAll("ins, del")].map((each) => each.textContent), gone: document.querySelectorAll(".line.gone, .line.new").length }));
  await shoot(page, `turn ${name}-1280-light`);
}
await go(page, `#/turn/${given.turns.repaired}`, "turn");
await page.click("text=Copy as curl");
await page.waitForFunction(() => document.getElementById("said").textContent);
seen.curl = await page.evaluate(() => navigator.clipboard.readText());
await page.waitForFunction(() => !document.getElementById("said").textContent);
const [saved] = await Promise.all([page.waitForEvent("download"), page.click("text=Save as HTML")]);
seen.saved = readFileSync(await saved.path(), "utf-8");
const [recorded] = await Promise.all([page.waitForEvent("download"), page.click("text=Download recording")]);
seen.recorded = readFileSync(await recorded.path(), "utf-8");
seen.parts = await page.evaluate(async () => {
  const [{ h, pre }, { save }, { curl }, { merged }, { lanes }] = await Promise.all(["dom", "save", "turn", "lanes", "lanes"].map((name) => import(`/console/static/${name}.js`)));
  globalThis.saveLong = () => save("long.html", "Long", h("article", {}, pre(`${"x".repeat(300000)}END`, "Text"), h("button", {}, "Dead"), h("a", { href: "#/turns" }, "linked")));
  const frame = (t) => [t, "event", "text", null];
  const call = { id: "c", name: "get_weather", arguments: "{}", complete: true, first: 0.9, last: 0.95 };
  const turn = { request: {}, answer: { frames: [] }, attempts: [], notes: [], calls: [{ model: call, client: call, same: true }] };
  const ends = (after) => {
    const figure = lanes({ at: 0, ms: 1000 }, turn, new Map([["c", { at: after, failed: false }]]));
    const [label, bar, tail] = ["text.call", ".bar", ".bar.after"].map((each) => figure.querySelector(each));
    return { arrow: Boolean(figure.querySelector(".arrow")), tail: parseFloat(tail.getAttribute("x")) + parseFloat(tail.getAttribute("width")), label: parseFloat(label.getAttribute("x")), bar: parseFloat(bar.getAttribute("x")) + parseFloat(bar.getAttribute("width")) };
  };
  return {
    curl: [curl({ dialect: "chat" }, { request: { body: "{}" } }), curl({ dialect: "messages" }, { path: "/obsidian-xml/v1/messages", request: { body: "it's\nBODY", headers: [["x-api-key", "(not kept)"], ["anthropic-beta", "a'b"], ["host", "x"]] } }),
      curl({ dialect: "gemini" }, { path: "/v1beta/models/m:streamGenerateContent", request: { body: "{}", headers: [["x-goog-api-key", "(not kept)"]] } })],
    ticks: [...merged([frame(0.1), frame(0.1), frame(0.102), frame(0.5)], (t) => 1 + 98 * t)].map(([, , events]) => events.length),
    within: ends(0.98), beyond: ends(5),
  };
});
const [long] = await Promise.all([page.waitForEvent("download"), page.evaluate(() => globalThis.saveLong())]);
seen.long = readFileSync(await long.path(), "utf-8");
await page.fill("#model", "demo-parallel");
await page.click("button:text-is('Replay')");
await page.waitForSelector(".replayed table");
seen.replayed = await page.locator(".replayed").innerText();
await page.click(".notes a");
await page.waitForSelector('main[data-view="notes"] .chosen');
seen.explained = await page.locator(".chosen").innerText();
await go(page, "#/conversations", "conversations");
await page.click(`a[href="#/conversation/${given.conversation}"]`);
await page.waitForSelector('main[data-view="conversation"] .stack');
seen.conversation = await page.locator("main").innerText();
await go(page, "#/stored", "stored");
await page.click(`a[href^="#/response/${given.stored}"]`);
await page.waitForSelector('main[data-view="response"] pre');
seen.stored = await page.locator("main").innerText();
await go(page, "#/try", "try");
await page.fill("#try-model", "demo");
for (const dialect of ["chat", "responses", "messages", "gemini"]) {
  await page.selectOption("#try-dialect", dialect);
  await page.click("button:text-is('Ask')");
  await page.waitForSelector(".tried .chip.good");
  await page.waitForSelector(".tried .call");
  seen[`try ${dialect}`] = await page.locator(".tried").innerText();
  await page.evaluate(() => document.querySelector(".tried").replaceChildren());
}
await go(page, "#/backends", "backends");
seen.backends = await page.locator("main").innerText();
await go(page, "#/numbers", "numbers");
seen.numbers = await page.locator("main").innerText();
seen.tiles = await page.evaluate(() => [...document.querySelectorAll(".tiles")].map((each) => [each.children.length, new Set([...each.children].map((tile) => tile.offsetTop)).size]));
for (const [name, hash, view] of VIEWS) {
  await go(page, hash, view);
  await page.waitForFunction(() => document.title !== "Toolwire console");
  seen.titles[name] = await page.title();
  await judge(page, `${name} 1280 light`);
  await shoot(page, `${name}-1280-light`);
}
await page.context().close();
"""

NARROW = r"""
page = await open(390, "dark");
await page.goto(given.link);
for (const [name, hash, view] of VIEWS) {
  await go(page, hash, view);
  await judge(page, `${name} 390 dark`);
  await shoot(page, `${name}-390-dark`);
}
await go(page, `#/turn/${given.turns.repaired}`, "turn");
await page.evaluate(() => document.querySelectorAll("main details").forEach((each) => { each.open = true; }));
seen.stacked = await page.evaluate(() => ({ names: [...document.querySelectorAll(".names h4")].map((each) => each.offsetHeight > 0), lines: [...document.querySelectorAll(".difference .line")].filter((each) => each.textContent).map((each) => each.getBoundingClientRect().width > 250) }));
await shoot(page, "turn-open-390-dark");
await go(page, "#/notes/retried", "notes");
seen.fades = await page.evaluate(() => document.querySelector("nav").className);
await page.click("text=Sign out");
await page.waitForSelector("#secret");
await judge(page, "sign-in 390 dark");
await page.context().close();

page = await open(1280, "dark");
await page.goto(given.link);
await page.waitForSelector(".rows .row");
for (const [name, hash, view] of VIEWS) {
  await go(page, hash, view);
  await judge(page, `${name} 1280 dark`);
  await shoot(page, `${name}-1280-dark`);
}
await page.context().close();

page = await open(390, "light");
await page.goto(given.link);
for (const [name, hash, view] of VIEWS) {
  await go(page, hash, view);
  await judge(page, `${name} 390 light`);
  await shoot(page, `${name}-390-light`);
}
await page.context().close();
"""

LIST = r"""
page = await open(1280, "dark");
const LONG = { id: "long", seq: 1, at: 1700000000, dialect: "chat", backend: "up", model: "model", ms: 5, first_ms: 1, kept: "metadata", client: "python-httpx/0.28.1", notes: ["arguments_repaired"], status: 502, error: "backend_unreachable", input: 75004, output: 75004, calls: ["get_weather", "get_weather"], call_count: 2 };
await page.route("**/console/api/turns?*", (route) => route.fulfill({ json: { now: 1700010000, workers: [{ process: "x", seq: 1, more: false, rows: [LONG], running: [], kept_bytes: 1000, capturing: 0 }] } }));
await page.goto(given.link);
await page.waitForSelector('[data-id="long"]');
const cut = (keyless) => page.evaluate((keyless) => {
  document.querySelector(".scroller").classList.toggle("keyless", keyless);
  return [...document.querySelectorAll('[data-id="long"] > span')].filter((cell) => cell.scrollWidth > cell.clientWidth + 1 || cell.scrollHeight > cell.clientHeight + 1).map((cell) => cell.textContent);
}, keyless);
seen.long_line = { cut: [...await cut(false), ...await cut(true)], text: await page.locator('[data-id="long"]').innerText() };
seen.found = await page.evaluate(async (filters) => {
  const { filter } = await import("/console/static/filter.js");
  const rows = [
    { id: "a", dialect: "chat", model: "up/long", status: 200, ms: 250, first_ms: 20, input: 900, output: 200, calls: ["search"], call_count: 1, kept: "whole", pinned: true, stream: true },
    { id: "b", dialect: "responses", model: "up/long name", status: 502, error: "backend_failed", ms: 40, call_count: 0, kept: "metadata", background: true, notes: ["retried"] },
    { id: "c", dialect: "messages", model: "demo", ms: 9000, kept: "running", replay_of: "a" },
  ];
  return Object.fromEntries(filters.map((each) => [each, rows.filter(filter(each).test).map((row) => row.id).join("")]));
}, given.filters);
await page.context().close();
"""

OLD = r"""
seen.old = {};
for (const name of ["numbers", "backends"]) {
  page = await open(1280, "light", true);
  let broken = false;
  await page.route(`**/console/api/${name}`, (route) => (broken ? route.abort() : route.continue()));
  await page.goto(given.link);
  await go(page, `#/${name}`, name);
  broken = true;
  await page.waitForSelector(".stale:not(:empty)");
  const old = await page.locator(".stale").innerText();
  broken = false;
  await page.waitForFunction(() => !document.querySelector(".stale").textContent);
  seen.old[name] = old;
  if (name === "backends") seen.health = await page.evaluate(async () => {
    const { health } = await import("/console/static/backends.js");
    const [good, broke] = [[1, 2, 3, 200, ""], [2, 2, 3, 200, "backend_failed"]];
    const of = (cooling, failovers, ...turns) => health({ cooling, failovers, turns })[1];
    return [of(3.2, 0), of(0, 0), of(0, 1), of(0, 0, good), of(0, 0, good, broke), of(0, 0, broke, good)];
  });
  await page.context().close();
}
"""

HELD = r"""
page = await open(1280, "light");
await page.goto(given.link);
await go(page, "#/try", "try");
await page.fill("#tool-name", "read_file");
await page.fill("#tool-description", "Reads a file");
await page.fill("#tool-parameters", "path, lines?:integer");
await page.click("text=Add tool");
seen.tool = JSON.parse(await page.inputValue("#try-tools")).at(-1);
await page.fill("#try-model", "up/b-held");
await page.click("button:text-is('Ask')");
await page.waitForFunction(() => /get_weather/.test(document.querySelector(".tried .calls").textContent));
const watcher = await page.context().newPage();
await watcher.goto(given.url);
await watcher.click(".row.live a");
await watcher.waitForSelector('main[data-view="turn"] .call');
await watcher.click("summary >> text=Of request and answer");
seen.held = { before: await watcher.locator("main").innerText(), tried: await page.locator(".tried").innerText() };
await page.click("text=Stop");
await page.waitForSelector(".tried a");
await judge(page, "tried 1280 light");
await shoot(page, "tried-1280-light");
seen.held.stopped = await page.locator(".tried [role=status]").innerText();
await watcher.waitForSelector("text=Download recording");
seen.held.after = await watcher.locator("main").innerText();
seen.held.unfolded = await watcher.evaluate(() => [...document.querySelectorAll("main details[open]")].map((each) => each.dataset.part));
seen.held.focused = await watcher.evaluate(() => document.activeElement.parentElement.dataset.part);
await go(page, `#/turn/${given.turns.repaired}`, "turn");
await page.fill("#model", "up/b-held");
const ended = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/replay"));
await Promise.all([page.waitForRequest("**/replay"), page.click("button:text-is('Replay')")]);
await go(page, "#/notes", "notes");
seen.left = (await ended).failure().errorText;
seen.pieces = await page.evaluate(async () => {
  const { answer } = await import("/console/static/answer.js");
  const read = (bytes, step) => {
    const found = { text: "", calls: {} };
    const reader = answer((piece) => { found.text += piece; }, (index, call, more) => { found.calls[index] = `${call.id} ${call.name} ${(found.calls[index] ?? "").split(" ")[2] ?? ""}${more}`; });
    for (let at = 0; at < bytes.length; at += step) reader.feed(bytes.slice(at, at + step));
    reader.end();
    return found;
  };
  const sse = (...values) => values.map((each) => `event: x\ndata: ${JSON.stringify(each)}\n\n`).join("");
  const chat = sse({ choices: [{ delta: { content: "Hi" } }] }, { choices: [{ delta: { tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "{" } }] } }] }, { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: "}" } }] } }] });
  const plain = JSON.stringify({ choices: [{ message: { content: "Hi", tool_calls: [{ id: "c1", function: { name: "f", arguments: "{}" } }] } }] }, null, 1);
  const messages = JSON.stringify({ content: [{ type: "tool_use", id: "c1", name: "f", input: {} }, { type: "text", text: "Hi" }] });
  const parts = [{ text: "Hm.", thought: true }, { text: "Hi" }, { functionCall: { id: "c1", name: "f", args: {} }, thoughtSignature: "s" }];
  const gemini = sse(...parts.map((part) => ({ candidates: [{ content: { parts: [part] } }] })), { usageMetadata: {} }).replaceAll("\n", "\r\n");
  const whole = JSON.stringify({ candidates: [{ content: { parts }, finishReason: "STOP" }] });
  const large = sse(...Array.from({ length: 20000 }, () => ({ choices: [{ delta: { content: "word " } }] })));
  return { found: [read(chat, 1), read(chat, 7), read(chat, 10000), read(plain, 5), read(messages, 5), read(gemini, 7), read(whole, 5)], words: read(large, 100).text.length };
});
await page.context().close();
"""


class Turns:
    """Real turns of every kind, and their ids."""

    def __init__(self, gateway: Gateway, upstream: Upstream, workers: Workers, console: ConsoleClient) -> None:
        self._gateway, self._upstream, self._workers, self._console = gateway, upstream, workers, console
        self.ids: dict[str, str] = {}

    def post(self, name: str, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> Any:
        answer = httpx.post(self._gateway.url + path, json=body, headers=headers, timeout=120, trust_env=False)
        self.ids[name] = self._console.wait_for(model=body["model"])["id"]
        return answer

    def make(self) -> None:
        replies = self._upstream.replies
        looks = call("c1", "get_weather", '{"city":', '"Paris"}')
        replies["b-streamed"] = Reply([created(), text("Let me look."), looks, completed()])
        replies["b-repaired"] = Reply([stream(created(), call("c2", "get_weather", "{'city': 'Oslo',}"), completed())])
        replies["b-shared"] = Reply([b'{"error":{"message":"Down."}}'], 503, "application/json")
        replies["b-shared-second"] = Reply([stream(created(), text("Here."), completed())])
        replies["b-later"] = Reply([stream(created(), text("Done."), completed())])
        replies["b-socket"] = Reply([stream(created(), call("c3", "get_weather", '{"city":"Rome"}'), completed())])
        hostile = call("c4", "get_weather", json.dumps({"city": HOSTILE}))
        replies["b-hostile"] = Reply([stream(created(), text(HOSTILE), hostile, completed())])
        replies["b-held"] = Reply([created(), text("Wait."), looks, Hold()])
        self.post("streamed", chat_body("up/b-streamed", stream=True, tools=WEATHER))
        self.post("repaired", chat_body("up/b-repaired", tools=WEATHER), authorization="Bearer sk-of-the-client")
        self.post("failed over", chat_body("b-shared", stream=True))
        self.post("textual", chat_body("demo-use-tool", stream=True, tools=WEATHER))
        codex = self._workers.script([*codex_calls(("c1", "get_weather", '{"city":"Bonn"}')), *say("ok"), *done()])
        self.post("codex", chat_body(codex, stream=True, tools=WEATHER))
        self.post("background", response_body("up/b-later", background=True), "/v1/responses")
        self._over_socket()
        replies["b-broken"] = Reply([b'{"error":{"message":"Broken."}}'], 400, "application/json")
        self.post("hostile", chat_body("up/b-hostile", stream=True, tools=WEATHER))
        self.post("broken", chat_body("up/b-broken"))

    def _over_socket(self) -> None:
        with connect(self._gateway.url.replace("http", "ws") + "/v1/responses") as socket:
            socket.send(json.dumps({"type": "response.create", **response_body("up/b-socket", tools=WEATHER)}))
            while json.loads(socket.recv(timeout=120))["type"] != "response.completed":
                pass
        self.ids["websocket"] = self._console.wait_for(model="up/b-socket")["id"]

    def conversation(self) -> str:
        """A conversation whose cache breaks; its id."""
        history: list[dict[str, Any]] = [
            {"role": "system", "content": "You are helpful. It is 1 o'clock."},
            {"role": "user", "content": "What is the weather in Rome?"},
        ]
        first = self.post("asks", chat_body("demo", messages=history, tools=WEATHER)).json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "Sunny, 24 degrees"}
        second = self.post("answers", chat_body("demo", messages=[*history, first, result], tools=WEATHER)).json()
        history[0] = {"role": "system", "content": "You are helpful. It is 2 o'clock."}
        history += [first, result, second["choices"][0]["message"], {"role": "user", "content": "And in Oslo?"}]
        self.post("goes on", chat_body("demo", messages=history, tools=WEATHER))
        [found] = [each for each in self._console.get("conversations") if each["turns"] == 3]
        return found["id"]


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the browser saw, in one visit."""
    workers = Workers(tmp_path_factory.mktemp("console-browser-codex"))
    config = "\n".join(
        (
            backend(upstream.url, "first", models='["b-shared"]'),
            backend(upstream.url, "second", aliases='{ b-shared = "b-shared-second" }'),
            backend(upstream.url),
            workers.backend(),
        )
    )
    gateway = Gateway(tmp_path_factory.mktemp("console-browser"), config, PROXY_TOOL_ARGUMENTS="repair")
    try:
        with ConsoleClient(gateway) as console:
            turns = Turns(gateway, upstream, workers, console)
            turns.make()
            conversation = turns.conversation()
            stored = next(row["id"] for row in console.get("stored") if row["background"])
        given = {
            "link": gateway.console,
            "url": gateway.url,
            "turns": {name: turns.ids[name] for name in list(turns.ids)[:8]},
            "conversation": conversation,
            "stored": stored,
            "filters": list(FILTERS),
            "texts": [HIDDEN, HARMLESS],
            "shots": bool(SHOTS),
        }
        found = browse(PAGES + DRIVE + WIDE + NARROW + LIST + HELD + OLD, given)
        for name, picture in found["shots"].items():
            (Path(SHOTS) / f"{name}.png").write_bytes(base64.b64decode(picture))
        yield found
    finally:
        gateway.stop()


def test_nothing_is_said_in_the_browsers_console_and_nothing_is_fetched_from_elsewhere(seen):
    assert (seen["said"], seen["elsewhere"]) == ([], [])


def test_no_view_has_a_fault_of_accessibility(seen):
    assert seen["axe"] == []


def test_no_view_is_wider_than_its_window(seen):
    assert seen["wide"] == []


def test_no_cell_of_a_table_is_squeezed(seen):
    assert seen["squeezed"] == []


def test_the_navigation_shows_its_current_entry_and_that_there_is_more(seen):
    assert [name for name, is_in_sight in seen["current"].items() if not is_in_sight] == []
    assert "more-left" in seen["fades"]


def test_every_view_has_a_title_of_its_own(seen):
    assert len(set(seen["titles"].values())) == len(seen["titles"]) == 10
    assert seen["titles"]["turn"] == "up/b-repaired · chat › up · Toolwire"


def test_the_list_filters_pauses_and_goes_by_keyboard(seen):
    assert "token" not in seen["address"]
    assert seen["rows"] >= 11
    assert "arguments_repaired" in seen["filtered"]
    assert seen["paused"] == "true"
    last = seen["keys"]["End"][0]
    assert seen["keys"] == {
        "ArrowDown": [3, last, 3],
        "End": [last],
        "Home": [2],
        "PageDown": seen["keys"]["PageDown"],
        "PageUp": [2],
    }
    assert seen["keys"]["PageDown"][0] > 3
    assert last >= seen["rows"]
    assert seen["stops"] == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("streamed", ["up/b-streamed", "get_weather", "Nothing.", "Let me look."]),
        ("failed over", ["first 503", "second 200", "failed_over", "Attempt 1", "status 503"]),
        ("repaired", ["arguments_repaired", "{'city': 'Oslo',}", "As the client got it"]),
        ("textual", ["Written in its text:", "<use_tool>", "Text became a call."]),
        ("codex", ["codex", "turn/start", "Bonn"]),
        ("background", ["background", "Done."]),
        ("websocket", ["websocket", "Rome"]),
    ],
)
def test_a_turn_shows_what_happened(seen, name: str, words: list[str]):
    found = seen["turns"][name]
    assert [word for word in words if word not in found["text"]] == []
    assert found["ticks"] >= 2


def test_a_repaired_call_has_its_difference_marked(seen):
    found = seen["turns"]["repaired"]
    assert (found["columns"], found["bars"]) == (3, 1)
    assert found["marked"]
    assert found["gone"] > 0


def test_what_a_hostile_model_writes_is_text(seen):
    found = seen["turns"]["hostile"]
    assert (found["hacked"], found["injected"]) == (False, 0)
    assert "<script>window.hacked = 1</script>" in found["text"]
    assert "⟨U+202E⟩evil⟨U+001B⟩[31mred" in found["text"]
    assert "\u202e" not in found["text"]


def test_characters_that_hide_are_shown_also_where_they_are_read_out(seen):
    assert seen["readable"] == [SHOWN, HARMLESS, SHOWN, SHOWN, SHOWN]


def test_a_copied_curl_has_no_key_and_a_saved_page_no_script(seen):
    assert "authorization: Bearer YOUR_KEY" in seen["curl"]
    assert "sk-of-the-client" not in seen["curl"]
    assert "/v1/chat/completions" in seen["curl"]
    assert "<script" not in seen["saved"]
    assert "default-src 'none'" in seen["saved"]
    assert "get_weather" in seen["saved"]
    assert json.loads(seen["recorded"].splitlines()[0])["kind"] == "responses"


def test_a_saved_page_has_the_whole_text_and_nothing_dead(seen):
    for page in (seen["saved"], seen["long"]):
        assert not any(tag in page for tag in ("<button", "<form", "<input", "<a ", "href="))
    assert "xEND</pre>" in seen["long"]
    assert "linked" in seen["long"]


def test_a_copied_curl_has_the_path_that_was_asked(seen):
    one, other, gemini = seen["parts"]["curl"]
    assert "/v1/chat/completions' -H 'content-type: application/json' --data-binary @- <<'BODY'\n{}\nBODY\n" in one
    assert "/obsidian-xml/v1/messages' -H 'content-type: application/json' -H 'x-api-key: YOUR_KEY'" in other
    assert "-H 'anthropic-beta: a'\\''b'" in other
    assert "/v1beta/models/m:streamGenerateContent?alt=sse' -H" in gemini
    assert "-H 'x-goog-api-key: YOUR_KEY'" in gemini
    assert other.endswith("--data-binary @- <<'BODY_'\nit's\nBODY\nBODY_\n")


def test_the_time_line_has_every_frame_and_ends_a_bar_where_its_result_came(seen):
    parts = seen["parts"]
    assert parts["ticks"] == [2, 1, 1]
    assert (parts["within"]["arrow"], parts["beyond"]["arrow"]) == (False, True)
    assert parts["within"]["tail"] < 98 < parts["beyond"]["tail"]
    assert parts["within"]["label"] == pytest.approx(parts["within"]["bar"])


def test_a_note_leads_to_what_it_means(seen):
    assert "arguments_repaired" in seen["explained"]
    assert "repaired without changing their meaning" in seen["explained"]


def test_requests_stand_under_each_other_on_a_phone(seen):
    assert seen["stacked"]["names"] == [True, True]
    assert set(seen["stacked"]["lines"]) == {True}


def test_a_replay_is_compared(seen):
    assert "Status 200" in seen["replayed"]
    assert "differs" in seen["replayed"]


def test_a_replay_ends_when_one_leaves_it(seen):
    assert seen["left"] == "net::ERR_ABORTED"


def test_a_stored_response_shows_what_was_said(seen):
    assert "completed, background" in seen["stored"]
    for name in ("Input", "Output", '"role": "user"', '"type": "message"'):
        assert name in seen["stored"]


def test_a_conversation_shows_results_and_where_the_cache_broke(seen):
    assert "The prompt cache broke at byte" in seen["conversation"]
    assert "result, 17 characters" in seen["conversation"]
    assert "3 turns" in seen["conversation"]


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
def test_a_turn_can_be_tried_in_every_dialect(seen, dialect: str):
    assert "status 200" in seen[f"try {dialect}"]
    assert "get_weather" in seen[f"try {dialect}"]


def test_a_tool_from_the_form_has_a_description_and_may_leave_parameters_out(seen):
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path"],
    }
    assert seen["tool"] == {"name": "read_file", "description": "Reads a file", "parameters": parameters}


def test_an_answer_is_shown_while_it_comes_and_can_be_stopped(seen):
    held = seen["held"]
    assert "Wait." in held["tried"]
    assert "Stopped." in held["stopped"]
    assert "up/b-held" in held["after"]
    assert "is running" not in held["after"]


def test_a_turn_that_is_under_way_shows_what_was_said_so_far(seen):
    held = seen["held"]
    for words in ("This turn is running.", "Wait.", "get_weather", '{"city":"Paris"}', "1 call"):
        assert words in held["before"]
    for words in ("Replay", "withheld", "not complete"):
        assert words not in held["before"]
    assert (held["unfolded"], held["focused"]) == (["headers"], "headers")


def test_an_answer_is_read_piece_by_piece(seen):
    assert seen["pieces"]["found"] == [{"text": "Hi", "calls": {"0": "c1 f {}"}}] * 7
    assert seen["pieces"]["words"] == 100_000


def test_backends_and_numbers_say_how_it_goes(seen):
    assert "cooling down" in seen["backends"] or "failing" in seen["backends"] or "Failed over" in seen["backends"]
    assert "get_weather" in seen["numbers"]
    assert "arguments_repaired" in seen["numbers"]

    assert seen["tiles"] == [[6, 1], [6, 1]]
    assert "Failures\n1 of 1 (100 %), 1 answered by others" in seen["backends"]
    assert all(f"p{share}" in seen["backends"] for share in (50, 99))


def test_the_health_of_a_backend_in_words(seen):
    words = seen["health"]
    assert words[:3] == ["cooling down for 4 s", "not asked yet", "failing"]
    assert words[3:] == ["answering", "failing", "answering, some turns failed"]


@pytest.mark.parametrize("view", ["numbers", "backends"])
def test_a_view_says_that_it_is_old_and_goes_on_asking(seen, view: str):
    assert "the gateway does not answer" in seen["old"][view]
    assert "Last updated at" in seen["old"][view]


def test_a_line_of_the_list_has_room_for_what_it_says(seen):
    assert seen["long_line"]["cut"] == []
    for words in ("75,004 / 75,004", "502", "backend_unreachable", "get_weather ×2"):
        assert words in seen["long_line"]["text"]


def test_a_turn_is_kept_from_the_list(seen):
    assert "up/b-repaired" in seen["pinned"]


def test_the_list_is_filtered_by_anything(seen):
    assert seen["found"] == FILTERS
