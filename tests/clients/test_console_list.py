"""A real browser looks at the list of turns of a gateway with two workers: ten thousand of them, a worker that dies,
room that ends; and at every view in the name of two keys."""

# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

import http.client
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.browser import browse
from tests.support.console import PAGES, ConsoleClient
from tests.support.fleet import Fleet, until
from tests.support.gateway import Gateway, chat_body

TURNS, CLIENTS = 10_000, 8
ROOM = 450_000
"""Bytes for turns of a gateway that has little."""
KEYS = "\n".join(
    f'[[keys]]\nname = "{name}"\nkey = "{name}-key-123456"\nconsole = {console}\n'
    for name, console in (("ann", "true"), ("bob", "true"), ("boss", '"all"'), ("nobody", "false"))
)

MANY = r"""
const page = await open(1280, "dark");
await page.goto(given.link);
const says = (words) => page.waitForFunction((words) => document.querySelector(".about").textContent.startsWith(words), words);
await says(`${given.turns.toLocaleString("en")} turns`);
seen.about = await page.locator(".about").innerText();
await page.evaluate(() => { const list = document.querySelector(".scroller"); list.scrollTop = list.scrollHeight; });
await page.waitForSelector(`[data-id="${given.first}"]`);
seen.bottom = await page.evaluate((id) => {
  const [list, head, last] = [".scroller", ".row.head", `[data-id="${id}"]`].map((each) => document.querySelector(each).getBoundingClientRect());
  return { inPage: document.querySelectorAll(".rows .row").length, last: last.bottom <= list.bottom + 1, head: Math.abs(head.top - list.top) < 3 };
}, given.first);

// Turns come in while one reads further down: nothing moves, and the row is the same element, with what is selected in it.
await page.evaluate(() => { document.querySelector(".scroller").scrollTop = 4200; });
await page.waitForSelector('.rows [aria-rowindex="105"]');
const id = await page.evaluate(() => {
  const element = document.querySelector('.rows [aria-rowindex="105"]');
  element.mine = true;
  getSelection().selectAllChildren(element.querySelector(".c-model"));
  return element.dataset.id;
});
const place = () => page.evaluate((id) => {
  const element = document.querySelector(`[data-id="${id}"]`);
  return { top: element.getBoundingClientRect().top, same: element.mine, selected: getSelection().toString() };
}, id);
const before = await place();
for (let number = 0; number < 3; number += 1) await (await page.request.post(`${given.url}/v1/chat/completions`, { data: given.body })).body();
await says(`${(given.turns + 3).toLocaleString("en")} turns`);
seen.still = [before, await place()];
seen.shifted = await page.getAttribute(`[data-id="${id}"]`, "aria-rowindex");

await page.fill("#filter", "worker:0");
await page.waitForFunction(() => / of /.test(document.querySelector(".about").textContent));
seen.ofOne = await page.locator(".about").innerText();
await page.fill("#filter", "");

// A worker dies: what it kept is gone, and another takes its place.
process.kill(given.pid, "SIGKILL");
await page.waitForFunction((most) => parseInt(document.querySelector(".about").textContent.replaceAll(",", "")) < most, given.turns);
seen.left = parseInt((await page.locator(".about").innerText()).replaceAll(",", ""));
await page.waitForFunction(() => / by 2 workers/.test(document.querySelector(".about").textContent));
"""

FULL = r"""
const page = await open(390, "light");
await page.route("**/console/api/asked?*", (route) => route.fulfill({ json: {} })); // turns in sight would be packed, which takes less room
await page.goto(given.link);
await page.waitForSelector(".rows .pin");
for (const id of given.ids) {
  await page.evaluate(() => { document.getElementById("said").textContent = ""; });
  await page.click(`[data-id="${id}"] .pin`);
  await page.waitForFunction(() => document.getElementById("said").textContent);
  seen[id] = [await page.getAttribute(`[data-id="${id}"] .pin`, "aria-pressed"), await page.locator("#said").innerText()];
}
"""

TENANTS = r"""
seen.pages = {};
for (const name of ["ann", "bob", "boss", "nobody"]) {
  const page = await open(1280, "light", true);
  await page.goto(given.url);
  await page.fill("#secret", `${name}-key-123456`);
  await page.keyboard.press("Enter");
  if (name === "nobody") {
    await page.waitForSelector("[role=alert]");
    seen.refused = await page.locator("main, body").first().innerText();
    await page.context().close();
    continue;
  }
  await page.waitForSelector(".rows .row");
  seen.pages[name] = {};
  for (const view of ["turns", "conversations", "stored", "backends", "numbers"]) {
    await go(page, `#/${view}`, view);
    seen.pages[name][view] = await page.locator("main").innerText();
  }
  if (name === "ann") {
    await page.evaluate((id) => { location.hash = `#/turn/${id}`; }, given.ids.bob);
    await page.waitForSelector("main .bad");
    seen.foreign = await page.locator("main").innerText();
    await go(page, "#/turns", "turns");
    await page.fill("#number", "2");
    await page.click("button:text-is('Capture')");
    await page.waitForFunction(() => /the content of the next 2 is kept/.test(document.querySelector(".about").textContent));
    const headers = (key) => ({ authorization: `Bearer ${key}-key-123456` });
    for (const key of ["bob", "ann", "ann", "ann"]) await (await page.request.post(`${given.url}/v1/chat/completions`, { data: { ...given.body, model: `demo` }, headers: headers(key) })).body();
    await page.waitForFunction(() => /only metadata is kept/.test(document.querySelector(".about").textContent));
    await page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 4);
    seen.marks = await page.locator(".rows .mark").allTextContents();
  }
  await page.context().close();
}
"""


def ask_many(url: str, count: int) -> None:
    """So many turns, one after the other on one connection."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=90)
    body = json.dumps(chat_body("demo"))
    for _ in range(count):
        connection.request("POST", "/v1/chat/completions", body)
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
    connection.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a browser saw of ten thousand turns."""
    if sys.platform != "linux":
        pytest.skip("another platform: workers are looked at in /proc")
    fleet = Fleet(tmp_path_factory.mktemp("console-many"), 'console.max_size = "256MB"')  # room for all turns
    try:
        with ConsoleClient(fleet) as console:
            ask_many(fleet.url, 1)
            first = console.wait_for(model="demo")["id"]
            with ThreadPoolExecutor(CLIENTS) as pool:
                for asked in [
                    pool.submit(ask_many, fleet.url, (TURNS - 1) // CLIENTS + (i < 7)) for i in range(CLIENTS)
                ]:
                    asked.result()
            until(lambda: console.get("numbers")["start"]["turns"] == TURNS, "all turns are counted")
        given = {
            "link": fleet.console,
            "url": fleet.url,
            "turns": TURNS,
            "first": first,
            "body": chat_body("demo"),
            "pid": min(fleet.pids),
        }
        yield browse(PAGES + MANY, given)
    finally:
        fleet.stop()


def test_ten_thousand_turns_scroll_under_their_headings(many):
    assert many["about"].startswith("10,000 turns")
    assert "by 2 workers" in many["about"]
    assert many["bottom"]["inPage"] < 200
    assert (many["bottom"]["last"], many["bottom"]["head"]) == (True, True)


def test_the_list_stays_where_one_reads_while_turns_come_in(many):
    before, after = many["still"]
    assert before == after
    assert (after["same"], after["selected"]) == (True, "demo")
    assert many["shifted"] == "108"


def test_the_turns_of_one_worker_can_be_found_and_leave_with_it(many):
    of_one, _, every = many["ofOne"].partition(" turns of ")
    of_one, every = (int(each.split(" ")[0].replace(",", "")) for each in (of_one, every))
    assert 0 < of_one < every == TURNS + 3
    assert many["left"] in (of_one, every - of_one)


def test_nothing_is_wrong_in_the_page_with_ten_thousand_turns(many):
    assert (many["said"], many["elsewhere"]) == ([], [])


def test_a_turn_that_cannot_be_kept_is_refused_in_words(tmp_path):
    gateway = Gateway(tmp_path, f"[console]\nmax_size = {ROOM}\n")
    try:
        with ConsoleClient(gateway) as console:
            for _ in range(4):
                message = {"role": "user", "content": os.urandom(9_000).hex()}
                httpx.post(
                    f"{gateway.url}/v1/chat/completions", json=chat_body("demo", messages=[message]), trust_env=False
                )
            rows = until(
                lambda: len(rows := [row for row in console.rows() if row.get("kept") == "whole"]) == 4 and rows
            )
        ids = [row["id"] for row in rows]
        seen = browse(PAGES + FULL, {"link": gateway.console, "url": gateway.url, "ids": ids})
    finally:
        gateway.stop()
    assert [seen[id][0] for id in (ids[0], ids[-1])] == ["true", "false"]
    assert "no room for more pinned turns" in seen[ids[-1]][1]


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a browser showed to each of several keys."""
    gateway = Gateway(tmp_path_factory.mktemp("console-tenants"), KEYS)
    try:
        ids: dict[str, str] = {}
        with ConsoleClient(gateway) as console:
            for name in ("ann", "bob"):
                for model in ("demo", "demo-parallel") if name == "bob" else ("demo",):
                    headers = {"authorization": f"Bearer {name}-key-123456", "user-agent": f"{name}s-agent/1"}
                    body = {"model": model, "input": f"I am {name}", "store": True}
                    httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers, trust_env=False)
                ids[name] = console.wait_for(key=name)["id"]
        yield browse(PAGES + TENANTS, {"url": gateway.url, "ids": ids, "body": chat_body("demo")}) | {"ids": ids}
    finally:
        gateway.stop()


def test_no_view_shows_one_key_anything_of_another(tenants):
    pages = tenants["pages"]
    for name, other in (("ann", "bob"), ("bob", "ann")):
        assert f"{name}s-agent" in pages[name]["turns"]
        for view, text in pages[name].items():
            assert f"{other}s-agent" not in text, view
            assert f"I am {other}" not in text, view
    assert "demo-parallel" not in pages["ann"]["turns"]
    assert all(f"{name}s-agent" in pages["boss"]["turns"] for name in ("ann", "bob"))


def test_a_turn_of_another_key_is_not_there(tenants):
    assert "Something went wrong" in tenants["foreign"]
    assert "bob" not in tenants["foreign"].replace(tenants["ids"]["bob"], "")


def test_a_key_that_may_not_look_is_refused(tenants):
    assert "nobody" not in tenants["pages"]
    assert tenants["refused"]


def test_the_next_turns_of_a_key_are_captured_and_no_others(tenants):
    assert tenants["marks"] == ["metadata", "whole", "whole", "metadata"]
