"""A real browser reads what was said: the search in contents, the conversation of a turn, and the ways between its parts."""

# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.test_embedding import MEMORY, mounted
from tests.support.browser import browse
from tests.support.console import PAGES, ConsoleClient
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, tool
from tests.support.upstream import Pause, Reply, Upstream
from toolwire import create_app
from toolwire.gateway.console.access import load_token

WEATHER = [tool("get_weather", city={"type": "string"}, days={"type": "integer"})]
MARKED = (
    "# The weather\n\nIt is **sunny** in *Paris*, see `weather.json`:\n\n- 24 degrees\n  1. weak wind\n\n"
    '```json\n{"a": 1}\n```\n> <b>quoted</b>\n\n[the site](https://evil.example/?q=1) <img src=x onerror=alert(1)>'
)
DIFFERENT = {
    "keys in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    "a value deep inside": ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a.b[1]"]),
    "an item that was put before others": ({"a": ["x", "y"]}, {"a": ["new", "x", "y"]}, ["a[0]"]),
    "tools in another order": (
        {"tools": [{"name": "f", "v": 1}, {"name": "g", "v": 2}]},
        {"tools": [{"name": "g", "v": 3}, {"name": "f", "v": 1}]},
        ["tools[g].v"],
    ),
    "a key on one side": ({"a": 1}, {"a": 1, "b": None}, ["b"]),
    "a text and a number": ({"a": "1"}, {"a": 1}, ["a"]),
}
FAULTS = {"model:gpt": 0, "foo:bar": 1, "ms>soon": 1, "model>gpt": 1, '"foo:bar"': 0, "https://x": 1, "status>=400": 0}

READ = r"""
Object.assign(seen, { axe: [] });
const page = await open(1280, "light");
const focused = (selector) => page.evaluate((selector) => document.activeElement.closest(selector)?.id, selector);
await page.goto(given.link);
await page.waitForSelector(".rows .row");
await page.waitForFunction((count) => document.querySelectorAll(".rows .c-asked span:not(:empty)").length === count, given.turns);
seen.asked = await page.locator(".rows .c-asked").allInnerTexts();
await page.fill("#filter", "heron");
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 1 && /All contents/.test(document.querySelector(".contents").textContent));
seen.address = page.url().split("#")[1];
await page.request.post(`${given.url}/v1/chat/completions`, { data: given.another });
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 2);
await page.reload();
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 2);
seen.reloaded = await page.inputValue("#filter");
await page.click(".rows .row a >> nth=0");
await page.waitForSelector('main[data-view="turn"]');
await page.goBack();
await page.waitForSelector('main[data-view="turns"] .row');
seen.back = [page.url().split("#")[1], await page.inputValue("#filter")];
await page.fill("#filter", "foo:bar");
await page.waitForSelector(".faults:not(:empty)");
seen.fault = await page.locator(".faults").innerText();
await page.fill("#filter", "");
await page.route("**/console/api/search?*", (route) => route.fulfill({ json: /before/.test(route.request().url()) ? { ids: [given.ids.marked], more: false } : { ids: [], more: true, before: 1700000000 } }));
await page.fill("#filter", "somewhere");
await page.waitForSelector("button:text('Search older turns')");
seen.part = [await page.locator(".contents").innerText(), await page.locator(".rows .row").count()];
await page.click("button:text('Search older turns')");
await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 1);
await page.unroute("**/console/api/search?*");

await page.fill("#filter", "");
await page.focus(".rows .row a");
await page.keyboard.press("Home");
for (const key of ["ArrowUp", "ArrowRight", "Enter"]) await page.keyboard.press(key);
seen.sorted = [page.url().split("#")[1], await page.locator(".rows .c-status b").allInnerTexts()];
await page.keyboard.press("ArrowDown");
seen.down = await page.evaluate(() => document.activeElement.closest(".row").getAttribute("aria-rowindex"));

await go(page, `#/turn/${given.ids.called}`, "turn");
await page.waitForSelector(".result pre");
seen.conversation = await page.locator(".conversation").innerText();
await page.focus(".axis");
await page.keyboard.press("End");
await page.keyboard.press("Home");
await page.keyboard.press("ArrowRight");
seen.tick = [await page.getAttribute(".axis", "aria-valuenow"), await page.getAttribute(".axis", "aria-valuetext")];
await page.keyboard.press("Enter");
seen.ways = { frame: await focused(".frame") };
await page.click(".conversation button:text('frames')");
seen.ways.frameOfCall = await focused(".frame");
await page.click(".frame.s-call button:text('call')");
seen.ways.callOfFrame = await focused(".call");
await page.click(".frame.s-call .at button >> nth=0");
seen.ways.tickOfFrame = await page.locator("p.chosen").innerText();
await page.click("p.chosen button:text('Show the call')");
seen.ways.callOfTick = await focused(".call");
await page.click(".conversation button:text('time line')");
seen.ways.tickOfCall = await page.locator("p.chosen").innerText();
await page.click("[data-call] .bar");
seen.ways.callOfBar = await focused(".call");
seen.frames = await page.evaluate(async (id) => {
  const [{ blocks }, { get }] = await Promise.all(["frames", "api"].map((name) => import(`/console/static/${name}.js`)));
  const { whole } = await get(`turns/${id}`);
  return [whole.answer, whole.attempts[0]].map((stream) => {
    const found = blocks(stream).filter((each) => each.index !== undefined);
    return found.length === stream.frames.length && found.every((each) => each.text.includes(stream.frames[each.index][1]) && each.t >= stream.frames[0][0]);
  });
}, given.ids.called);

await go(page, `#/turn/${given.ids.marked}`, "turn");
seen.marked = await page.evaluate(() => {
  const box = [...document.querySelectorAll(".rendered")].at(-1);
  const texts = (which) => [...box.querySelectorAll(which)].map((each) => each.textContent);
  return { strong: texts("strong"), em: texts("em"), code: texts("code"), pre: texts("pre"), heading: texts(".heading"), items: texts(".items li"), quoted: texts("blockquote"), foreign: box.querySelectorAll("a, img, b, script").length, text: box.textContent };
});
await go(page, `#/turn/${given.ids.invalid}`, "turn");
await page.click("summary:text('What repair would make of it')");
seen.repair = { red: await page.locator(".step.call.bad").count(), text: await page.locator(".step.call").innerText() };

seen.long = await page.evaluate(async () => {
  const { rendered } = await import("/console/static/markdown.js");
  return ["[".repeat(19000), `\`\`\`${"a".repeat(18990)}\``, `# ${" ".repeat(18990)}x`, "**a ".repeat(4000), "- x\n".repeat(4000), "`` ` ".repeat(3000)].map((text) => rendered(text).textContent.length);
});
seen.different = await page.evaluate(async (pairs) => {
  const { compare } = await import("/console/static/differences.js");
  return pairs.map(([one, other]) => compare(one, other).rows.map((row) => row.path));
}, given.different);
seen.faults = await page.evaluate(async (typed) => {
  const { filter } = await import("/console/static/filter.js");
  return typed.map((each) => filter(each).faults.length);
}, given.faults);

await go(page, "#/notes", "notes");
const order = () => page.locator("tbody td:first-child").allInnerTexts();
seen.table = [(await order())[0]];
await page.focus("th button");
for (let press = 0; press < 3; press += 1) {
  await page.keyboard.press("Enter");
  seen.table.push((await order())[0], await page.getAttribute("th", "aria-sort"));
}
await page.context().close();
"""


MOUNTED = r"""
const page = await open(390, "dark");
const asked = [];
page.on("request", (request) => asked.push(new URL(request.url()).pathname));
await page.goto(given.link);
await page.waitForSelector(".rows .row");
for (const view of ["conversations", "stored", "backends", "try", "numbers", "notes", "turns"]) await go(page, `#/${view}`, view);
await page.fill("#filter", "hello");
await page.reload();
await page.waitForSelector(".rows .row");
seen.kept = await page.inputValue("#filter");
await page.click(".rows .row a");
await page.waitForSelector('main[data-view="turn"] .conversation');
await page.goBack();
await page.waitForSelector('main[data-view="turns"]');
seen.at = page.url();
seen.outside = asked.filter((path) => !path.startsWith("/gw/"));
await page.context().close();
"""


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the browser saw, in one visit."""
    replies = upstream.replies
    looks = call("c1", "get_weather", '{"city":', '"Paris"}')
    replies["r-called"] = Reply([created(), text("Let me look."), Pause(0.02), looks, completed()])
    replies["r-marked"] = Reply([stream(created(), text(MARKED), completed())])
    invalid = call("c2", "get_weather", "{'city': 'Oslo', days: '3',}")
    replies["r-invalid"] = Reply([stream(created(), invalid, completed())])
    replies["r-down"] = Reply([b'{"error":{"message":"Down."}}'], 503, "application/json")
    gateway = Gateway(tmp_path_factory.mktemp("reading"), backend(upstream.url), PROXY_TOOL_ARGUMENTS="check")
    question = {"role": "user", "content": "What is the weather in Paris?"}
    use = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    history = [
        question,
        {"role": "assistant", "content": "Let me look.", "tool_calls": [use]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny, and a heron"},
    ]
    try:
        ids: dict[str, str] = {}
        with ConsoleClient(gateway) as console:
            for name, messages in (("called", [question]), ("marked", history), ("invalid", None), ("down", None)):
                body = chat_body(
                    f"up/r-{name}", stream=True, tools=WEATHER, **({"messages": messages} if messages else {})
                )
                httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=90, trust_env=False)
                ids[name] = console.wait_for(model=f"up/r-{name}")["id"]
        given = {
            "link": gateway.console,
            "url": gateway.url,
            "ids": ids,
            "turns": len(ids),
            "another": chat_body("demo", messages=[{"role": "user", "content": "Another heron"}]),
            "different": [pair[:2] for pair in DIFFERENT.values()],
            "faults": list(FAULTS),
        }
        yield browse(PAGES + READ, given)
    finally:
        gateway.stop()


def test_nothing_is_wrong_in_the_page(seen):
    assert (seen["said"], seen["elsewhere"]) == ([], [])


def test_the_list_shows_what_was_asked(seen):
    assert seen["asked"][2:] == ["↳ 1 result: What is the weather in Paris?", "What is the weather in Paris?"]


def test_words_are_found_in_contents_and_the_address_keeps_them(seen):
    assert (seen["address"], seen["reloaded"]) == ("/turns/heron", "heron")
    assert seen["back"] == ["/turns/heron", "heron"]


def test_a_search_says_how_far_it_went_and_goes_on(seen):
    says, rows = seen["part"]
    assert ("Contents are searched back to" in says, rows) == (True, 0)


def test_a_filter_names_what_it_does_not_know(seen):
    assert "There is no field foo" in seen["fault"]
    assert dict(zip(FAULTS, seen["faults"], strict=True)) == FAULTS


def test_the_list_is_sorted_by_keyboard(seen):
    address, statuses = seen["sorted"]
    assert address == "/turns//-status"
    assert statuses == ["503", "200", "200", "200", "200"]
    assert seen["down"] == "2"


def test_a_table_is_sorted_by_its_headings(seen):
    first, ascending, up, descending, down, again, none = seen["table"]
    assert (ascending, up, down, again, none) == (first, "ascending", "descending", first, "none")
    assert descending > first


def test_a_turn_reads_as_a_conversation(seen):
    found = seen["conversation"]
    parts = ["What is the weather in Paris?", "Let me look.", "get_weather", '"city": "Paris"', "Sunny, and a heron"]
    assert [part for part in parts if part not in found] == []
    assert sorted(parts, key=found.index) == parts


def test_ticks_frames_and_calls_lead_to_each_other(seen):
    assert seen["tick"][0] == "2"
    ways = seen["ways"]
    assert ways["frame"].startswith("frame-")
    assert ways["frameOfCall"].startswith("frame-0-")
    assert (ways["callOfFrame"], ways["callOfTick"], ways["callOfBar"]) == ("call-0", "call-0", "call-0")
    assert "Show the call" in ways["tickOfFrame"]
    assert ways["tickOfCall"].startswith("from up:")


def test_every_frame_has_its_bytes_and_its_time(seen):
    assert seen["frames"] == [True, True]


def test_marks_of_a_text_are_rendered_and_nothing_becomes_markup(seen):
    found = seen["marked"]
    assert (found["strong"], found["em"], found["heading"]) == (["sunny"], ["Paris"], ["The weather"])
    assert found["code"] == ["weather.json", "https://evil.example/?q=1"]
    assert (found["pre"], found["quoted"]) == (['{"a": 1}'], ["<b>quoted</b>"])
    assert found["items"] == ["• 24 degrees", "1. weak wind"]
    assert found["foreign"] == 0
    assert "<img src=x onerror=alert(1)>" in found["text"]


def test_long_texts_with_unfinished_marks_are_rendered(seen):
    assert seen["long"][:3] == [19_000, 18_992, 18_993]
    assert min(seen["long"]) >= 4000


def test_a_call_with_invalid_arguments_is_red_and_shows_its_repair(seen):
    assert seen["repair"]["red"] == 1
    assert "arguments_invalid" in seen["repair"]["text"]
    assert '{"city":"Oslo","days":3}' in seen["repair"]["text"]


def test_json_is_compared_by_key(seen):
    assert dict(zip(DIFFERENT, seen["different"], strict=True)) == {name: row[2] for name, row in DIFFERENT.items()}


def test_the_page_works_under_the_prefix_of_a_mounted_gateway():
    with mounted(gw=create_app(MEMORY)) as http:
        body = chat_body("demo", messages=[{"role": "user", "content": "Hello there"}])
        assert http.post("/gw/v1/chat/completions", json=body).status_code == 200
        url = str(http.base_url).rstrip("/")
        seen = browse(PAGES + MOUNTED, {"link": f"{url}/gw/?token={load_token()}", "url": url})
    assert (seen["said"], seen["elsewhere"], seen["outside"]) == ([], [], [])
    assert (seen["kept"], seen["at"]) == ("hello", f"{url}/gw/#/turns/hello")
