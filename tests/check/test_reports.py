"""Reports in files. The exchanges in them are real: streams that were read by the rules, and a check of the demo."""

import asyncio
import io
import json
import re
import xml.etree.ElementTree as Xml
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.check import chat_turns, responses_turns
from tests.check.streams import change, wire
from tests.support.gateway import Gateway
from toolwire import __version__
from toolwire.check import Finding, RequestFacts, StreamCheck, check_plain
from toolwire.check.apis import APIS
from toolwire.check.captured import read_file
from toolwire.check.endpoint import Target
from toolwire.check.exchange import Exchange, SentRequest
from toolwire.check.report import write_report
from toolwire.check.report.html import as_html
from toolwire.check.report.json import as_json
from toolwire.check.report.junit import as_junit
from toolwire.check.report.timeline import draw_timeline
from toolwire.check.rules import RULES
from toolwire.check.run import check, check_captured
from toolwire.check.text import show
from toolwire.check.verdicts import Report, Verdict, find_consequences
from toolwire.core.events import Dialect

ATTACK = '</pre></script><script>alert("hi")</script><img src=x onerror=alert(1)>'
TURN_AROUND = "\u202e"
ASKED = SentRequest(
    "POST", "http://me:hunter2@127.0.0.1:4000/v1/chat/completions?api_key=hunter3&v=1", b'{"model":"m"}'
)


# Streams with faults


def data(value: Any, event: str = "") -> bytes:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + data + b"\n\n"


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return data({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def fragment(index: int | None, text: str, **opening: Any) -> bytes:
    name = opening.pop("name", None)
    function = {"arguments": text, **({"name": name} if name else {})}
    return chunk(tool_calls=[{"index": index, **opening, "function": function}])


def event(type: str, **fields: Any) -> bytes:
    return data({"type": type, **fields}, type)


CHAT = (
    chunk(role="assistant", content=""),
    *(chunk(reasoning_content=f"thought {number} ") for number in range(12)),
    *(chunk(content=f"word {number} ") for number in range(8)),
    chunk(content=ATTACK),
    fragment(0, "", id="call_a", type="function", name="get_weather"),
    *(fragment(0, piece) for piece in ('{"ci', 'ty":', '"Par', 'is"}')),
    fragment(1, "", id="call_b", type="function", name="get_weather_in_the_next_ten_days"),
    *(fragment(1, piece) for piece in ('{"city"', ': "Ro', "me")),
    fragment(0, " " * 5000),
    chunk("stop"),
)
"""The arguments of one call are no JSON, a call goes on behind the next, the reason is wrong, and `[DONE]` is missing."""


def item(index: int, **fields: Any) -> dict[str, Any]:
    call = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{index}", "name": "get_time"}
    return {"output_index": index, "item": {**call, "arguments": "", "status": "in_progress", **fields}}


RESPONSE = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
RESPONSES = (
    event("response.created", sequence_number=0, response=RESPONSE),
    event("response.in_progress", sequence_number=1, response=RESPONSE),
    event("response.output_item.added", sequence_number=2, **item(0)),
    event("response.function_call_arguments.delta", sequence_number=3, item_id="fc_0", output_index=0, delta="{}"),
    event(
        "response.function_call_arguments.done", sequence_number=9, item_id="fc_0", output_index=0, arguments='{"a":1}'
    ),
    event("response.output_item.done", sequence_number=4, **item(0, arguments="{}", status="completed")),
    event("response.output_item.added", sequence_number=5, **item(1, name="never_done")),
    event("response.function_call_arguments.delta", sequence_number=6, item_id="fc_1", output_index=1, delta="{"),
    event("response.completed", sequence_number=7, response={**RESPONSE, "status": "completed"}),
    data(b"[DONE]"),
)
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "stop_reason": None}
MESSAGES = (
    event("message_start", message={**MESSAGE, "usage": {"input_tokens": 1, "output_tokens": 1}}),
    event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
    event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Hm."}),
    event("content_block_stop", index=0),
    event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=1, delta={"type": "text_delta", "text": TURN_AROUND + ATTACK}),
    event("content_block_stop", index=1),
    event("content_block_start", index=3, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}),
    event("content_block_delta", index=3, delta={"type": "input_json_delta", "partial_json": "{}"}),
    event("content_block_stop", index=3),
    event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}),
    event("message_stop"),
)
"""A block has the wrong number."""
GARBAGE = chunk(role="assistant", content="") + b"data: {\x00\x1b\xff\r\n\r\n" + chunk("stop") + data(b"[DONE]")
PLAIN = {"id": "c", "object": "chat.completion", "choices": [{"message": {"role": "user", "content": ATTACK}}]}


def streamed(number: int, api: Dialect, frames: tuple[bytes, ...], pause: float) -> Exchange:
    """A stream as a live check hears it, frame by frame."""
    facts = RequestFacts(api, ("get_weather", "get_time", "f"))
    stream = StreamCheck(facts)
    for index, frame in enumerate(frames):
        stream.feed(frame, pause * (index + 3 + index % 3 / 4))
    found = tuple(stream.end())
    about = Exchange(number, "one-call", api, ASKED, 200, "text/event-stream", b"".join(frames))
    return msgspec.structs.replace(
        about,
        received=tuple(stream.received),
        turn=stream.turn,
        findings=found,
        seconds=pause * len(frames),
        facts=facts,
    )


def plain(number: int) -> Exchange:
    body = msgspec.json.encode(PLAIN)
    found, turn = check_plain(body, RequestFacts("chat"))
    return Exchange(
        number, "words", "chat", ASKED, 200, "application/json", body, turn=turn, findings=tuple(found), seconds=0.3
    )


@pytest.fixture(scope="module")
def faulty() -> Report:
    """Streams of all APIs with faults of all kinds, with and without times."""
    captured = [
        msgspec.structs.replace(read_file(body), number=number)
        for number, body in enumerate((b"".join(MESSAGES), GARBAGE, b"".join(RESPONSES)), 1)
    ]
    timed = [
        streamed(4, "chat", CHAT, 0.08),
        streamed(5, "responses", RESPONSES, 0.4),
        streamed(6, "messages", MESSAGES, 0.001),
        plain(7),
    ]
    report = check_captured([*timed, *captured], "captures/faulty.har")
    report.seconds = 12.34
    return report


@pytest.fixture(scope="module")
def live(gateway: Gateway) -> Report:
    """The demo model of a running gateway, which breaks nothing."""
    return asyncio.run(check(Target(gateway.base_url, "demo"), [*APIS]))


@pytest.fixture(scope="module", params=["faulty", "live"])
def report(request: pytest.FixtureRequest) -> Report:
    return request.getfixturevalue(request.param)


def counted(report: Report) -> Counter[str]:
    return Counter(each.outcome for each in report.verdicts)


def must_broken(report: Report) -> int:
    return sum(RULES[each.rule].level == "MUST" for each in report.broken)


# Causes and consequences


@pytest.fixture(scope="module")
def explained() -> Report:
    """Arguments that are an object: the item differs from its deltas, and from the response."""
    frames = responses_turns.sound()
    change("output_item.done", "item", "arguments", to={"city": "Paris"}, nth=2)(frames)
    return check_captured([read_file(wire(frames))], "one-fault.sse")


CAUSE = "responses.arguments-string"
CONSEQUENCES = ["calls.json", "responses.text-agrees", "responses.final-output"]


def test_what_follows_from_a_broken_rule_stands_behind_it(explained: Report):
    assert [(each.rule, each.follows) for each in explained.broken] == [
        (CAUSE, []),
        *((rule, [CAUSE]) for rule in CONSEQUENCES),
    ]
    rules = [each.rule for each in explained.verdicts]
    assert rules[rules.index(CAUSE) + 1 :][:3] == CONSEQUENCES, "in machines' reports too"


def test_a_rule_that_is_also_broken_by_itself_follows_from_nothing(explained: Report):
    frames = responses_turns.sound()
    change("completed", "response", "output", to=[])(frames)
    other = msgspec.structs.replace(read_file(wire(frames)), number=2)
    report = check_captured([*explained.exchanges, other], "two-faults.sse")
    assert [each.rule for each in report.broken if not each.follows] == [CAUSE, "responses.final-output"]
    assert [each.rule for each in find_consequences(report.broken[0], report.verdicts)] == CONSEQUENCES[:2]


def test_a_consequence_is_the_cause_where_only_it_is_looked_at(explained: Report):
    report = check_captured(explained.exchanges, "one-fault.sse", ["responses.final-output"])
    assert [(each.rule, each.follows) for each in report.broken] == [("responses.final-output", [])]


def test_every_report_says_what_follows(explained: Report):
    document = json.loads(as_json(explained))
    assert document["counts"]["following"] == 3
    assert [each["rule"]["id"] for each in document["verdicts"] if each["follows"] == [CAUSE]] == CONSEQUENCES
    cases = [case for case in Xml.fromstring(as_junit(explained)).iter("testcase") if case.find("failure") is not None]
    assert [case.get("name") for case in cases] == [CAUSE, *CONSEQUENCES]
    failures = [failure for case in cases[1:] for failure in case.iter("failure")]
    assert all((each.get("message") or "").startswith(f"follows from {CAUSE}: ") for each in failures)
    page = as_html(explained).decode()
    articles = re.findall(r'<article class="(must[^"]*)" id="responses-([^"]+)"', page)
    assert articles == [("must", CAUSE), *(("must follows", rule) for rule in CONSEQUENCES)]
    assert page.count(f'<dt>Follows from</dt><dd><a href="#responses-{CAUSE}">') == 3


def test_the_terminal_shows_consequences_below_their_cause(explained: Report):
    console = Console(width=200, file=io.StringIO())
    show(explained, console)
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    heads = [line.partition(" on ")[0] for line in lines if line.startswith(("MUST", "SHOULD"))]
    assert heads == [f"MUST {CAUSE}"]
    follows = [line.split()[3] for line in lines if line.startswith("  It follows: ")]
    assert follows == CONSEQUENCES
    assert "3 of the broken ones follow from others" in lines[1]


def test_the_cells_of_the_table_lead_to_the_rules(report: Report):
    page = as_html(report).decode()
    table = page.partition('<table class="areas">')[2].partition("</table>")[0]
    links = re.findall(r'<a class="chip (\w+)" href="#([^"]+)"', table)
    ids = set(re.findall(r'<(?:article|li)[^>]* id="([^"]+)"', page)) | set(re.findall(r'<li id="([^"]+)"', page))
    assert {to for _, to in links} <= ids
    broken = [to for kind, to in links if kind in ("must", "should")]
    assert sorted(broken) == sorted(f"{each.api}-{each.rule}" for each in report.broken)


def test_html_marks_what_is_wrong_inside_of_a_frame(explained: Report):
    page = as_html(explained).decode()
    marked = re.findall("<mark>(.*?)</mark>", page)
    assert "&quot;arguments&quot;: {&quot;city&quot;: &quot;Paris&quot;}" in marked, "which must be text"
    assert "<mark>" not in page.partition("<article")[0]


def test_every_rule_says_who_is_harmed():
    parties = re.compile(
        r"\b(users?|clients?|agents?|operators?|applications?|SDKs?|browsers?|codex|langchain|claude code|google-genai|gemini-cli|the model)\b",
        re.IGNORECASE,
    )
    assert [rule.id for rule in RULES.values() if not parties.search(rule.harm)] == []
    assert [rule.id for rule in RULES.values() if re.match(r"(They|It|The SDK)\b", rule.harm)] == []


def test_the_terminal_says_the_same_thing_once():
    one = read_file(wire(chat_turns.uncounted()))
    again = [
        msgspec.structs.replace(one, number=number, findings=(Finding("chat.role", "It is the user's.", (0,)),))
        for number in range(1, 40)
    ]
    console = Console(width=200, file=io.StringIO())
    show(check_captured(again, "same.har"), console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("It is the user's. (39 times)") == 1


# JSON


def test_json_says_what_was_checked(report: Report):
    document = json.loads(as_json(report))
    assert document["version"] == __version__
    assert (document["target"], document["model"], document["apis"]) == (
        report.target,
        report.model,
        report.apis,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", document["began"])
    assert document["seconds"] > 0
    assert document["sound"] == report.is_sound
    assert not document["budget_spent"]
    assert document["counts"] == {
        "must_broken": must_broken(report),
        "should_broken": len(report.broken) - must_broken(report),
        "passed": counted(report)["passed"],
        "not_observed": counted(report)["not observed"],
        "following": sum(bool(each.follows) for each in report.broken),
    }


def test_json_has_every_verdict_with_its_rule(report: Report):
    document = json.loads(as_json(report))["verdicts"]
    assert [(each["rule"]["id"], each["api"], each["outcome"], each["seen"]) for each in document] == [
        (each.rule, each.api, each.outcome, each.seen) for each in report.verdicts
    ]
    for each in document:
        rule = RULES[each["rule"]["id"]]
        assert each["rule"] == {
            "id": rule.id,
            "level": rule.level,
            "area": rule.area,
            "requirement": rule.requirement,
            "source": rule.source,
            "harm": rule.harm,
        }


def test_json_says_why_a_rule_was_not_observed(report: Report):
    document = json.loads(as_json(report))["verdicts"]
    assert [each["reasons"] for each in document] == [
        each.reasons if each.outcome == "not observed" else [] for each in report.verdicts
    ]


def test_json_has_the_request_and_the_frames_of_a_finding(faulty: Report):
    document = json.loads(as_json(faulty))
    verdict = next(each for each in document["verdicts"] if each["rule"]["id"] == "calls.json")
    finding = verdict["findings"][0]
    exchange = document["exchanges"][finding["exchange"]]
    assert verdict["outcome"] == "broken"
    assert "get_weather_in_the_next_ten_days" in finding["detail"]
    assert [frame["position"] for frame in finding["frames"]] == [27, 28, 29, 30]
    assert finding["frames"][0]["raw"].encode() == CHAT[27]
    assert finding["frames"][0]["at"] == pytest.approx(0.08 * 30)
    assert exchange["request"]["method"] == "POST"
    assert exchange["request"]["body"] == '{"model":"m"}'
    assert (exchange["status"], exchange["probe"]) == (200, "one-call")


def test_json_keeps_bytes_that_are_no_text(faulty: Report):
    document = json.loads(as_json(faulty))
    verdict = next(each for each in document["verdicts"] if each["rule"]["id"] == "sse.utf8")
    assert verdict["findings"][0]["frames"][0]["raw"] == "data: {\x00\x1b\\xff\r\n\r\n"


def test_json_shows_a_plain_answer_where_no_frame_is_named(faulty: Report):
    document = json.loads(as_json(faulty))
    verdict = next(each for each in document["verdicts"] if each["rule"]["id"] == "chat.completion")
    assert verdict["findings"][0]["frames"] == []
    assert json.loads(verdict["findings"][0]["answer"]) == PLAIN


def test_a_report_can_be_written_whatever_a_header_held(faulty: Report):
    odd = [msgspec.structs.replace(each, content_type="text/\udcff", failure="\udcff") for each in faulty.exchanges]
    report = msgspec.structs.replace(faulty, exchanges=odd, target="a\udcff", model="m\udcff")
    json.loads(as_json(report))
    Xml.fromstring(as_junit(report))
    as_html(report).decode()


@pytest.mark.parametrize("form", [as_json, as_junit, as_html])
def test_no_key_of_an_address_is_in_a_report(faulty: Report, form: Any):
    document = form(faulty)
    assert b"hunter" not in document
    assert b"127.0.0.1:4000/v1/chat/completions?api_key=" in document


# JUnit


def test_junit_counts_what_was_found(report: Report):
    root = Xml.fromstring(as_junit(report))
    cases = [*root.iter("testcase")]
    assert root.tag == "testsuites"
    assert [suite.get("name") for suite in root] == [f"toolwire.check.{api}" for api in report.apis]
    assert len(cases) == len(report.verdicts)
    assert len([*root.iter("failure")]) == must_broken(report)
    assert len([*root.iter("system-out")]) == len(report.broken) - must_broken(report)
    assert len([*root.iter("skipped")]) == counted(report)["not observed"]
    for suite in [root, *root]:
        inner = [*suite.iter("testcase")]
        document = [int(suite.get(name, "")) for name in ("tests", "failures", "errors", "skipped")]
        failures = sum(case.find("failure") is not None for case in inner)
        assert document == [len(inner), failures, 0, sum(case.find("skipped") is not None for case in inner)]


def test_junit_names_a_case_after_its_rule(live: Report):
    root = Xml.fromstring(as_junit(live))
    assert [(case.get("classname"), case.get("name")) for case in root.iter("testcase")] == [
        (f"toolwire.check.{each.api}.{RULES[each.rule].area}", each.rule) for each in live.verdicts
    ]


def test_junit_shows_the_bytes_of_a_failure(faulty: Report):
    root = Xml.fromstring(as_junit(faulty))
    failure = root.find(".//testcase[@name='calls.json']/failure")
    assert failure is not None
    assert failure.get("type") == "MUST"
    assert "get_weather_in_the_next_ten_days" in (failure.get("message") or "")
    text = failure.text or ""
    assert RULES["calls.json"].harm in text
    assert '> {"model":"m"}' in text
    assert f"< {CHAT[28].decode().strip()}" in text


def test_junit_says_why_a_rule_was_not_observed(live: Report):
    root = Xml.fromstring(as_junit(live))
    why = {case.get("name"): case.find("skipped") for case in root.iter("testcase")}["stream.live"]
    assert why is not None
    assert why.get("message") == "not observed: no stream took longer than 1.5 s"


def test_junit_replaces_what_xml_forbids(faulty: Report):
    document = as_junit(faulty)
    assert not re.search(rb"[\x00-\x08\x0b-\x1f]", document)
    assert "data: {\\x00\\x1b\\xff\\x0d" in document.decode()


# HTML


class Page(HTMLParser):
    """A page as a browser takes it apart. Tags that are left open raise."""

    VOID = ("meta", "img", "br")

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def has(self, tag: str, kind: str) -> int:
        return sum(name == tag and kind in (attrs.get("class") or "").split() for name, attrs in self.tags)


def test_html_is_whole_and_needs_nothing_else(report: Report):
    document = as_html(report)
    page = Page(document)
    assert not {"script", "link", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in page.tags}
    assert b"url(" not in document
    assert b"@import" not in document
    for _, attrs in page.tags:
        assert not {name for name in attrs if name.startswith("on")}
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")


def test_html_shows_hostile_text_as_text(faulty: Report):
    document = as_html(faulty)
    assert ATTACK.encode() not in document
    assert TURN_AROUND.encode() not in document
    assert "\\u202e" in document.decode()
    assert any("<script>" in words for words in Page(document).words)


def test_html_says_the_verdict_and_counts(report: Report):
    words = " ".join(Page(as_html(report)).words)
    assert report.headline in words
    assert report.headline.startswith("FAILED: " if must_broken(report) else "PASSED: ")
    assert f"{counted(report)['passed']} passed" in words
    assert f"{counted(report)['not observed']} not observed" in words
    assert report.target in words


def test_html_shows_every_broken_rule_must_first(faulty: Report):
    page = Page(as_html(faulty))
    articles = [(attrs["id"], attrs["class"]) for tag, attrs in page.tags if tag == "article"]
    kinds = [f"{RULES[each.rule].level.lower()}{' follows' if each.follows else ''}" for each in faulty.broken]
    assert articles == [(f"{each.api}-{each.rule}", kind) for each, kind in zip(faulty.broken, kinds, strict=True)]
    words = "".join(page.words)
    for each in faulty.broken:
        rule = RULES[each.rule]
        assert each.broken[0][0].detail.replace("`", "")[:6] in words
        assert rule.harm.replace("`", "") in words
        assert rule.source.replace("`", "") in words


def test_html_shows_the_offending_frames_among_their_neighbours(faulty: Report):
    part = as_html(faulty).decode().partition('id="chat-calls.json"')[2].partition("</article>")[0]
    rows = re.findall(r'<li class="(fault|near|gap)">(?:<span class="at">#(\d+))?', part)
    assert rows == [
        ("gap", ""),
        ("near", "25"),
        ("near", "26"),
        *(("fault", str(index)) for index in range(27, 31)),
        ("near", "31"),
        ("near", "32"),
    ]


def test_a_picture_has_lanes_bars_and_marks(faulty: Report):
    part = as_html(faulty).decode().partition('id="chat-calls.json"')[2].partition("</article>")[0]
    page = Page(part.encode().partition(b"<figure>")[2].partition(b"<figcaption>")[0])
    lanes = [words for words in page.words if words in ("text", "reasoning", "calls", "other")]
    assert lanes == ["text", "reasoning", "calls", "other"]
    assert page.has("rect", "bar") == 2
    assert page.has("path", "mark") == 4
    assert "get_weather" in page.words
    assert "get_weather_in_the_ne…" in page.words
    assert "2 s" in page.words


def test_a_picture_shows_a_call_that_never_ends(faulty: Report):
    part = as_html(faulty).decode().partition('id="responses-responses.item-closed"')[2].partition("</article>")[0]
    assert "<title>get_time: events 2 to 5</title>" in part
    assert "<title>never_done: events 6 to 7</title>" in part


def test_a_picture_of_a_sound_stream_has_a_bar_for_every_call(live: Report):
    streams = [each for each in live.exchanges if each.received]
    assert {each.api for each in streams} == {*APIS}
    for each in streams:
        document = draw_timeline(each, ())
        assert re.findall(r"<title>(\w+): events", document) == [call.name for call in each.turn.calls]
        assert (">text</text>" in document) == bool(each.turn.text)
        assert (">calls</text>" in document) == bool(each.turn.calls)


def test_a_picture_of_many_calls_shows_those_that_offend():
    def call(index: int) -> bytes:
        return fragment(index, "{" if index == 17 else "{}", id=f"c{index}", type="function", name=f"tool_{index}")

    body = b"".join((chunk(role="assistant"), *map(call, range(20)), chunk("tool_calls"), data(b"[DONE]")))
    document = as_html(check_captured([read_file(body)], "many.sse")).decode()
    names = re.findall(
        r"<title>(\w+): events", document.partition('id="chat-calls.json"')[2].partition("</article>")[0]
    )
    assert names == [*(f"tool_{index}" for index in range(7)), "tool_17"]
    assert ">tool_17 and 12 more<" in document


def test_what_was_seen_again_and_again_is_said_once():
    frame = chunk(content="word ").replace(b"chat.completion.chunk", b"chunk")
    document = as_html(check_captured([read_file(chunk(role="assistant") + frame * 9)], "same.sse")).decode()
    assert '<span class="soft">(9 times)</span>' in document


def test_a_picture_without_times_is_in_order(faulty: Report):
    part = as_html(faulty).decode().partition('id="messages-messages.block-index"')[2].partition("</article>")[0]
    assert "12 events and 1 call, in the order in which they came; the times are not known." in part
    assert re.search(r"12 events and 1 call, in the order in which they came; all within \d+ ms\.", part)


def test_a_report_of_nothing_says_so():
    report = Report(
        "http://127.0.0.1/v1", "m", [], 0.0, absent={"chat": "status 404"}, spent=True, ended={"chat": "too slow"}
    )
    words = " ".join(Page(as_html(report)).words)
    assert "Nothing was observed" in words
    assert "chat was not checked: status 404" in words
    assert "chat was not checked to the end: too slow" in words
    assert "raise --budget" in words
    assert Xml.fromstring(as_junit(report)).get("tests") == "0"
    assert json.loads(as_json(report))["absent"] == {"chat": "status 404"}


def test_an_answer_that_never_came_is_shown_by_its_request():
    exchange = Exchange(1, "models", "chat", SentRequest("GET", "http://127.0.0.1/v1/models"), failure="it hung up")
    verdict = Verdict("models.listed", "chat", 1, [(Finding("models.listed", "The answer is missing."), 1)])
    report = Report("http://127.0.0.1/v1", "m", ["chat"], 0.0, 1.0, [exchange], [verdict])
    words = " ".join(Page(as_html(report)).words)
    assert "exchange 1 · models · no answer · it hung up" in words
    assert "GET http://127.0.0.1/v1/models" in words
    assert "PASSED: no MUST rule is broken, but 1 SHOULD rule is broken." in words
    assert "> GET http://127.0.0.1/v1/models" in as_junit(report).decode().replace("&gt;", ">")


def test_thousands_of_findings_make_a_report_of_bearable_size():
    frames = b"".join(chunk(content=f"word {number} ").replace(b"data: ", b"data:") for number in range(5000))
    body = chunk(role="assistant", content="") + frames.replace(b"chat.completion.chunk", b"chunk") * 2
    report = check_captured([read_file(body)], "long.sse")
    page = as_html(report)
    assert len(page) < 500_000
    Page(page)
    assert len(as_junit(report)) < 500_000
    assert sum(len(each["findings"]) for each in json.loads(as_json(report))["verdicts"]) == sum(
        len(each.broken) for each in report.broken
    )


@pytest.mark.parametrize("name", ["out.html", "out.json", "out.junit.xml"])
def test_the_name_of_a_file_chooses_the_form(faulty: Report, tmp_path: Path, name: str):
    write_report(faulty, tmp_path / name)
    starts = {"out.html": b"<!doctype html>", "out.json": b"{", "out.junit.xml": b"<?xml"}
    assert (tmp_path / name).read_bytes().startswith(starts[name])


def test_a_name_that_chooses_no_form_is_refused(faulty: Report, tmp_path: Path):
    with pytest.raises(ValueError, match=r"must end with one of \.html, \.json, \.xml"):
        write_report(faulty, tmp_path / "out.pdf")
