"""Histories that clients send: calls and results stay paired, in order, and nothing of them is lost."""

from typing import Any

import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.lines import RULES, answer, ask, ask_responses, sent_for
from tests.support.frames import call_item, completed, created, rs, stream
from toolwire.adapt.history import NO_RESULT
from toolwire.assembly import ToolRules, apply_rules
from toolwire.core.errors import BadRequest
from toolwire.core.request import Request

theme = Theme("history")

_USER = {"role": "user", "content": "Go."}
_STRICT = ToolRules(history="strict")


def _call(id: str, arguments: str = "{}", name: str = "f") -> Json:
    """A call of a chat message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _made(*calls: Json, content: Any = None) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def _result(id: str, content: Any = "ok") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": content}


def _item(call: str, arguments: str = "{}", **fields: Any) -> Json:
    """A call of a Responses input."""
    return {"type": "function_call", "call_id": call, "name": "f", "arguments": arguments, **fields}


def _output(call: str, output: Any = "ok") -> Json:
    return {"type": "function_call_output", "call_id": call, "output": output}


def _asked(*history: Json) -> Request:
    """A request with this history, in the dialect it is written in."""
    is_chat = any("tool_calls" in entry or entry.get("role") == "tool" for entry in history)
    return ask(messages=[_USER, *history]) if is_chat else ask_responses(input=[_USER, *history])


def _sent(*history: Json, rules: ToolRules = RULES) -> list[Json]:
    """What a Responses server gets of this history, after the opening message."""
    return sent_for(apply_rules(_asked(*history), rules))["input"][1:]


def _notes(*history: Json) -> list[str]:
    return [note.code for note in apply_rules(_asked(*history), RULES).notes]


def _kinds(items: list[Json]) -> list[tuple[str, str]]:
    return [(item.get("type", "message"), item.get("call_id", "")) for item in items]


@theme.row("hx-missing-result")
def _() -> None:
    more = {"role": "user", "content": "continue"}
    for history in ((_item("c1"), more), (_made(_call("c1")), more)):
        called, placeholder, said = _sent(*history)
        assert _kinds([called, placeholder, said]) == [
            ("function_call", "c1"),
            ("function_call_output", "c1"),
            ("message", ""),
        ]
        assert placeholder["output"] == NO_RESULT
        assert _notes(*history) == ["result_missing"]
        with pytest.raises(BadRequest, match="c1") as refused:
            _sent(*history, rules=_STRICT)
        assert refused.value.param == ("messages" if "tool_calls" in history[0] else "input")
    assert _notes(_output("c9"), more) == ["result_dropped"]
    assert [item["role"] for item in _sent(_output("c9"), more)] == ["user"]


@theme.row("hx-skip-half-pair")
def _() -> None:
    for history, param in (
        ((_made(_call("c1", name="")), _result("c1")), "messages[1].tool_calls[0].function.name"),
        ((_item("c1", name=""), _output("c1")), "input[1].name"),
    ):
        with pytest.raises(BadRequest) as refused:
            _sent(*history)
        assert refused.value.param == param


@theme.row("hx-split-assistants")
def _() -> None:
    history = [_item("c0"), _item("c1"), _output("c0"), _output("c1")]
    assert _sent(*history) == history
    assert _notes(*history) == []


@theme.row("hx-multipart-rs")
def _() -> None:
    sent = _sent(_made(_call("a"), _call("b"), content="Let me look."), _result("a"), _result("b"))
    said, *calls = sent
    assert said["content"] == [{"type": "output_text", "text": "Let me look."}]
    assert _kinds(calls) == [
        ("function_call", "a"),
        ("function_call", "b"),
        ("function_call_output", "a"),
        ("function_call_output", "b"),
    ]


@theme.row("hx-user-between")
def _() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    seen = {"role": "user", "content": [image]}
    history = _made(_call("c1"), _call("c2")), _result("c1", "see image"), seen, _result("c2")
    sent = _sent(*history)
    assert _kinds(sent) == [
        ("function_call", "c1"),
        ("function_call", "c2"),
        ("function_call_output", "c1"),
        ("function_call_output", "c2"),
        ("message", ""),
    ]
    assert sent[-1]["content"][0]["image_url"] == "data:image/png;base64,AA"
    assert _notes(*history) == ["result_moved"]


def _pairs(items: list[Json]) -> list[tuple[str, str]]:
    """Arguments and output of each call, by id; ids are unique."""
    calls = [item for item in items if item["type"] == "function_call"]
    outputs = [item for item in items if item["type"] == "function_call_output"]
    assert len({item["call_id"] for item in calls}) == len(calls)
    assert sorted(item["call_id"] for item in calls) == sorted(item["call_id"] for item in outputs)
    found = {item["call_id"]: item["output"] for item in outputs}
    return [(item["arguments"], found[item["call_id"]]) for item in calls]


@theme.row("hx-dup-ids")
def _() -> None:
    one, two = '{"n":1}', '{"n":2}'
    for history in (
        (_made(_call("c", one), _call("c", two)), _result("c", "first"), _result("c", "second")),
        (_item("c", one), _item("c", two), _output("c", "first"), _output("c", "second")),
    ):
        assert _pairs(_sent(*history)) == [(one, "first"), (two, "second")]
    # The same call twice with one result is one call.
    for history in ((_made(_call("c"), _call("c")), _result("c")), (_item("c"), _item("c"), _output("c"))):
        assert _pairs(_sent(*history)) == [("{}", "ok")]
    # Used again later, an id is another matter: each call has been answered before.
    again = _made(_call("c", one)), _result("c", "first"), _made(_call("c", two)), _result("c", "second")
    assert [item.get("arguments", item.get("output")) for item in _sent(*again)] == [one, "first", two, "second"]


@theme.row("hx-result-no-id")
def _() -> None:
    nameless = {"role": "tool", "content": "x"}
    sent = _sent(_made(_call("c1")), nameless)
    assert _kinds(sent) == [("function_call", "c1"), ("function_call_output", "c1")]
    assert sent[-1]["output"] == "x"
    for history, param in (
        ((_made(_call("c1"), _call("c2")), nameless), "messages[2].tool_call_id"),
        ((_item("c1"), _item("c2"), {"type": "function_call_output", "output": "x"}), "input[3].call_id"),
    ):
        with pytest.raises(BadRequest) as refused:
            _sent(*history)
        assert refused.value.param == param


@theme.row("hx-id-variants")
def _() -> None:
    for variant in ("call_1", "fc_1"):
        history = _item("call_1", id="fc_1"), _output(variant)
        sent = _sent(*history)
        assert _kinds(sent) == [("function_call", "call_1"), ("function_call_output", "call_1")]
        assert sent[-1]["output"] == "ok"
        assert _notes(*history) == []


@theme.row("rs-unknown-input")
def _() -> None:
    tools = [{"type": "function", "name": "late"}]
    history: list[Json] = [
        {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": tools},
        {"type": "tool_search_call", "id": "ts_1", "call_id": "s1", "execution": "client", "arguments": {"q": 1}},
        {"type": "tool_search_output", "id": "to_1", "call_id": "s1", "status": "completed", "tools": tools},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "of its own origin"},
        {"type": "brand_new", "content": 3},
        {"type": "message", "role": "assistant", "phase": "commentary", "content": [{"type": "novel", "x": [1]}]},
    ]
    assert _sent(*history) == history
    assert _notes(*history) == []


@theme.row("args-json-history-400")
def _() -> None:
    broken = '{"path":"x","error_retry:: 240}'
    for history in ((_made(_call("c", broken)), _result("c")), (_item("c", broken), _output("c"))):
        assert _sent(*history)[0]["arguments"] == broken  # text to a Responses server, and to us


@theme.row("hx-cross-type-callid")
def _() -> None:
    called = call_item("c1", "f", "{}")
    output = {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "ok", "status": "completed"}
    turn = [
        created(),
        rs("output_item.added", output_index=0, item={**called, "arguments": ""}),
        rs("output_item.done", output_index=0, item=called),
        rs("output_item.added", output_index=1, item={**output, "status": "in_progress"}),
        rs("output_item.done", output_index=1, item=output),
    ]
    for ending in (completed(), completed([called, output]), b""):
        answered = answer(stream(*turn, ending))
        assert answered.calls == [("c1", "f", "{}")]
        assert (answered.error is None) == bool(ending)
        items = [(item["type"], item["call_id"]) for item in answered.response["output"]]
        assert items == [("function_call", "c1"), ("function_call_output", "c1")]


@theme.row("hx-output-array")
def _() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert _sent(_item("c"), _output("c", parts))[-1]["output"] == parts
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _sent(_made(_call("c")), _result("c", texts))[-1]["output"] == "a\nb"
    image = [*parts, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    assert _sent(_item("c"), _output("c", image))[-1]["output"] == image
    for output, written in (({"a": [1]}, '{"a": [1]}'), (3, "3"), (1.5, "1.5"), (True, "true")):
        assert _sent(_item("c"), _output("c", output))[-1]["output"] == written  # JSON once, as text


@theme.row("hx-empty-result")
def _() -> None:
    for nothing in ("", [], None):
        for history in ((_made(_call("c")), _result("c", nothing)), (_item("c"), _output("c", nothing))):
            sent = _sent(*history)
            assert _kinds(sent) == [("function_call", "c"), ("function_call_output", "c")]
            assert sent[-1]["output"] in ("", [])
            assert _notes(*history) == []


@theme.row("hx-dev-between")
def _() -> None:
    plan = {"role": "developer", "content": "plan"}
    history = _item("c1"), plan, _output("c1")
    assert _sent(*history) == [*history]  # a Responses server takes it so
    assert _notes(*history) == []
    chatted = _made(_call("c1")), plan, _result("c1")
    sent = _sent(*chatted)
    assert _kinds(sent) == [("function_call", "c1"), ("function_call_output", "c1"), ("message", "")]
    assert sent[-1]["content"] == [{"type": "input_text", "text": "plan"}]
    assert _notes(*chatted) == ["result_moved"]


@theme.row("hx-steer-lost")
def _() -> None:
    steer = {"role": "user", "content": "also do X"}
    for history in ((_made(_call("c1")), _result("c1"), steer), (_item("c1"), _output("c1"), steer)):
        sent = _sent(*history)
        assert _kinds(sent) == [("function_call", "c1"), ("function_call_output", "c1"), ("message", "")]
        assert "also do X" in str(sent[-1]["content"])


test_museum = theme.test()
