"""A real browser goes on for several turns in Try it, and saves a turn as a test case."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.browser import browse
from tests.support.console import PAGES
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend
from tests.support.upstream import Reply, Upstream
from toolwire.cli.replay import replay

USE = (
    PAGES
    + r"""
const page = await open(1280, "light");
await page.goto(given.link);
await go(page, "#/try", "try");
seen.turns = {};
async function settled(number) {
  await page.waitForFunction((wanted) => document.querySelectorAll(".tried [role=status] .chip").length === wanted, number);
  await page.waitForFunction((wanted) => document.querySelectorAll(".tried form").length === wanted, number);
}
for (const dialect of ["chat", "responses", "messages", "gemini"]) {
  await page.fill("#try-model", "up/calls");
  await page.selectOption("#try-dialect", dialect);
  await page.click("button:text-is('Ask')");
  await settled(1);
  const labels = await page.locator(".tried form label").allInnerTexts();
  await page.fill("#next-1-0", "Rain.");
  await page.fill("#try-model", "up/says");
  await page.click("button:text-is('Send results')");
  await settled(2);
  const frozen = await page.locator("#next-1-0").isDisabled();
  await page.fill("#next-3-0", "And Rome?");
  await page.click("button:text-is('Send')");
  await settled(3);
  seen.turns[dialect] = { labels, frozen, texts: await page.locator(".tried [aria-label=Text]").allInnerTexts() };
}
await page.fill("#try-model", "up/calls");
await page.click("button:text-is('Ask')");
await settled(1);
await page.click(".tried a:text-is('Open the turn')");
await page.waitForSelector('main[data-view="turn"]');
await page.click("button:text-is('Save as test case')");
await page.waitForSelector("#expected");
seen.same = await page.locator(".made-case").innerText();
seen.expected = JSON.parse(await page.inputValue("#expected"));
await page.fill("#expected", JSON.stringify({ ...seen.expected, text: "Otherwise." }));
const [saved] = await Promise.all([page.waitForEvent("download"), page.click("button:text-is('Save test case')")]);
seen.name = saved.suggestedFilename();
seen.file = (await (await saved.createReadStream()).toArray()).join("");
await page.fill("#expected", "{");
await page.click("button:text-is('Save test case')");
await page.waitForFunction(() => document.getElementById("said").textContent.includes("not valid"));
"""
)


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Any:
    upstream.replies["calls"] = Reply([stream(created(), call("c1", "get_weather", '{"city":"Paris"}'), completed())])
    upstream.replies["says"] = Reply([stream(created(), text("It rains."), completed())])
    gateway = Gateway(tmp_path_factory.mktemp("browser-cases"), backend(upstream.url))
    try:
        return browse(USE, {"url": gateway.url, "link": gateway.console})
    finally:
        gateway.stop()


def test_nothing_is_wrong_in_the_page(seen):
    assert (seen["said"], seen["elsewhere"]) == ([], [])


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
def test_try_it_takes_results_and_goes_on(seen, upstream: Upstream, dialect: str):
    found = seen["turns"][dialect]
    assert found["labels"] == ['Result of get_weather {"city":"Paris"}']
    assert found["frozen"]
    assert found["texts"] == ["", "It rains.", "It rains."]


def test_the_history_reaches_the_model(seen, upstream: Upstream):
    asked = [each.body["input"] for each in upstream.of("says")]
    assert len(asked) == 8
    for results, prompt in zip(asked[::2], asked[1::2], strict=True):
        kinds = [item["type"] for item in results[1:]]
        assert kinds == ["function_call", "function_call_output"]
        assert (results[1]["call_id"], results[2]["output"]) == ("c1", "Rain.")
        assert prompt[: len(results)] == results
        assert [item.get("role") for item in prompt[3:]] == ["assistant", "user"]


def test_a_turn_is_saved_as_a_test_case_with_what_the_viewer_expects(seen, tmp_path):
    assert seen["same"].startswith("This version gives the same.")
    assert seen["expected"]["calls"][0]["arguments"] == {"city": "Paris"}
    path = tmp_path / seen["name"]
    path.write_text(seen["file"])
    assert json.loads(seen["file"].splitlines()[-1])["case"]["expected"]["text"] == "Otherwise."
    done = CliRunner().invoke(replay, ["--assert", str(tmp_path)])
    assert (done.exit_code, 'text differs: expected "Otherwise.", got ""' in done.output) == (1, True)
