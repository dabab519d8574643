"""What the console draws of a turn: differences between two texts, and its time line.

A real browser imports the modules from a running gateway, and looks at one real turn with a large request and many calls.
"""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.browser import browse
from tests.support.console import PAGES, ConsoleClient
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, tool
from tests.support.upstream import Pause, Reply, Upstream

CALLS = 30
CHANGED = 10
"""Calls of the real turn whose arguments are repaired."""
SHOTS = os.environ.get("TOOLWIRE_SCREENSHOTS", "")
"""A folder for pictures; none are taken without it."""

DIFFS = r"""
const page = await open(1280, "light");
await page.goto(given.link);
await page.waitForSelector("main[data-view]");
seen.diff = await page.evaluate(async ({ turn, small, marks }) => {
  const [{ aligned, compared, marked }, { get }, { pretty }] = await Promise.all(["diff", "api", "dom"].map((name) => import(`/console/static/${name}.js`)));
  const { whole: { request: { body }, attempts } } = await get(`turns/${turn}`);
  const requests = [body, attempts[0].sent[0].body].map(pretty);
  const equal = (pairs) => pairs.filter(([one, other]) => one === other).length;
  const sides = (pairs) => [0, 1].map((which) => pairs.map((pair) => pair[which]).filter((line) => line !== undefined));
  const timed = (work) => { const begin = performance.now(); return { result: work(), ms: performance.now() - begin }; };
  const marksOf = (was, is) => {
    const [before, after] = marked(was, is).querySelectorAll("pre");
    return { del: [...before.querySelectorAll("del")].map((each) => each.textContent), ins: [...after.querySelectorAll("ins")].map((each) => each.textContent), before: before.textContent, after: after.textContent };
  };
  // One number after the other from a seed, so that a failure can be repeated.
  let state = 1;
  const random = (below) => { state = (state * 48271) % 2147483647; return state % below; };
  const restores = (one, other) => JSON.stringify(sides(aligned(one, other))) === JSON.stringify([one, other]);

  const broken = [];
  for (let number = 0; number < 400; number += 1) {
    const text = () => Array.from({ length: random(40) }, () => "abcdef"[random(1 + number % 6)]);
    const [one, other] = [text(), text()];
    if (!restores(one, other)) broken.push([one, other]);
  }
  const lots = [3, 300, 1000000].map((kinds) => {
    const one = Array.from({ length: 20000 }, () => `line ${random(kinds)}`);
    const other = one.filter(() => random(20)).flatMap((line) => (random(20) ? [line] : ["inserted", line]));
    const { result, ms } = timed(() => aligned(one, other));
    return { kept: other.filter((line) => line !== "inserted").length, equal: equal(result), ms, restored: restores(one, other) };
  });
  const unrelated = timed(() => aligned(Array.from({ length: 20000 }, (_, index) => `a${index}`), Array.from({ length: 20000 }, (_, index) => `b${index}`)).length);

  const long = JSON.stringify({ rows: Array.from({ length: 3000 }, (_, index) => ({ city: `City ${index}`, count: index })) });
  const secret = "x".repeat(700000);
  const [request, translated] = requests.map((each) => each.split("\n"));
  const drawn = compared(...requests, ["one", "other"]);
  return {
    broken, lots, unrelated, requests: [request, translated], request: equal(aligned(request, translated)), restored: restores(request, translated),
    shown: [drawn].flat()[0].querySelectorAll(".line.gone, .line.new").length,
    small: small.map(([one, other]) => aligned(one, other)), marks: marks.map(([was, is]) => marksOf(was, is)),
    large: timed(() => { const { del, ins } = marksOf(long.replaceAll('"', "'"), long); return [del.length, new Set(del).size, ins.length, new Set(ins).size]; }),
    huge: timed(() => marksOf(`${secret}1${secret}`, `${secret}22${secret}`)),
  };
}, given);
"""

LANES = r"""
seen.lanes = await page.evaluate(async () => {
  const { lanes } = await import("/console/static/lanes.js");
  const card = document.createElement("section");
  document.getElementById("main").append(card);
  const made = (index, fields) => ({ id: `c${index}`, name: `tool_${index}`, arguments: "{}", complete: true, first: index / 1000, last: index / 1000 + 0.1, ...fields });
  const attempt = (fields) => ({ backend: "up", asked: 0.01, replied: 0.02, status: 200, frames: [], ...fields });
  const draw = ({ calls = 0, attempts = [attempt()], changed = [], kept = "whole", fields = {} }) => {
    const list = Array.from({ length: calls }, (_, index) => ({ model: made(index, fields), client: made(index, fields), same: !changed.includes(index) }));
    const whole = { request: {}, answer: { frames: [] }, attempts, notes: [], calls: list };
    const figure = lanes({ at: 0, ms: 1000, kept }, whole, new Map([["c0", { at: 5, failed: false }]]));
    card.append(figure);
    return figure;
  };
  const titles = (figure, which) => [...figure.querySelectorAll(`${which} > title`)].map((each) => each.textContent);
  const box = (element) => { const { left, right, top, bottom } = element.getBoundingClientRect(); return { left, right, top, bottom }; };
  const names = (attempts) => [...draw({ attempts }).querySelectorAll("text.name")].map((each) => ({ text: each.firstChild.textContent, title: each.querySelector("title")?.textContent, fits: box(each).left >= box(each.closest("figure")).left }));
  const counted = (calls) => {
    const figure = draw({ calls });
    const labels = [...figure.querySelectorAll("text.call")];
    return { bars: figure.querySelectorAll(".bar:not(.after)").length, labels: labels.length, last: labels.at(-1).textContent, height: figure.querySelector("svg").getBoundingClientRect().height };
  };
  const inside = (figure) => [...figure.querySelectorAll("text.call")].map((each) => box(each)).every((each) => each.left >= box(figure.querySelector(".lane")).left - 8 && each.right <= box(figure).right);
  const longNames = (calls) => [[0.05, 0.1], [0.5, 0.59], [0.1, 0.9], [0.42, 0.7], [0.7, 0.95]].map(([first, last]) => inside(draw({ calls, fields: { first, last, name: "mcp__a_server__a_tool_with_a_long_name" } })));
  globalThis.longNames = () => [...longNames(3), ...longNames(20)];
  const frames = [[0.5, "", "other", null], [0.5, "", "call", 0], [0.5, "", "text", null], [0.5, "response.output_text.delta", "reasoning", null], [0.7, "", "text", null], [0.7, "", "text", null]];
  const several = draw({ attempts: [attempt({ frames })] });
  const ticks = [...several.querySelectorAll(".tick:not(.asked)")];
  const changed = draw({ calls: 5, changed: [1, 3] });
  const found = {
    counted: Object.fromEntries([1, 12, 13, 30, 40, 501].map((calls) => [calls, counted(calls)])),
    inside: globalThis.longNames(),
    names: names([attempt(), attempt({ backend: "a-second-backend-with-a-long-name" })]), one: names([attempt()]).map((each) => each.text),
    rounds: names([attempt({ round: 0 }), attempt({ round: 1 })]).map((each) => each.text), noRounds: names([attempt({ round: 0 }), attempt({ round: 0, backend: "b" })]).map((each) => each.text),
    ticks: titles(several, ".tick:not(.asked)"), covered: ticks.some((one, index) => ticks.some((other, place) => place > index && one.getAttribute("x") === other.getAttribute("x") && box(one).bottom > box(other).top && box(other).bottom > box(one).top)),
    changed: titles(changed, ".tick.changed"), caption: changed.querySelector("figcaption").textContent,
    underWay: draw({ calls: 2, changed: [0, 1], kept: "running", fields: { complete: false } }).querySelectorAll(".tick.changed").length,
  };
  return found;
});
await page.setViewportSize({ width: 390, height: 800 });
seen.lanes.inside.push(...await page.evaluate(() => globalThis.longNames()));
await page.context().close();
"""

LOOK = r"""
seen.contrast = {};
seen.shots = {};
for (const [width, scheme] of [[1280, "light"], [1280, "dark"], [390, "light"], [390, "dark"]]) {
  const page = await open(width, scheme);
  await page.goto(given.link);
  await go(page, `#/turn/${given.turn}`, "turn");
  seen.contrast[`${width} ${scheme}`] = await page.evaluate(() => {
    const light = (which) => {
      const [red, green, blue] = getComputedStyle(document.querySelector(which)).fill.match(/\d+/g).map((each) => each / 255).map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
    };
    return [".waiting", ".tick.changed"].map((which) => [light(which), light(".lane")]).map(([one, other]) => Math.max(one, other) / Math.min(one, other));
  });
  seen.turn ??= await page.evaluate(() => ({ bars: document.querySelectorAll(".timeline .bar:not(.after)").length, changed: document.querySelectorAll(".timeline .tick.changed").length, caption: document.querySelector("figcaption").textContent }));
  if (given.shots) {
    const shoot = async (name, which) => { seen.shots[`${name}-${width}-${scheme}`] = (await page.locator(which).first().screenshot()).toString("base64"); };
    await shoot("timeline", ".timeline");
    await shoot("call", ".call.noted");
    await page.evaluate(() => document.querySelectorAll("main details").forEach((each) => { each.open = true; }));
    await shoot("diff", ".compared");
  }
  await page.context().close();
}
"""

QUOTES = ("{'city': 'Oslo',}", '{"city": "Oslo"}')
MIDDLE = ", ".join(f'"key_{index}": {index}' for index in range(70))
BOTH_ENDS = (f"{{'a': 1, {MIDDLE}, \"z\": True}}", f'{{"a": 1, {MIDDLE}, "z": true}}')
"""About a kilobyte of arguments with a fault at both ends."""
SMALL = [
    (["a", "b", "c"], ["a", "x", "c"]),
    (["a", "b", "c", "d"], ["b", "d", "e"]),
    ([], ["a"]),
]


def large_request() -> dict[str, Any]:
    """A request as agents make it: some tools, and a long history of calls and results."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You work in a repository."}]
    for index in range(120):
        asked = {"id": f"call_{index}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "user", "content": [{"type": "text", "text": f"Read file {index}."}]})
        messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        messages.append({"role": "tool", "tool_call_id": f"call_{index}", "content": f"Line {index}"})
    names = ("get_weather", "read", "write", "search", "run")
    tools = [tool(name, city={"type": "string", "description": f"For {name}"}) for name in names]
    schema = {f"field_{index}": {"type": "string", "description": f"Field {index}"} for index in range(150)}
    return chat_body("up/d-many", stream=True, messages=messages, tools=[*tools, tool("large", **schema)])


def longest_common_subsequence(one: list[str], other: list[str]) -> int:
    """Its length, one row of the table at a time as the bits of a number (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for index, line in enumerate(one):
        places[line] = places.get(line, 0) | 1 << index
    every = (1 << len(one)) - 1
    row = every
    for line in other:
        matched = row & places.get(line, 0)
        row = ((row + matched) | (row - matched)) & every
    return len(one) - row.bit_count()


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the browser saw."""
    steps: list[Any] = [created(), text("Let me look.")]
    for index in range(CALLS):
        city = f"{{'city': 'Town {index}',}}" if index < CHANGED else f'{{"city": "Town {index}"}}'
        steps += [stream(call(f"c{index}", "get_weather", city)), Pause(0.02)]
    upstream.replies["d-many"] = Reply([*steps, completed()])
    gateway = Gateway(tmp_path_factory.mktemp("drawing"), backend(upstream.url), PROXY_TOOL_ARGUMENTS="repair")
    try:
        body = large_request()
        httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120, trust_env=False).raise_for_status()
        with ConsoleClient(gateway) as console:
            turn = console.wait_for(model="up/d-many")
        given = {
            "link": gateway.console,
            "url": gateway.url,
            "turn": turn["id"],
            "small": SMALL,
            "marks": [QUOTES, BOTH_ENDS, ("", "{}"), ('{"n": 12}', '{"n": 120}')],
            "shots": bool(SHOTS),
        }
        found = browse(PAGES + DIFFS + LANES + LOOK, given)
        for name, picture in found["shots"].items():
            (Path(SHOTS) / f"{name}.png").write_bytes(base64.b64decode(picture))
        yield found
    finally:
        gateway.stop()


def test_nothing_is_said_in_the_browsers_console(seen):
    assert (seen["said"], seen["elsewhere"]) == ([], [])


def test_a_large_request_has_nearly_all_its_equal_lines_beside_each_other(seen):
    one, other = seen["diff"]["requests"]
    truth = longest_common_subsequence(one, other)
    assert len(one) * len(other) > 3_000_000
    assert truth > 600
    assert seen["diff"]["request"] >= truth * 0.95
    assert seen["diff"]["restored"]
    assert seen["diff"]["shown"] <= len(one) + len(other) - 2 * truth * 0.95


def test_pairs_of_lines_give_back_both_texts(seen):
    assert seen["diff"]["broken"] == []


def test_few_lines_are_aligned_as_well_as_can_be(seen):
    changed, shifted, added = seen["diff"]["small"]
    assert changed == [["a", "a"], ["b", "x"], ["c", "c"]]
    assert shifted == [["a", None], ["b", "b"], ["c", None], ["d", "d"], [None, "e"]]
    assert added == [[None, "a"]]


def test_tens_of_thousands_of_lines_are_aligned_also_where_they_repeat(seen):
    for lot in seen["diff"]["lots"]:
        assert lot["restored"]
        assert lot["equal"] >= lot["kept"] * 0.95
        assert lot["ms"] < 5000
    assert seen["diff"]["unrelated"]["ms"] < 5000


def test_repaired_arguments_have_only_their_quotes_and_comma_marked(seen):
    found = seen["diff"]["marks"][0]
    assert found["del"] == ["'", "'", "'", "',"]
    assert found["ins"] == ['"'] * 4
    assert (found["before"], found["after"]) == QUOTES


def test_faults_at_both_ends_leave_what_is_between_unmarked_and_short(seen):
    found = seen["diff"]["marks"][1]
    assert found["del"] == ["'", "'", "True"]
    assert found["ins"] == ['"', '"', "true"]
    assert found["before"].count("…") == 1
    assert len(found["before"]) < 500 < len(BOTH_ENDS[0])


def test_what_is_added_or_longer_is_marked_as_a_word(seen):
    _, _, added, number = seen["diff"]["marks"]
    assert (added["del"], added["ins"]) == ([], ["{}"])
    assert (number["del"], number["ins"]) == (["12"], ["120"])


def test_long_arguments_are_marked_too(seen):
    result, large = seen["diff"]["large"]["result"], seen["diff"]["large"]
    assert result[1] == result[3] == 1
    assert result[0] == result[2] > 10_000
    assert large["ms"] < 10_000
    huge = seen["diff"]["huge"]
    assert (huge["result"]["del"], huge["result"]["ins"]) == (["1"], ["22"])
    assert len(huge["result"]["before"]) < 500


@pytest.mark.parametrize("count", [1, 12, 13, 30, 40])
def test_every_call_has_a_bar_and_a_label(seen, count: int):
    found = seen["lanes"]["counted"][str(count)]
    assert (found["bars"], found["labels"]) == (count, count)


def test_many_calls_are_drawn_in_less_height(seen):
    counted = seen["lanes"]["counted"]
    assert counted["30"]["height"] < counted["12"]["height"] * 1.5
    assert counted["40"]["height"] - counted["30"]["height"] == pytest.approx(120)


def test_labels_stay_inside_the_time_line_also_on_a_phone(seen):
    assert seen["lanes"]["inside"] == [True] * 20


def test_beyond_500_calls_it_is_said_how_many_more_there_are(seen):
    found = seen["lanes"]["counted"]["501"]
    assert (found["bars"], found["last"]) == (500, "and 1 more call")


def test_the_turn_with_many_calls_has_a_bar_for_each(seen):
    assert seen["turn"]["bars"] == CALLS
    assert 1 <= seen["turn"]["changed"] <= CHANGED
    assert f"{CALLS} calls ({CHANGED} changed)" in seen["turn"]["caption"]


def test_a_long_name_of_a_backend_is_shortened_and_named_in_full_by_its_title(seen):
    client, gateway, first, second = seen["lanes"]["names"]
    assert all(each["fits"] for each in (client, gateway, first, second))
    assert (first["text"], "title" in first) == ("1. up", False)
    assert second["text"].startswith("2. a-sec")
    assert second["text"].endswith("…")
    assert second["title"] == "2. a-second-backend-with-a-long-name"


def test_a_lane_has_the_name_of_its_round(seen):
    assert seen["lanes"]["one"] == ["client", "gateway", "model"]
    assert seen["lanes"]["rounds"][2:] == ["round 1: up", "round 2: up"]
    assert seen["lanes"]["noRounds"][2:] == ["1. up", "2. b"]


def test_frames_of_several_kinds_at_one_moment_are_all_seen(seen):
    assert seen["lanes"]["covered"] is False
    assert seen["lanes"]["ticks"] == [
        "other at 500 ms",
        "call at 500 ms",
        "text at 500 ms",
        "response.output_text.delta at 500 ms",
        "2 frames: text at 700 ms",
    ]


def test_changed_calls_are_marked_on_the_lane_of_the_gateway(seen):
    assert seen["lanes"]["changed"] == [
        "tool_1 changed, delivered at 101 ms",
        "tool_3 changed, delivered at 103 ms",
    ]
    assert "5 calls (2 changed)" in seen["lanes"]["caption"]
    assert seen["lanes"]["underWay"] == 0


def test_what_is_drawn_on_the_lane_of_the_gateway_has_contrast(seen):
    assert len(seen["contrast"]) == 4
    assert all(ratio >= 3 for ratios in seen["contrast"].values() for ratio in ratios)
