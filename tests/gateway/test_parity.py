"""The same turn over both OpenAI endpoints, streamed, plain and by socket: the same calls, text, finish and notes.

A case is a turn under one rule, in one output mode, asked in one way; it is compared with the same turn over a chat
stream and with what is known of it. `make test` takes every pair of rule, turn, mode, way and upstream; `make soak`
takes the rest of the product.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from websockets.sync.client import connect

from tests.support.client_readers import PATHS, Held, Refused, Telemetry, hold, hold_socket, shape_faults
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.gateway import Gateway, backend, chat_body, error_of, flat, good, response_body, tool
from tests.support.pairs import pairwise
from tests.support.scripts import Name, Tokens
from tests.support.upstream import Cut, Pause, Reply, Upstream
from toolwire.config.flags import HEADERS
from toolwire.core.request import Tool
from toolwire.notations.read import extract_calls
from toolwire.notations.use_tool import USE_TOOL
from toolwire.notations.values import Schemas

TOOLS = [
    tool("find", q={"type": "string"}),
    tool("now"),
    tool(
        "add",
        a={"type": "integer"},
        b={"type": "number"},
        strict={"type": "boolean"},
        tags={"type": "array", "items": {"type": "string"}},
    ),
]
USAGE = {"input_tokens": 20, "output_tokens": 5}


class Text(msgspec.Struct, frozen=True):
    """A message of the model, in pieces."""

    pieces: tuple[str, ...]

    @property
    def whole(self) -> str:
        return "".join(self.pieces)


class Called(msgspec.Struct, frozen=True):
    """A structured call of the model, its arguments in pieces."""

    id: str
    name: str
    pieces: tuple[str, ...]


class Thought(msgspec.Struct, frozen=True):
    """What the model thinks, which is nobody's to read as a call."""

    words: str


Item = Text | Called | Thought


def says(*pieces: str) -> Text:
    return Text(pieces)


def letters(words: str) -> Text:
    return Text(tuple(words))


def calls(id: str, name: str, *pieces: str) -> Called:
    return Called(id, name, pieces)


# The model's words

FIND_X = "<use_tool>\n<name>find</name>\n<q>x</q>\n</use_tool>"
FIND_Y = "<use_tool>\n<name>find</name>\n<q>y</q>\n</use_tool>"
NOW = "<use_tool>\n<name>now</name>\n</use_tool>"
JSON_X = '<tool_call>{"name": "find", "arguments": {"q": "x"}}</tool_call>'
JSON_Y = '<tool_call>\n{"name": "find", "arguments": "{\\"q\\": \\"y\\"}"}\n</tool_call>'
JSON_NOW = '<tool_call>{"name":"now","arguments":{}}</tool_call>'
XML_X = "<tool_call><function=find><parameter=q>x</parameter></function></tool_call>"
TYPED = (
    '<use_tool><name>add</name><a>1</a><b>2.5</b><strict>true</strict><tags>["p","q"]</tags></use_tool>',
    ("add", {"a": 1, "b": 2.5, "strict": True, "tags": ["p", "q"]}),
)
x, y, now = ("find", {"q": "x"}), ("find", {"q": "y"}), ("now", {})

TURNS: dict[str, tuple[list[Item], list[tuple[str, Any]], str]] = {
    # name: (what the model says, the calls, the text) with no settings, as openai-json
    "text": ([says("Hello", ", world.")], [], "Hello, world."),
    "one call": ([calls("c1", "find", '{"q":', '"x"}')], [x], ""),
    "two calls": ([calls("c1", "find", '{"q":"x"}'), calls("c2", "find", '{"q":"y"}')], [x, y], ""),
    "three calls": ([calls("c1", "now", "{}"), calls("c2", "find", '{"q":"x"}'), calls("c3", "now")], [now, x, now], ""),
    "the same call twice": ([calls("c1", "find", '{"q":"x"}'), calls("c2", "find", '{"q": "x"}')], [x, x], ""),
    "no arguments": ([calls("c1", "now")], [now], ""),
    "text and call": ([says("Let me ", "see."), calls("c1", "find", '{"q":"x"}')], [x], "Let me see."),
    "call and text": ([calls("c1", "find", '{"q":"x"}'), says("It says…")], [x], "It says…"),
    "text between calls": ([calls("c1", "now"), says("Hm."), calls("c2", "find", '{"q":"x"}')], [now, x], "Hm."),
    "thought and call": ([Thought(f"I could say {FIND_X}"), calls("c1", "find", '{"q":"y"}')], [y], ""),
    "use_tool": ([says(FIND_X)], [x], ""),
    "use_tool by letters": ([letters(FIND_X)], [x], ""),
    "use_tool in text": ([says("Let me see.\n", FIND_X, "\nThere.")], [x], "Let me see.\n\nThere."),
    "use_tool twice": ([says(f"{FIND_X}\n\n{FIND_Y}")], [x, y], ""),
    "use_tool the same twice": ([says(f"{FIND_X}\n{FIND_X}")], [x, x], ""),
    "use_tool with types": ([says(TYPED[0])], [TYPED[1]], ""),
    "use_tool in two messages": ([says(f"One. {FIND_X}"), says(f"Two. {NOW}")], [x, now], "One. Two. "),
    "tool_call": ([says(JSON_X)], [x], ""),
    "tool_call by letters": ([letters(f"See: {JSON_Y}")], [y], "See: "),
    "tool_call as xml": ([says("See: ", XML_X)], [x], "See: "),
    "both tags": ([says(f"{JSON_NOW} and {FIND_X} and {XML_X}")], [now, x, x], " and  and "),
    "a twin as use_tool": ([calls("c1", "find", '{"q": "x"}'), says(FIND_X)], [x], ""),
    "a twin as tool_call": ([says("See. ", JSON_X), calls("c1", "find", '{"q":"x"}')], [x], "See. "),
    "a twin as xml": ([says(XML_X), calls("c1", "find", '{"q":"x"}'), calls("c2", "now")], [x, now], ""),
    "a twin and another": ([calls("c1", "find", '{"q":"x"}'), says(FIND_X + JSON_NOW)], [x, now], ""),
    "one twin for two": ([calls("c1", "find", '{"q":"x"}'), says(FIND_X + JSON_X)], [x, x], ""),
    "without its end": ([says('See. <tool_call>{"name":"find","arguments":{"q":"x"}}')], [x], "See. "),
    "a broken block": ([says("See. <use_tool>oops</use_tool> So.")], [], "See. <use_tool>oops</use_tool> So."),
    "an unknown name": ([says(f"{NOW} {FIND_X.replace('find', 'seek')}")], [now], f" {FIND_X.replace('find', 'seek')}"),
    "in a code fence": ([says(f"```xml\n{FIND_X}\n```\n")], [], f"```xml\n{FIND_X}\n```\n"),
    "in quotes": ([says(f"Write `{JSON_X}`.")], [], f"Write `{JSON_X}`."),
    "letters of all kinds": ([calls("c1", "find", '{"q":"Zürich \\u2603 東京 \U0001f326\ufe0f"}'), says("où \U0001f600")], [("find", {"q": "Zürich ☃ 東京 \U0001f326\ufe0f"})], "où \U0001f600"),
}  # fmt: skip


ENDS = {"length": "max_output_tokens", "content_filter": "content_filter"}
CUT_SHORT: dict[str, tuple[list[Item], list[tuple[str, Any]], str]] = {
    # name: (what the model says, the calls, the end)
    f"{name}, then {end}": (items, made, end)
    for end in ENDS
    for name, items, made in (
        ("use_tool", [says(FIND_X)], [x]),
        ("a call", [calls("c1", "find", '{"q":"x"}')], [x]),
        ("half a use_tool", [says("See. <use_tool><name>fi")], []),
    )
}


def streamed(items: list[Item], end: str = "") -> bytes:
    """The turn as a Responses server streams it."""
    last = completed(usage=USAGE) if not end else rs("incomplete", response={**_ended(end), "usage": USAGE})
    return stream(created(), *(_streamed(item, place) for place, item in enumerate(items)), last)


def _ended(end: str) -> dict[str, Any]:
    return {"status": "incomplete", "incomplete_details": {"reason": ENDS[end]}} if end else {"status": "completed"}


def _streamed(item: Item, place: int) -> bytes:
    match item:
        case Text(pieces):
            return stream(*(text(piece, f"msg_{place}", place) for piece in pieces))
        case Called(id, name, pieces):
            return call(id, name, *pieces, index=place)
        case Thought(words):
            delta = {"item_id": f"rs_{place}", "output_index": place, "summary_index": 0, "delta": words}
            return rs("reasoning_summary_text.delta", **delta)


def in_one_piece(items: list[Item], end: str = "") -> bytes:
    """The turn as a Responses server answers plainly."""
    output = [_item(item, place) for place, item in enumerate(items)]
    return json.dumps({"id": "resp_1", **_ended(end), "output": output, "usage": USAGE}).encode()


def _item(item: Item, place: int) -> dict[str, Any]:
    match item:
        case Text():
            part = {"type": "output_text", "text": item.whole, "annotations": []}
            return {
                "type": "message",
                "id": f"msg_{place}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        case Called(id, name, pieces):
            return call_item(id, name, "".join(pieces), f"fc_{id}", status="completed")
        case Thought(words):
            return {"type": "reasoning", "id": f"rs_{place}", "summary": [{"type": "summary_text", "text": words}]}


@pytest.fixture(scope="module", autouse=True)
def replies(upstream: Upstream) -> None:
    ends = {name: (items, "") for name, (items, _, _) in TURNS.items()}
    for name, (items, end) in (ends | {name: (items, end) for name, (items, _, end) in CUT_SHORT.items()}).items():
        upstream.replies[f"streams {name}"] = Reply([streamed(items, end)])
        upstream.replies[f"answers {name}"] = Reply([in_one_piece(items, end)], 200, "application/json")


# What a client sees


class Agreed(msgspec.Struct, frozen=True):
    """A turn as every way must show it: calls without their ids, text without the blank lines between messages."""

    calls: list[tuple[str, Any]]
    text: str
    finish: str
    tokens: Tokens | None
    telemetry: Telemetry

    @property
    def truncated(self) -> bool:
        return self.telemetry.tool_call_truncated

    @property
    def notes(self) -> list[dict[str, str]]:
        return self.telemetry.notes


def run_together(text: str) -> str:
    """Two messages are two items of a response; to a chat client they are one text with a blank line in it."""
    return text.replace("\n\n", "")


def agreed(held: Held) -> Agreed:
    """What all ways agree on; ids that are made up for each run count as equal."""
    assert held.telemetry is not None
    assert held.telemetry.tool_call_count == len(held.seen.calls)
    minted = re.compile(r"^call_[0-9a-f]{8,}t?")
    notes = [{name: minted.sub("MINTED ", value) for name, value in note.items()} for note in held.telemetry.notes]
    telemetry = msgspec.structs.replace(held.telemetry, notes=notes)
    calls = [(call.name, json.loads(call.arguments)) for call in held.seen.calls]
    return Agreed(calls, run_together(held.seen.text), held.seen.finish, held.seen.tokens, telemetry)


Asked = dict[str, Any]
"""Fields of a request that mean the same in both dialects, and `tools` in chat's form."""


class Client(msgspec.Struct, frozen=True):
    """A client of one gateway."""

    gateway: Gateway
    http: httpx.Client

    def post(self, dialect: Name, model: str, asked: Asked, headers: dict[str, str], *, stream: bool) -> httpx.Response:
        if dialect == "chat":
            options = {"stream_options": {"include_usage": True}} if stream else {}
            body = chat_body(model, stream=stream, **asked, **options)
        else:
            body = response_body(model, stream=stream, store=False, **asked)
        return self.http.post(self.gateway.url + PATHS[dialect], json=body, headers=headers)

    def ask(self, way: str, model: str, asked: Asked, headers: dict[str, str]) -> Held:
        """The turn, read strictly."""
        if way == "socket":
            held = hold_socket(self.messages(model, asked, headers))
            assert shape_faults(held, "responses", stream=True) == []
            return held
        dialect: Name = "chat" if way.startswith("chat") else "responses"
        stream = way.endswith("streamed")
        held = hold(self.post(dialect, model, asked, headers, stream=stream), dialect, stream=stream)
        assert shape_faults(held, dialect, stream=stream) == []
        return held

    def messages(self, model: str, asked: Asked, headers: dict[str, str]) -> list[Any]:
        """What comes over a WebSocket until the response has ended."""
        url = self.gateway.url.replace("http", "ws", 1) + PATHS["responses"]
        with connect(url, additional_headers=headers, proxy=None) as socket:
            body = response_body(model, store=False, **asked)
            socket.send(json.dumps({"type": "response.create", **body}))
            messages = [json.loads(socket.recv(60))]
            while messages[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed"):
                messages.append(json.loads(socket.recv(60)))
        return messages


FIRST = "chat, streamed"
WAYS = (FIRST, "chat, plain", "responses, streamed", "responses, plain", "socket")


SCHEMAS = Schemas(
    tuple(
        Tool(each["function"]["name"], parameters=msgspec.Raw(json.dumps(each["function"]["parameters"]).encode()))
        for each in TOOLS
    )
)


def blocks_in(words: str) -> list[tuple[str, Any]]:
    """The declared tools that a text calls, as a reader of `<use_tool>` finds them."""
    declared = [each["function"]["name"] for each in TOOLS]
    found = extract_calls(words, (USE_TOOL,), SCHEMAS)
    return [(name, json.loads(arguments)) for name, arguments in found if name in declared]


# Rules: settings of the gateway, headers and fields of the request

SETTINGS: dict[str, dict[str, str]] = {
    "dedup": {"PROXY_TOOL_BLOCK_DEDUP": "true"},
    "at most one": {"PROXY_TOOL_BLOCK_MAX": "1"},
    "at most two": {"PROXY_TOOL_BLOCK_MAX": "2"},
    "stop after the first": {"PROXY_STOP_AFTER_TOOLS": "true", "PROXY_STOP_AFTER_TOOLS_MODE": "first"},
    "stop after a burst": {"PROXY_STOP_AFTER_TOOLS": "true", "PROXY_STOP_AFTER_TOOLS_GRACE_MS": "5000"},
    "no tail": {"PROXY_SUPPRESS_TAIL_AFTER_TOOLS": "true"},
    "never parallel": {"PROXY_ENABLE_PARALLEL_TOOL_CALLS": "false"},
    "obsidian-xml with a line": {"PROXY_OUTPUT_MODE": "obsidian-xml", "PROXY_TOOL_BLOCK_DELIMITER": "\\n---\\n"},
}

ASKED: dict[str, Asked] = {
    "one call at a time": {"parallel_tool_calls": False},
    "no calls at all": {"tool_choice": "none"},
    "any call": {"tool_choice": "required"},
    "without tools": {"tools": None},
}
STRICT = {"x-proxy-strict-tools": "true"}
HEADER = "x-proxy-output-mode"

CALLING = [name for name, (_, made, _) in TURNS.items() if made and not name.endswith(("letters", "types", "kinds"))]
"""The turns that settings may change."""
SEVERAL = [name for name in CALLING if len(TURNS[name][1]) > 1]
"""The turns that a number or a delimiter may change."""
WRITTEN = [
    name for name in CALLING if name != "an unknown name" and not re.search("^(one|two|three|the same) call", name)
]
STRUCTURED = [name for name, (items, _, _) in TURNS.items() if not any(isinstance(item, Text) for item in items)]

RULES: dict[str, list[str]] = {
    # rule: the turns under it
    "none": [*TURNS, *CUT_SHORT],
    "without tools": [name for name in TURNS if name not in STRUCTURED[1:]],
    "strict": WRITTEN,
    "one call at a time": ["two calls", "use_tool twice"],
    "no calls at all": ["two calls"],
    "any call": ["both tags"],
    "dedup": CALLING,
    "at most one": [*SEVERAL, "one call", "call and text", "use_tool in text"],
    "at most two": SEVERAL,
    "stop after the first": CALLING,
    "stop after a burst": CALLING,
    "no tail": CALLING,
    "never parallel": ["two calls", "use_tool twice", "both tags"],
    "obsidian-xml with a line": SEVERAL,
}
AS_XML = ["use_tool the same twice", "both tags", "call and text", "one twin for two"]
"""The turns that are told as obsidian-xml under the settings, too."""


def modes_of(rule: str, turn: str) -> tuple[str, ...]:
    if rule == "obsidian-xml with a line":
        return ("obsidian-xml",)
    both = (
        (rule == "none" and turn in TURNS)
        or rule in ("one call at a time", "no calls at all", "any call")
        or (rule in ("dedup", "at most one", "stop after the first", "no tail") and turn in AS_XML)
    )
    return ("openai-json", "obsidian-xml") if both else ("openai-json",)


def asked_in(rule: str, turn: str, mode: str) -> list[tuple[str, str]]:
    """The ways, each with an upstream that streams or answers plainly; settings take the upstream that fits."""
    if rule in ("none", "one call at a time", "no calls at all", "any call") or (mode, rule in SETTINGS) == MIXED:
        return [(way, verb) for verb in ("streams", "answers") for way in WAYS if (way, verb) not in LEFT_OUT]
    return [*((way, "streams") for way in ("responses, streamed", "socket")), *((way, "answers") for way in PLAIN)]


PLAIN = ("chat, plain", "responses, plain")
MIXED = ("obsidian-xml", True)
LEFT_OUT = ((FIRST, "streams"), ("socket", "answers"))

CASES = [
    (rule, turn, mode, *how)
    for rule, turns in RULES.items()
    for turn in turns
    for mode in modes_of(rule, turn)
    for how in asked_in(rule, turn, mode)
]

EXPECTED: dict[tuple[str, str], tuple[list[tuple[str, Any]], str, bool]] = {
    # (rule, turn): (calls, text, truncated)
    ("dedup", "use_tool the same twice"): ([x], "", False),
    ("dedup", "both tags"): ([now, x], " and  and ", False),
    ("dedup", "one twin for two"): ([x], "", False),
    ("dedup", "the same call twice"): ([x, x], "", False),
    ("at most one", "two calls"): ([x], "", True),
    ("at most one", "both tags"): ([now], " and  and ", True),
    ("at most two", "three calls"): ([now, x], "", True),
    ("at most two", "two calls"): ([x, y], "", False),
    ("stop after the first", "two calls"): ([x], "", True),
    ("stop after the first", "call and text"): ([x], "", False),
    ("stop after the first", "text and call"): ([x], "Let me see.", False),
    ("stop after a burst", "two calls"): ([x, y], "", False),
    ("stop after a burst", "call and text"): ([x], "", False),
    ("stop after a burst", "use_tool in text"): ([x], "Let me see.\n", False),
    ("no tail", "call and text"): ([x], "", False),
    ("no tail", "text between calls"): ([now, x], "", False),
    ("no tail", "use_tool in text"): ([x], "Let me see.\n", False),
    ("never parallel", "two calls"): ([x], "", True),
    ("never parallel", "use_tool twice"): ([x], "", True),
    ("one call at a time", "two calls"): ([x], "", True),
    ("one call at a time", "use_tool twice"): ([x], "", True),
    ("no calls at all", "two calls"): ([], "", False),
    ("any call", "both tags"): ([now, x, x], " and  and ", False),
    ("obsidian-xml with a line", "two calls"): ([x, y], f"{FIND_X}\n---\n{FIND_Y}", False),
}


NOTED: dict[tuple[str, str], list[dict[str, str]]] = {
    # (rule, turn): notes
    ("none", "a twin as use_tool"): [{"code": "text_call_twin", "subject": "find"}],
    ("none", "a twin as tool_call"): [{"code": "text_call_twin", "subject": "find"}],
    ("none", "without its end"): [{"code": "text_call_recovered", "subject": "find"}],
    ("none", "one call"): [],
    ("at most one", "two calls"): [{"code": "call_capped", "subject": "c2"}],
    ("stop after the first", "two calls"): [{"code": "call_cut", "subject": "c2"}],
    ("dedup", "use_tool the same twice"): [{"code": "call_duplicate", "subject": "MINTED 02"}],
    ("no tail", "call and text"): [{"code": "tail_withheld"}],
}


@pytest.fixture(scope="module")
def configured(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Gateway]]:
    """A gateway with one of the settings; each is started once."""
    started: dict[str, Gateway] = {}

    def get(name: str) -> Gateway:
        if name not in started:
            started[name] = Gateway(tmp_path_factory.mktemp("parity"), backend(upstream.url), **SETTINGS[name])
        return started[name]

    yield get
    for gateway in started.values():
        gateway.stop()


@pytest.mark.parametrize(("rule", "turn", "mode", "way", "verb"), pairwise(CASES, "-".join))
def test_a_turn_is_the_same_in_every_way(configured, gateway, http, rule, turn, mode, way, verb):
    client = Client(configured(rule) if rule in SETTINGS else gateway, http)
    asked = {"tools": TOOLS, **ASKED.get(rule, {})}
    headers = {HEADER: mode} if rule == "none" or mode == "obsidian-xml" else {}
    if rule == "obsidian-xml with a line":
        headers = {}
    first = agreed(client.ask(FIRST, f"up/streams {turn}", asked, headers))
    if mode == "openai-json" or not headers:
        check_what_is_known(first, rule, turn)
    else:
        usual = agreed(client.ask(FIRST, f"up/streams {turn}", asked, {HEADER: "openai-json"}))
        check_what_is_known(usual, rule, turn)
        assert (first.calls, first.truncated) == (usual.calls, usual.truncated)
        # Nothing follows a block unless that is asked for.
        tail = {"code": "tail_withheld"}
        assert [note for note in first.notes if note != tail] == [note for note in usual.notes if note != tail]
    if mode == "obsidian-xml":
        assert blocks_in(first.text) == first.calls
    held = client.ask(way, f"up/{verb} {turn}", asked, headers | (STRICT if rule == "strict" else {}))
    assert held.mode == ("" if way == "socket" else mode)
    assert agreed(held) == first


def check_what_is_known(seen: Agreed, rule: str, turn: str) -> None:
    """Compare a turn in openai-json with the tables."""
    # A turn that is stopped early has not come to its usage.
    assert seen.tokens == Tokens(20, 5) or (rule, seen.tokens) == ("stop after the first", None)
    if turn in CUT_SHORT:
        _, made, end = CUT_SHORT[turn]
        assert (seen.calls, seen.finish) == (made, {"content_filter": "filter"}.get(end, end))
        return
    assert seen.finish == ("calls" if seen.calls else "stop")
    items, made, words = TURNS[turn]
    assert seen.notes == NOTED.get((rule, turn), seen.notes)
    if (rule, turn) in EXPECTED:
        assert (seen.calls, seen.text, seen.truncated) == EXPECTED[rule, turn]
    elif rule in ("none", "strict"):
        assert (seen.calls, seen.text) == (made, run_together(words))
        assert turn != "a broken block" or [note["code"] for note in seen.notes] == ["text_block_kept"]
    elif rule == "without tools":
        assert seen.text == run_together("".join(item.whole for item in items if isinstance(item, Text)))
        assert len(seen.calls) == sum(isinstance(item, Called) for item in items)


# The output mode


def test_a_prompt_that_teaches_use_tool_is_answered_so_over_every_endpoint(gateway, http):
    client, model = Client(gateway, http), "up/streams use_tool in text"
    taught = "Call tools with <use_tool> blocks."
    system = {"role": "system", "content": taught}
    opening = {"role": "assistant", "content": taught}
    question = {"role": "user", "content": "Go."}
    held = client.ask(FIRST, model, {"messages": [system, question]}, {})
    for way in ("responses, streamed", "responses, plain"):
        for asked in ({"instructions": taught}, {"input": [system, question]}, {"input": [opening, question]}):
            assert agreed(client.ask(way, model, asked, {})) == agreed(held)
    seen = agreed(held)
    assert (held.mode, seen.calls, seen.text) == ("obsidian-xml", [x], f"Let me see.\n{FIND_X}")


def test_what_a_user_or_a_later_answer_says_of_use_tool_teaches_nothing(gateway, http):
    client, model = Client(gateway, http), "up/streams use_tool in text"
    taught = "Call tools with <use_tool> blocks."
    question, answer = {"role": "user", "content": "Go."}, {"role": "assistant", "content": taught}
    for messages in ([{"role": "user", "content": taught}], [question, answer, question]):
        chat = client.ask(FIRST, model, {"messages": messages}, {})
        responses = client.ask("responses, streamed", model, {"input": messages}, {})
        assert (chat.mode, responses.mode, chat.seen.calls) == ("openai-json", "openai-json", ())
        assert agreed(responses) == agreed(chat)


@pytest.mark.parametrize("prefix", ["obsidian-xml", "openai-json"])
def test_a_path_prefix_sets_the_mode_of_both_endpoints(gateway, http, prefix):
    for path, body in (("chat/completions", chat_body("demo")), ("responses", response_body("demo"))):
        response = good(http.post(f"{gateway.url}/{prefix}/v1/{path}", json=body))
        assert response.headers[HEADER] == prefix
    response_id = response.json()["id"]
    assert good(http.get(f"{gateway.url}/{prefix}/v1/responses/{response_id}")).json()["id"] == response_id


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_says_nonsense_is_refused_by_both_endpoints(gateway, http, header):
    for path, body in (("chat/completions", chat_body("demo")), ("responses", response_body("demo"))):
        status, error = error_of(http.post(f"{gateway.base_url}/{path}", json=body, headers={header: "yaml"}))
        assert (status, error["param"]) == (400, header)


# Failures


def failure(client: Client, dialect: Name, model: str, headers: dict[str, str], *, stream: bool) -> tuple[Any, ...]:
    """The status, message and code of a turn that failed, and the text before."""
    try:
        held = hold(client.post(dialect, model, {"tools": TOOLS}, headers, stream=stream), dialect, stream=stream)
    except Refused as refused:
        return refused.status, refused.message, refused.body["error"]["code"], ""
    assert held.error is not None
    assert shape_faults(held, dialect, stream=True) == []
    if dialect == "responses":
        assert held.own["error"]["message"] == held.error["message"]
    return 200, held.error["message"], held.error["code"], held.seen.text


def failure_over_both(client: Client, model: str, headers: dict[str, str], *, stream: bool) -> tuple[Any, ...]:
    """The failure on which both endpoints agree."""
    chat = failure(client, "chat", model, headers, stream=stream)
    assert failure(client, "responses", model, headers, stream=stream) == chat
    return chat


STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])


@STREAMED
@pytest.mark.parametrize("mode", ["openai-json", "obsidian-xml"])
def test_strict_parsing_fails_the_same_turns_over_both_endpoints(gateway, http, upstream, streams, mode):
    upstream.replies["broken"] = Reply([stream(created(), text("<use_tool>oops</use_tool>"), completed())])
    failed = failure_over_both(Client(gateway, http), "up/broken", {**STRICT, HEADER: mode}, stream=streams)
    assert (failed[0], failed[2]) == (502, "tool_block_invalid")


def test_strict_parsing_in_mid_stream_fails_both_streams_there(gateway, http, upstream):
    late = [stream(created(), text("See. ")), Pause(0.1), stream(text("<use_tool>oops</use_tool> So."), completed())]
    upstream.replies["breaks late"] = Reply(late)
    failed = failure_over_both(Client(gateway, http), "up/breaks late", STRICT, stream=True)
    assert (failed[0], failed[2], failed[3]) == (200, "tool_block_invalid", "See. ")


@STREAMED
@pytest.mark.parametrize("model", ["demo-error", "demo-rate-limit", "demo-error-middle", "demo-cut", "nobody"])
def test_a_failure_is_the_same_over_both_endpoints(gateway, http, model, streams):
    failure_over_both(Client(gateway, http), model, {}, stream=streams)


def test_a_failure_after_calls_can_be_finished_over_both_endpoints(http, start, upstream):
    after = stream(created(), text("See. "), call("c1", "find", '{"q":"x"}', index=1))
    upstream.replies["fails after"] = Reply([after, Pause(0.05), Cut()])
    client = Client(start(backend(upstream.url), PROXY_FINISH_AFTER_CALLS="true"), http)
    first, *others = (
        agreed(client.ask(way, "up/fails after", {"tools": TOOLS}, {})) for way in WAYS if way != "socket"
    )
    assert others == [first] * 3
    assert (first.calls, first.text, first.finish) == ([x], "See. ", "calls")
    assert [note["code"] for note in first.notes] == ["failure_after_calls"]


def test_the_tools_reach_the_upstream_alike_from_both_endpoints(gateway, http, upstream):
    upstream.replies["tools alike"] = upstream.replies["streams text"]
    for way in (FIRST, "responses, streamed"):
        Client(gateway, http).ask(way, "up/tools alike", {"tools": TOOLS, "tool_choice": "auto"}, {})
    chat, responses = (asked.body for asked in upstream.of("tools alike"))
    assert [(each["name"], each["parameters"]) for each in chat["tools"]] == [(each["name"], each["parameters"]) for each in responses["tools"]]  # fmt: skip
    assert chat["tool_choice"] == responses["tool_choice"] == "auto"
    assert responses["tools"] == [flat(each) for each in TOOLS]
