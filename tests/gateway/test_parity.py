"""The same turn over both OpenAI endpoints, streamed, plain and by socket: the same calls, text, finish and notes."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from websockets.sync.client import connect

from tests.support.fold import fold_chat
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.gateway import (
    Gateway,
    Responses,
    backend,
    calls_of,
    chat_body,
    error_of,
    flat,
    good,
    read_events,
    read_sse,
    response_body,
    text_of,
    tool,
)
from tests.support.upstream import Cut, Pause, Reply, Upstream
from toolwire.core.request import Tool
from toolwire.notations.read import extract_calls
from toolwire.notations.use_tool import USE_TOOL
from toolwire.notations.values import Schemas
from toolwire.turns.flags import HEADERS

pytestmark = pytest.mark.xdist_group("parity")  # its gateways are started once

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


def streamed(items: list[Item]) -> bytes:
    """The turn as a Responses server streams it."""
    return stream(created(), *(_streamed(item, place) for place, item in enumerate(items)), completed(usage=USAGE))


def _streamed(item: Item, place: int) -> bytes:
    match item:
        case Text(pieces):
            return stream(*(text(piece, f"msg_{place}", place) for piece in pieces))
        case Called(id, name, pieces):
            return call(id, name, *pieces, index=place)
        case Thought(words):
            delta = {"item_id": f"rs_{place}", "output_index": place, "summary_index": 0, "delta": words}
            return rs("reasoning_summary_text.delta", **delta)


def in_one_piece(items: list[Item]) -> bytes:
    """The turn as a Responses server answers plainly."""
    output = [_item(item, place) for place, item in enumerate(items)]
    return json.dumps({"id": "resp_1", "status": "completed", "output": output, "usage": USAGE}).encode()


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
    for name, (items, _, _) in TURNS.items():
        upstream.replies[f"streams {name}"] = Reply([streamed(items)])
        upstream.replies[f"answers {name}"] = Reply([in_one_piece(items)], 200, "application/json")


# What a client sees


class Seen(msgspec.Struct, frozen=True):
    """A turn as a client of any endpoint sees it."""

    calls: list[tuple[str, Any]]
    text: str
    finish: str
    usage: tuple[int, int] | None
    mode: str
    count: int
    truncated: bool
    stop_mode: str
    notes: list[dict[str, str]]


def telemetry(told: dict[str, Any]) -> dict[str, Any]:
    """The telemetry, however it came; ids that are made up for each run count as equal."""
    notes = [{name: re.sub(r"^call_[0-9a-f]{8,}t?", "MINTED ", value) for name, value in note.items()} for note in told["notes"]]  # fmt: skip
    return {
        "count": told["tool_call_count"],
        "truncated": told["tool_call_truncated"],
        "stop_mode": told["stop_after_tools_mode"],
        "notes": notes,
    }


def in_headers(response: httpx.Response) -> dict[str, Any]:
    return telemetry(
        {
            "tool_call_count": int(response.headers["x-codex-tool-call-count"]),
            "tool_call_truncated": {"true": True, "false": False}[response.headers["x-codex-tool-call-truncated"]],
            "stop_after_tools_mode": response.headers["x-codex-stop-after-tools-mode"],
            "notes": json.loads(response.headers.get("x-toolwire-notes", "[]")),
        }
    )


Asked = dict[str, Any]
"""Fields of a request that mean the same in both dialects, and `tools` in chat's form."""


def mode_of(response: httpx.Response) -> str:
    return response.headers["x-proxy-output-mode"]


def by_chat(gateway: Gateway, http: httpx.Client, model: str, asked: Asked, headers: dict[str, str], *, stream: bool) -> Seen:  # fmt: skip
    options = {"stream_options": {"include_usage": True}} if stream else {}
    body = chat_body(model, stream=stream, **asked, **options)
    response = good(http.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers))
    if stream:
        frames = list(read_sse(response))
        folded = fold_chat(frames)
        message, finish, usage = folded["message"], folded["finish"], folded["usage"]
        told = telemetry(json.loads([value for kind, value in frames if kind == "comment"][-1]))
    else:
        answer = response.json()
        message, finish = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
        usage, told = answer.get("usage"), in_headers(response)
    made = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message.get("tool_calls") or ()]  # fmt: skip
    counted = (usage["prompt_tokens"], usage["completion_tokens"]) if usage else None
    return Seen(made, message["content"] or "", finish, counted, mode_of(response), **told)


def as_finish(response: dict[str, Any]) -> str:
    """The finish reason that corresponds to a response."""
    if response["status"] == "incomplete":
        return {"max_output_tokens": "length", "content_filter": "content_filter"}[
            response["incomplete_details"]["reason"]
        ]
    assert response["status"] == "completed"
    assert ("required_action" in response) == (bool(calls_of(response)) and response["store"])
    return "tool_calls" if calls_of(response) else "stop"


def seen_in(response: dict[str, Any], mode: str, told: dict[str, Any]) -> Seen:
    made = [(item["name"], json.loads(item["arguments"])) for item in calls_of(response)]
    usage = response["usage"]
    counted = (usage["input_tokens"], usage["output_tokens"]) if usage else None
    return Seen(made, text_of(response), as_finish(response), counted, mode, **told)


def by_responses(gateway: Gateway, http: httpx.Client, model: str, asked: Asked, headers: dict[str, str], *, stream: bool) -> Seen:  # fmt: skip
    body = response_body(model, stream=stream, store=False, **asked)
    answer = good(http.post(f"{gateway.base_url}/responses", json=body, headers=headers))
    if not stream:
        return seen_in(answer.json(), mode_of(answer), in_headers(answer))
    events = read_events(answer)
    deltas = "".join(data["delta"] for data in events.of("response.output_text.delta"))
    assert deltas == text_of(events.response), "the stream says what its end says"
    return seen_in(events.response, mode_of(answer), telemetry(events.telemetry))


def by_socket(gateway: Gateway, model: str, asked: Asked, headers: dict[str, str]) -> Seen:
    url = gateway.base_url.replace("http", "ws", 1) + "/responses"
    with connect(url, additional_headers=headers, proxy=None) as socket:
        body = response_body(model, store=False, **asked)
        socket.send(json.dumps({"type": "response.create", **body}))
        while True:
            message = json.loads(socket.recv(15))
            if message["type"] in ("response.completed", "response.incomplete"):
                break
    response = message["response"]
    return seen_in(response, "", telemetry(response["toolwire"]))


ALL_WAYS = [(verb, streams) for verb in ("streams", "answers") for streams in (True, False)]
FOUR_WAYS = [("streams", True), ("answers", False)]
"""Each upstream with the clients that ask for what it gives."""


def every_way(
    gateway: Gateway,
    http: httpx.Client,
    name: str,
    headers: dict[str, str],
    ways: Sequence[tuple[str, bool]] = ALL_WAYS,
    **asked: Any,
) -> dict[str, Seen]:
    """The turn as seen over every endpoint, streamed and plain, by an upstream that streams or answers plainly."""
    seen: dict[str, Seen] = {}
    for verb, streams in ways:
        way = f"{'streamed' if streams else 'plain'}, the upstream {verb}"
        seen[f"chat, {way}"] = by_chat(gateway, http, f"up/{verb} {name}", asked, headers, stream=streams)
        seen[f"responses, {way}"] = by_responses(gateway, http, f"up/{verb} {name}", asked, headers, stream=streams)
    socket = by_socket(gateway, f"up/streams {name}", asked, headers)
    seen["socket"] = msgspec.structs.replace(socket, mode=next(iter(seen.values())).mode)
    return seen


def run_together(text: str) -> str:
    """Two messages are two items of a response; to a chat client they are one text with a blank line in it."""
    return text.replace("\n\n", "")


def the_same(seen: dict[str, Seen]) -> Seen:
    """What all ways agree on."""
    seen = {way: msgspec.structs.replace(each, text=run_together(each.text)) for way, each in seen.items()}
    (first, wanted), *others = seen.items()
    for way, other in others:
        for field in Seen.__struct_fields__:
            found = (field, way, getattr(other, field))
            assert found == (field, way, getattr(wanted, field)), f"not as over {first}"
    assert wanted.count == len(wanted.calls)
    return wanted


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


# Without any settings

MODES = pytest.mark.parametrize("mode", ["openai-json", "obsidian-xml"])


@MODES
@pytest.mark.parametrize("name", TURNS)
def test_a_turn_is_the_same_over_every_endpoint(gateway, http, name, mode):
    seen = the_same(every_way(gateway, http, name, {"x-proxy-output-mode": mode}, tools=TOOLS))
    _, made, words = TURNS[name]
    assert seen.calls == made
    assert seen.mode == mode
    assert seen.finish == ("tool_calls" if made else "stop")
    assert seen.usage == (20, 5)
    if mode == "openai-json":
        assert seen.text == run_together(words)
    else:
        assert blocks_in(seen.text) == made


@pytest.mark.parametrize("name", TURNS)
def test_without_tools_text_is_text_over_every_endpoint(gateway, http, name):
    seen = the_same(every_way(gateway, http, name, {}, FOUR_WAYS))
    items, _, _ = TURNS[name]
    assert seen.text == run_together("".join(item.whole for item in items if isinstance(item, Text)))
    assert len(seen.calls) == sum(isinstance(item, Called) for item in items)
    assert seen.mode == "openai-json"


NOTED = {
    "a twin as use_tool": [{"code": "text_call_twin", "subject": "find"}],
    "a twin as tool_call": [{"code": "text_call_twin", "subject": "find"}],
    "without its end": [{"code": "text_call_recovered", "subject": "find"}],
    "one call": [],
}


@pytest.mark.parametrize("name", NOTED)
def test_what_was_changed_is_noted_over_every_endpoint(gateway, http, name):
    assert the_same(every_way(gateway, http, name, {}, tools=TOOLS)).notes == NOTED[name]


def test_a_block_that_cannot_be_read_is_noted_over_every_endpoint(gateway, http):
    [note] = the_same(every_way(gateway, http, "a broken block", {}, tools=TOOLS)).notes
    assert note["code"] == "text_block_kept"


ASKED: dict[str, tuple[Asked, str, list[tuple[str, Any]], bool]] = {
    "one call at a time": ({"parallel_tool_calls": False}, "two calls", [x], True),
    "one call at a time, in text": ({"parallel_tool_calls": False}, "use_tool twice", [x], True),
    "no calls at all": ({"tool_choice": "none"}, "two calls", [], False),
    "any call": ({"tool_choice": "required"}, "both tags", [now, x, x], False),
}


@MODES
@pytest.mark.parametrize("name", ASKED)
def test_what_the_request_says_about_calls_holds_over_every_endpoint(gateway, http, name, mode):
    asked, turn, made, truncated = ASKED[name]
    seen = the_same(every_way(gateway, http, turn, {"x-proxy-output-mode": mode}, tools=TOOLS, **asked))
    assert (seen.calls, seen.truncated) == (made, truncated)


# With settings

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

EXPECTED: dict[tuple[str, str], tuple[list[tuple[str, Any]], str, bool]] = {
    # (settings, turn): (calls, text, truncated)
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


CALLING = [name for name, (_, made, _) in TURNS.items() if made and not name.endswith(("letters", "types", "kinds"))]
"""The turns that settings may change."""


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_mean_the_same_over_every_endpoint(configured, http, settings, name):
    seen = the_same(every_way(configured(settings), http, name, {}, FOUR_WAYS, tools=TOOLS))
    expected = EXPECTED.get((settings, name))
    if expected is not None:
        assert (seen.calls, seen.text, seen.truncated) == expected
    assert seen.finish == ("tool_calls" if seen.calls else "stop")


@pytest.mark.parametrize("name", ["use_tool the same twice", "both tags", "call and text", "one twin for two"])
@pytest.mark.parametrize("settings", ["dedup", "at most one", "stop after the first", "no tail"])
def test_settings_mean_the_same_as_obsidian_xml(configured, http, settings, name):
    headers = {"x-proxy-output-mode": "obsidian-xml"}
    seen = the_same(every_way(configured(settings), http, name, headers, tools=TOOLS))
    plain = the_same(every_way(configured(settings), http, name, {}, tools=TOOLS))
    assert (seen.calls, seen.truncated) == (plain.calls, plain.truncated)
    # Nothing follows a block unless that is asked for.
    tail = {"code": "tail_withheld"}
    assert [note for note in seen.notes if note != tail] == [note for note in plain.notes if note != tail]
    assert blocks_in(seen.text) == seen.calls


def test_blocks_are_set_apart_by_the_delimiter_over_every_endpoint(configured, http):
    seen = the_same(every_way(configured("obsidian-xml with a line"), http, "two calls", {}, tools=TOOLS))
    assert seen.text == f"{FIND_X}\n---\n{FIND_Y}"


# The output mode


def test_a_prompt_that_teaches_use_tool_is_answered_so_over_every_endpoint(gateway, http):
    taught = "Call tools with <use_tool> blocks."
    system = {"role": "system", "content": taught}
    opening = {"role": "assistant", "content": taught}
    question = {"role": "user", "content": "Go."}
    chat = by_chat(gateway, http, "up/streams use_tool in text", {"messages": [system, question]}, {}, stream=True)
    for streams in (True, False):
        for asked in ({"instructions": taught}, {"input": [system, question]}, {"input": [opening, question]}):
            assert by_responses(gateway, http, "up/streams use_tool in text", asked, {}, stream=streams) == chat
    assert (chat.mode, chat.calls, chat.text) == ("obsidian-xml", [x], f"Let me see.\n{FIND_X}")


def test_what_a_user_or_a_later_answer_says_of_use_tool_teaches_nothing(gateway, http):
    taught = "Call tools with <use_tool> blocks."
    question, answer = {"role": "user", "content": "Go."}, {"role": "assistant", "content": taught}
    for messages in ([{"role": "user", "content": taught}], [question, answer, question]):
        chat = by_chat(gateway, http, "up/streams use_tool in text", {"messages": messages}, {}, stream=True)
        assert (chat.mode, chat.calls) == ("openai-json", [])
        assert by_responses(gateway, http, "up/streams use_tool in text", {"input": messages}, {}, stream=True) == chat


@pytest.mark.parametrize("prefix", ["obsidian-xml", "openai-json"])
def test_a_path_prefix_sets_the_mode_of_both_endpoints(gateway, http, prefix):
    for path, body in (("chat/completions", chat_body("demo")), ("responses", response_body("demo"))):
        response = good(http.post(f"{gateway.url}/{prefix}/v1/{path}", json=body))
        assert mode_of(response) == prefix
    response_id = response.json()["id"]
    assert good(http.get(f"{gateway.url}/{prefix}/v1/responses/{response_id}")).json()["id"] == response_id


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_says_nonsense_is_refused_by_both_endpoints(gateway, http, header):
    for path, body in (("chat/completions", chat_body("demo")), ("responses", response_body("demo"))):
        status, error = error_of(http.post(f"{gateway.base_url}/{path}", json=body, headers={header: "yaml"}))
        assert (status, error["param"]) == (400, header)


# Failures


def failed_chat(
    gateway: Gateway, http: httpx.Client, model: str, headers: dict[str, str], *, stream: bool
) -> tuple[Any, ...]:
    """The status, message and code of a turn that failed, and the text before."""
    body = chat_body(model, stream=stream, tools=TOOLS)
    response = http.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)
    if response.status_code != 200:
        status, error = error_of(response)
        return status, error["message"], error["code"], ""
    folded = fold_chat(list(read_sse(response)))
    return 200, folded["error"]["message"], folded["error"]["code"], folded["message"]["content"] or ""


def failed_responses(gateway: Gateway, http: httpx.Client, model: str, headers: dict[str, str], *, stream: bool) -> tuple[Any, ...]:  # fmt: skip
    body = response_body(model, stream=stream, tools=TOOLS)
    response = Responses(http, gateway).post(body, **{name.replace("-", "_"): value for name, value in headers.items()})
    if response.status_code != 200:
        status, error = error_of(response)
        return status, error["message"], error["code"], ""
    events = read_events(response)
    [error] = events.of("error")
    assert events.response["error"]["message"] == error["message"]
    return 200, error["message"], error["code"], text_of(events.response)


STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
STRICT = {"x-proxy-strict-tools": "true"}


@STREAMED
@MODES
def test_strict_parsing_fails_the_same_turns_over_both_endpoints(gateway, http, upstream, streams, mode):
    upstream.replies["broken"] = Reply([stream(created(), text("<use_tool>oops</use_tool>"), completed())])
    headers = {**STRICT, "x-proxy-output-mode": mode}
    chat = failed_chat(gateway, http, "up/broken", headers, stream=streams)
    assert failed_responses(gateway, http, "up/broken", headers, stream=streams) == chat
    assert (chat[0], chat[2]) == (502, "tool_block_invalid")


WRITTEN = [
    name for name in CALLING if name != "an unknown name" and not re.search("^(one|two|three|the same) call", name)
]


@pytest.mark.parametrize("name", WRITTEN)
def test_strict_parsing_changes_nothing_for_blocks_that_are_sound(gateway, http, name):
    usual = by_chat(gateway, http, f"up/streams {name}", {"tools": TOOLS}, {}, stream=True)
    strict = every_way(gateway, http, name, STRICT, FOUR_WAYS, tools=TOOLS)
    assert the_same(strict) == the_same({"usual": usual})


def test_strict_parsing_in_mid_stream_fails_both_streams_there(gateway, http, upstream):
    late = [stream(created(), text("See. ")), Pause(0.1), stream(text("<use_tool>oops</use_tool> So."), completed())]
    upstream.replies["breaks late"] = Reply(late)
    chat = failed_chat(gateway, http, "up/breaks late", STRICT, stream=True)
    assert failed_responses(gateway, http, "up/breaks late", STRICT, stream=True) == chat
    assert (chat[0], chat[2], chat[3]) == (200, "tool_block_invalid", "See. ")


@STREAMED
@pytest.mark.parametrize("model", ["demo-error", "demo-rate-limit", "demo-error-middle", "demo-cut", "nobody"])
def test_a_failure_is_the_same_over_both_endpoints(gateway, http, model, streams):
    chat = failed_chat(gateway, http, model, {}, stream=streams)
    assert failed_responses(gateway, http, model, {}, stream=streams) == chat


ENDS = {"length": "max_output_tokens", "content_filter": "content_filter"}


@pytest.mark.parametrize("finish", ENDS)
@pytest.mark.parametrize(
    "begun", [[says("And th")], [says(FIND_X)], [calls("c1", "find", '{"q":"x"}')], [says("See. <use_tool><name>fi")]]
)
def test_a_turn_cut_short_is_cut_short_over_every_endpoint(gateway, http, upstream, finish, begun):
    details = {"status": "incomplete", "incomplete_details": {"reason": ENDS[finish]}}
    items = stream(*(_streamed(item, place) for place, item in enumerate(begun)))
    upstream.replies["streams short"] = Reply([stream(created(), items, rs("incomplete", response=details))])
    plain = {"id": "r", **details, "output": [_item(item, place) for place, item in enumerate(begun)]}
    upstream.replies["answers short"] = Reply([json.dumps(plain).encode()], 200, "application/json")
    assert the_same(every_way(gateway, http, "short", {}, tools=TOOLS)).finish == finish


def test_a_failure_after_calls_can_be_finished_over_both_endpoints(http, start, upstream):
    after = stream(created(), text("See. "), call("c1", "find", '{"q":"x"}', index=1))
    upstream.replies["fails after"] = Reply([after, Pause(0.05), Cut()])
    gateway = start(backend(upstream.url), PROXY_FINISH_AFTER_CALLS="true")
    seen = {
        f"{name}, {stream}": way(gateway, http, "up/fails after", {"tools": TOOLS}, {}, stream=stream)
        for name, way in (("chat", by_chat), ("responses", by_responses))
        for stream in (True, False)
    }
    agreed = the_same(seen)
    assert (agreed.calls, agreed.text, agreed.finish) == ([x], "See. ", "tool_calls")
    assert [note["code"] for note in agreed.notes] == ["failure_after_calls"]


def test_the_tools_reach_the_upstream_alike_from_both_endpoints(gateway, http, upstream):
    for way in (by_chat, by_responses):
        way(gateway, http, "up/streams text", {"tools": TOOLS, "tool_choice": "auto"}, {}, stream=True)
    chat, responses = (asked.body for asked in upstream.of("streams text")[-2:])
    assert [(each["name"], each["parameters"]) for each in chat["tools"]] == [(each["name"], each["parameters"]) for each in responses["tools"]]  # fmt: skip
    assert chat["tool_choice"] == responses["tool_choice"] == "auto"
    assert responses["tools"] == [flat(each) for each in TOOLS]
