"""A real browser uses the views of the console beside that of one turn: Try it, Backends, the list, signing in."""

# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownVariableType=false

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.browser import browse
from tests.support.console import PAGES, ConsoleClient
from tests.support.frames import completed, created, rs, stream, text
from tests.support.gateway import Gateway, backend, chat_body
from tests.support.upstream import Reply, Upstream

KEYS = "\n".join(
    f'[[keys]]\nname = "{name}"\nkey = "{name}-key-123456"\nconsole = "all"\n' for name in ("ann", "somebody-else")
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PLAIN = {"name": "look", "description": "Looks", "parameters": SCHEMA, "strict": True}
TOOLS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "chat": {"type": "function", "function": PLAIN},
    "responses": {"type": "function", **PLAIN},
    "messages": {"name": "look", "description": "Looks", "input_schema": SCHEMA, "strict": True},
}
GEMINI = {"functionDeclarations": [{"name": "look", "description": "Looks", "parametersJsonSchema": SCHEMA}]}
"""It has no `strict`, and a list of them is taken apart."""
OTHERS: list[dict[str, Any]] = [
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
    {"type": "custom", "custom": {"name": "patch"}},
    {"type": "web_search"},
    {"type": "web_search_20250305", "name": "web_search"},
]
"""Tools that are no functions."""
TURNS = 60

TRY = r"""
let page = await open(1280, "light");
await page.goto(given.link);
await page.waitForSelector(".rows .row");
seen.tools = await page.evaluate(async ({ tools, others }) => {
  const { toolFor } = await import("/console/static/tryit.js");
  const written = (dialect, tool) => JSON.parse(JSON.stringify(toolFor(dialect, tool)));
  const each = (list) => Object.fromEntries(["chat", "responses", "messages", "gemini"].map((dialect) => [dialect, list.map((tool) => written(dialect, tool))]));
  return { functions: each(Object.values(tools)), others: each(others) };
}, given);
await go(page, "#/try", "try");
async function ask(model, dialect, streamed = true, tools = "[]") {
  await page.fill("#try-model", model);
  await page.selectOption("#try-dialect", dialect);
  await page.setChecked("#try-stream", streamed);
  await page.fill("#try-tools", tools);
  await page.evaluate(() => document.querySelector(".tried").replaceChildren());
  await page.click("button:text-is('Ask')");
  await page.waitForSelector(".tried [role=status] .chip");
  return page.evaluate(() => ({ status: document.querySelector(".tried [role=status]").innerText, red: document.querySelector(".tried [role=status] .bad:not(.chip)")?.innerText,
    text: document.querySelector("[aria-label=Text]").innerText, reasoning: document.querySelector("[aria-label=Reasoning]").checkVisibility() && document.querySelector("[aria-label=Reasoning]").innerText }));
}
seen.asked = {};
await ask("up/v-tools", "chat", true, JSON.stringify([given.tools.messages]));
await ask("up/v-tools", "messages", true, JSON.stringify([given.tools.chat]));
await ask("up/v-tools", "gemini", true, JSON.stringify([given.gemini]));
await page.fill("#try-tools", "{");
await page.click("button:text-is('Ask')");
await page.waitForFunction(() => document.getElementById("said").textContent);
seen.wrong = await page.locator("#said").innerText();
seen.good = { ...await ask("up/v-tools", "chat"), said: await page.locator("#said").textContent() };
for (const dialect of ["chat", "responses", "messages", "gemini"]) {
  for (const streamed of [true, false]) seen.asked[`thinks ${dialect} ${streamed}`] = await ask("up/v-thinks", dialect, streamed);
}
await page.context().close();
page = await open(1280, "light", true); // the browser says of every failed request that it failed
await page.goto(given.link);
await go(page, "#/try", "try");
for (const dialect of ["chat", "responses", "messages", "gemini"]) {
  seen.asked[`refused ${dialect}`] = await ask("up/v-refused", dialect);
  seen.asked[`breaks ${dialect}`] = await ask("up/v-breaks", dialect);
}
seen.asked.foreign = await ask("up/v-unknown-key", "chat");
await go(page, "#/turn/%", "error");
seen.noTurn = await page.locator("main").innerText();
await go(page, "#/try", "try");
await page.context().clearCookies();
await page.click("button:text-is('Ask')");
await page.waitForSelector("#secret");
seen.signedOut = page.url();
await page.context().close();
"""

LIST = r"""
page = await open(1280, "light");
await page.goto(given.link);
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length > 20);
const list = () => page.evaluate(() => ({ top: document.querySelector(".scroller").scrollTop, first: document.querySelector(".rows .row").dataset.id,
  focused: document.activeElement.closest(".row")?.dataset.id, pause: document.querySelector("button[aria-pressed]").innerText }));
await page.evaluate(() => { document.querySelector(".scroller").scrollTop = 1000; });
await page.waitForSelector('.rows [aria-rowindex="30"]');
await page.click("text=Pause");
await page.focus('.rows [aria-rowindex="30"] a');
const before = await list();
await page.keyboard.press("Enter");
await page.waitForSelector('main[data-view="turn"]');
await page.request.post(`${given.url}/v1/chat/completions`, { data: given.body });
await page.goBack();
await page.waitForSelector('main[data-view="turns"]');
await page.waitForFunction(() => /1 new/.test(document.querySelector("button[aria-pressed]").innerText));
seen.back = [before, await list()];
await page.click("text=Resume");
await page.waitForFunction(() => document.querySelector("button[aria-pressed]").innerText === "Pause");
await page.click('.rows [aria-rowindex="30"] .c-time'); // anywhere in a row
await page.waitForSelector('main[data-view="turn"]');
const opened = decodeURIComponent(page.url().split("/").at(-1));
await page.goBack();
await page.waitForSelector('main[data-view="turns"]');
seen.clicked = [opened, (await list()).focused];
seen.found = {};
for (const word of given.words) {
  await page.fill("#filter", word);
  await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 1);
  seen.found[word] = await page.getAttribute(".rows .row", "data-id");
}
await page.fill("#filter", "replay");
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 1);
seen.replay = await page.locator(".rows .c-model").innerText();
await page.fill("#filter", "");
seen.requests = await page.evaluate(async () => {
  const { filter } = await import("/console/static/filter.js");
  return ["request:req_7", "id:req_7", "req_7", "msg_7"].map((word) => filter(word).test({ id: "a", request_id: "req_7" }));
});
await page.context().close();
"""

CHECK = r"""
page = await open(1280, "light");
await page.setViewportSize({ width: 700, height: 500 });
await page.goto(given.link);
await go(page, "#/backends", "backends");
seen.health = await page.evaluate(async () => {
  const { health } = await import("/console/static/backends.js");
  return Object.fromEntries([200, 400, 401, 403, 404, 408, 422, 429, 499, 500, 503].map((status) => [status, health({ cooling: 0, failovers: 0, turns: [[1, 2, 3, status, status === 200 ? "" : "failed"]] })[1]]));
});
seen.plot = await page.locator('[data-name="up"] .plot').getAttribute("aria-label");
seen.scale = await page.locator('[data-name="up"] .plot').textContent();
seen.card = await page.locator('[data-name="up"]').innerText();
await page.click("text=Check demo");
await page.waitForSelector('[data-name="demo"] progress');
await page.waitForFunction(() => /At most/.test(document.querySelector(".report:focus").innerText));
seen.progress = await page.evaluate(() => {
  const report = document.querySelector('[data-name="demo"] .report');
  const place = report.getBoundingClientRect();
  return { text: report.innerText, inSight: place.top < innerHeight && place.bottom > 0, disabled: [...document.querySelectorAll(".backend > button")].map((each) => each.disabled) };
});
await page.waitForSelector('[data-name="demo"] iframe, [data-name="demo"] .report pre');
seen.report = await page.evaluate(() => ({ text: document.querySelector('[data-name="demo"] .report').innerText, reports: document.querySelectorAll("iframe").length, disabled: [...document.querySelectorAll(".backend > button")].map((each) => each.disabled) }));
await page.click("text=turns of the client toolwire-check");
await page.waitForSelector('main[data-view="turns"] .rows .row');
seen.checkTurns = [...new Set(await page.locator(".rows .c-way small").allTextContents())];
await go(page, "#/notes/call_capped", "notes");
seen.note = await page.locator(".chosen").innerText();
await go(page, "#/stored", "stored");
await page.locator("main tr", { has: page.locator(`a[href^="#/response/resp_${given.stored}"]`) }).locator("text=Open the turn").click();
await page.waitForSelector('main[data-view="turn"]');
seen.storedTurn = page.url().split("/").at(-1);
await page.context().close();
"""

SIGN_IN = r"""
seen.sizes = {};
let page = await open(1280, "light", true); // a wrong key is answered with 403
await page.goto(`${given.url}/#/turn/${given.id}`);
await page.waitForSelector("#secret");
seen.card = await page.evaluate(() => { const { left, right } = document.querySelector("main").getBoundingClientRect(); return [left, document.documentElement.clientWidth - right]; });
await page.fill("#secret", "wrong");
await page.keyboard.press("Enter");
await page.waitForSelector(".bad:not(:empty)");
await page.fill("#secret", "ann-key-123456");
await page.keyboard.press("Enter");
await page.waitForSelector('main[data-view="turn"]');
seen.address = page.url();
await page.waitForFunction(() => document.getElementById("who").textContent);
seen.who = [await page.locator("#who").innerText()];
await go(page, "#/turns", "turns");
await page.waitForSelector(".rows .row");
for (const width of [1280, 1100, 1000, 820, 780]) {
  await page.setViewportSize({ width, height: 800 });
  seen.sizes[width] = await page.evaluate(() => ({
    status: document.querySelector(".rows .c-status").getBoundingClientRect().right <= innerWidth,
    all: document.querySelector(".scroller").scrollWidth <= document.querySelector(".scroller").clientWidth,
    clipped: [...document.querySelectorAll(".row.head > span")].filter((each) => each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1).map((each) => each.innerText),
  }));
}
seen.order = await page.locator(".row.head > span").allTextContents();
await page.context().close();
page = await open(390, "light");
await page.goto(given.link);
await page.waitForFunction(() => document.getElementById("who").textContent);
seen.who.push(await page.locator("#who").innerText());
await page.context().close();
"""


def scripted(upstream: Upstream) -> None:
    """What the models of these tests answer."""
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    thought = stream(
        rs("output_item.added", output_index=0, item=item),
        rs("reasoning_summary_part.added", item_id="rs_1", output_index=0, summary_index=0, part={}),
        rs("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="Hm."),
        rs(
            "output_item.done",
            output_index=0,
            item={**item, "summary": [{"type": "summary_text", "text": "Hm."}]},
        ),
    )
    failed = {"id": "resp_1", "status": "failed", "error": {"code": "server_error", "message": "It broke."}}
    upstream.replies |= {
        "v-tools": Reply([stream(created(), text("Well."), completed())]),
        "v-thinks": Reply([stream(created(), thought, text("Well.", index=1), completed())]),
        "v-refused": Reply([b'{"error":{"message":"No such field."}}'], 400, "application/json"),
        "v-unknown-key": Reply([b'{"error":{"message":"Unknown key."}}'], 401, "application/json"),
        "v-breaks": Reply([stream(created(), text("Half"), rs("failed", response=failed))]),
    }


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the browser saw of a gateway without keys."""
    scripted(upstream)
    gateway = Gateway(tmp_path_factory.mktemp("console-views"), backend(upstream.url))
    try:
        with ConsoleClient(gateway) as console, httpx.Client(base_url=gateway.url, timeout=90, trust_env=False) as http:
            for _ in range(TURNS):
                answer = http.post("/v1/chat/completions", json=chat_body("demo")).json()
            chat = console.wait_for(id=answer["id"].removeprefix("chatcmpl-"))["id"]
            http.post("/v1/chat/completions", json=chat_body("up/v-refused"))
            console.post(f"turns/{chat}/replay", model="demo")
            body = {"model": "demo", "input": "Hi", "store": True}
            stored = http.post("/v1/responses", json=body).json()["id"].removeprefix("resp_")
            console.wait_for(id=stored)
        given = {
            "link": gateway.console,
            "url": gateway.url,
            "tools": TOOLS,
            "gemini": GEMINI,
            "others": OTHERS,
            "stored": stored,
            "words": [f"chatcmpl-{chat}", f"id:chatcmpl-{chat}", f"resp_{stored}", f"id:resp_{stored}"],
            "body": chat_body("demo"),
        }
        found = browse(PAGES + TRY + LIST + CHECK, given)
        yield found | {"chat": chat, "response": stored}
    finally:
        gateway.stop()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the browser saw of a gateway with keys."""
    gateway = Gateway(tmp_path_factory.mktemp("console-views-keyed"), KEYS)
    try:
        with ConsoleClient(gateway) as console:
            for name in ("ann", "somebody-else"):
                headers = {"authorization": f"Bearer {name}-key-123456"}
                httpx.post(f"{gateway.url}/v1/responses", json={"model": "demo", "input": "Hi"}, headers=headers)
            id = console.wait_for(key="ann")["id"]
        yield browse(PAGES + SIGN_IN, {"url": gateway.url, "link": gateway.console, "id": id}) | {"id": id}
    finally:
        gateway.stop()


def test_nothing_is_wrong_in_the_page(seen, keyed):
    assert (seen["said"], seen["elsewhere"]) == ([], [])
    assert (keyed["said"], keyed["elsewhere"]) == ([], [])


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
def test_a_pasted_tool_of_any_dialect_becomes_one_of_the_dialect_that_is_asked(seen, dialect: str):
    assert seen["tools"]["functions"][dialect] == [{**TOOLS, "gemini": GEMINI}[dialect]] * 4
    assert seen["tools"]["others"][dialect] == OTHERS


def test_the_schema_of_a_pasted_tool_reaches_the_backend(seen, upstream: Upstream):
    asked = [each.body["tools"] for each in upstream.of("v-tools") if each.body.get("tools")]
    assert [tool["parameters"]["properties"] for [tool] in asked] == [SCHEMA["properties"]] * 3
    assert [(tool["name"], tool["description"]) for [tool] in asked] == [("look", "Looks")] * 3


def test_a_message_about_the_tools_does_not_outlive_the_next_answer(seen):
    assert seen["wrong"] == "The tools are not a JSON list."
    assert (seen["good"]["text"], seen["good"]["said"]) == ("Well.", "")
    assert "Open the turn" in seen["good"]["status"]
    assert seen["good"]["reasoning"] is False


@pytest.mark.parametrize("streamed", ["true", "false"])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
def test_reasoning_has_a_box_of_its_own(seen, dialect: str, streamed: str):
    found = seen["asked"][f"thinks {dialect} {streamed}"]
    assert (found["text"], found["reasoning"]) == ("Well.", "Hm.")


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
def test_the_message_of_an_error_stands_beside_the_status(seen, dialect: str):
    refused, broke = (seen["asked"][f"{name} {dialect}"] for name in ("refused", "breaks"))
    assert "status 400" in refused["status"]
    assert "No such field." in refused["red"]
    assert broke["text"] == "Half"
    assert "It broke." in broke["red"]


def test_trying_without_being_signed_in_leads_to_the_sign_in_page(seen):
    assert "Unknown key." in seen["asked"]["foreign"]["status"]
    assert seen["signedOut"].endswith("/#/try")


def test_an_address_that_is_not_encoded_shows_an_error(seen):
    assert "Something went wrong" in seen["noTurn"]


def test_going_back_to_the_list_restores_the_place_the_row_and_the_pause(seen):
    before, after = seen["back"]
    assert after == {**before, "pause": "Resume (1 new)"}
    assert after["top"] == 1000
    assert after["focused"]
    assert len(set(seen["clicked"])) == 1


def test_a_turn_is_found_by_the_id_that_its_client_has(seen):
    assert list(seen["found"].values()) == [seen["chat"]] * 2 + [seen["response"]] * 2
    assert seen["requests"] == [True, True, True, False]


def test_a_replay_is_marked_in_the_list(seen):
    assert seen["replay"] == "demo replay"


def test_a_fault_of_the_client_is_no_failure_of_the_backend(seen):
    words = seen["health"]
    assert [status for status in words if words[status] == "answering"] == ["200", "400", "404", "422", "499"]
    assert [status for status in words if words[status] == "failing"] == ["401", "403", "408", "429", "500", "503"]


def test_the_times_of_a_backend_are_drawn_on_a_logarithmic_scale(seen):
    assert re.match(r"Time to the first token, or to the end of plain turns, of \d+ turns, from ", seen["plot"])
    assert "logarithmic scale" in seen["scale"]
    assert re.search(r"First token\n+p50 \d.*, p99 \d", seen["card"])


def test_a_check_is_shown_in_the_card_of_its_backend(seen):
    progress, report = seen["progress"], seen["report"]
    assert "At most 120 requests, usually less than a minute." in progress["text"]
    assert progress["inSight"]
    assert set(progress["disabled"]) == {True}
    assert set(report["disabled"]) == {False}
    assert report["reports"] == 1
    assert "Check of demo: " in report["text"]
    assert "Output of toolwire check" in report["text"]


def test_the_turns_of_a_check_can_be_told_from_others(seen):
    assert seen["checkTurns"] == ["toolwire-check"]


def test_a_stored_response_leads_to_its_turn(seen):
    assert seen["storedTurn"] == seen["response"]


def test_a_note_says_what_to_do(seen):
    assert "What to do: Raise PROXY_TOOL_BLOCK_MAX, or allow parallel calls." in seen["note"]


def test_the_sign_in_page_is_centred_and_leads_to_what_was_asked_for(keyed):
    left, right = keyed["card"]
    assert left == pytest.approx(right)
    assert left > 100
    assert keyed["address"].endswith(f"/#/turn/{keyed['id']}")


def test_the_page_says_who_is_signed_in(keyed):
    assert keyed["who"] == ["ann", "token"]


def test_the_list_fits_its_window_and_status_comes_behind_the_time(keyed):
    assert keyed["order"][:2] == ["Time", "Status"]
    assert keyed["sizes"] == {
        width: {"status": True, "all": True, "clipped": []} for width in ("1280", "1100", "1000", "820", "780")
    }
