"""The strict readers of Chat and Messages streams: a sound stream breaks no rule, and every rule has one that does."""

import copy
from typing import Any

import pytest

from tests.support import chat_lifecycle, messages_lifecycle

Json = dict[str, Any]

# Chat


def chunk(delta: Json, finish: str | None = None) -> tuple[str, Json]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return "data", {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, "usage": None}  # fmt: skip


def part(index: int, **fields: Any) -> Json:
    return {"tool_calls": [{"index": index, **fields}]}


def opening(index: int, id: str, name: str = "look") -> Json:
    return part(index, id=id, type="function", function={"name": name, "arguments": ""})


USAGE: tuple[str, Json] = ("data", {**chunk({})[1], "choices": [], "usage": {"prompt_tokens": 1}})
DONE = ("data", "[DONE]")
ERROR = ("data", {"error": {"message": "No."}})
STREAM: list[tuple[str, Any]] = [
    chunk({"role": "assistant", "content": None}),
    chunk({"content": "Hi"}),
    chunk(opening(0, "a")),
    chunk(part(0, function={"arguments": "{}"})),
    chunk(opening(1, "b")),
    chunk(part(1, function={"arguments": "{}"})),
    chunk({}, "tool_calls"),
    USAGE,
    ("comment", "{}"),
    DONE,
]


def swapped(place: int, frame: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [*STREAM[:place], frame, *STREAM[place + 1 :]]


def without(*places: int) -> list[tuple[str, Any]]:
    return [frame for place, frame in enumerate(STREAM) if place not in places]


BROKEN_CHAT: list[tuple[str, list[tuple[str, Any]]]] = [
    ("done-marker", without(9)),
    ("done-marker", [*STREAM, DONE]),
    ("done-marker", [*STREAM, chunk({})]),
    ("error-frame", [*STREAM[:2], ERROR, chunk({"content": "!"}), DONE]),
    ("identity", swapped(1, ("data", {**chunk({})[1], "id": "d"}))),
    ("identity", swapped(1, ("data", {**chunk({})[1], "object": "chat.completion"}))),
    ("role", without(0)),
    ("role", swapped(1, chunk({"role": "assistant"}))),
    ("finish", without(6)),
    ("finish", swapped(5, chunk({}, "stop"))),
    ("finish", swapped(6, chunk({}, "done"))),
    ("finish", [*STREAM[:7], ERROR, DONE]),
    ("usage", swapped(1, USAGE)),
    ("usage", swapped(1, ("data", {key: value for key, value in chunk({})[1].items() if key != "usage"}))),
    ("usage", swapped(7, ("data", {**chunk({})[1], "choices": []}))),
    ("call-index", swapped(4, chunk(opening(2, "b")))),
    ("call-index", swapped(3, chunk({"tool_calls": [{"function": {"arguments": "{}"}}]}))),
    ("call-index", swapped(5, chunk(part(0, function={"arguments": "}"})))),
    ("call-once", swapped(3, chunk(part(0, id="a", function={"arguments": "{}"})))),
    ("call-once", swapped(3, chunk(part(0, function={"name": "look", "arguments": "{}"})))),
    ("call-opening", swapped(2, chunk(part(0, type="function", function={"name": "look", "arguments": ""})))),
    ("call-opening", swapped(2, chunk(opening(0, "a", "")))),
    ("call-id", swapped(4, chunk(opening(1, "a")))),
    ("call-fragment", swapped(3, chunk(part(0, function={"arguments": {}})))),
]


def test_a_sound_chat_stream_breaks_no_rule():
    assert chat_lifecycle.violations(STREAM, usage=True) == []
    assert chat_lifecycle.violations([*STREAM[:4], ERROR, DONE], usage=True) == []


def test_usage_that_nobody_asked_for_is_a_complaint():
    assert _rules(chat_lifecycle.violations(STREAM, usage=False)) == {"usage"}


@pytest.mark.parametrize(("rule", "frames"), BROKEN_CHAT)
def test_a_chat_stream_that_breaks_a_rule_is_caught(rule: str, frames: list[tuple[str, Any]]):
    assert rule in _rules(chat_lifecycle.violations(frames, usage=True))


def _rules(complaints: list[str]) -> set[str]:
    return {complaint.partition(":")[0] for complaint in complaints}


# Messages


def event(type: str, **fields: Any) -> tuple[str, Json]:
    return type, {"type": type, **fields}


def start(index: int, **block: Any) -> tuple[str, Json]:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, type: str, **fields: Any) -> tuple[str, Json]:
    return event("content_block_delta", index=index, delta={"type": type, **fields})


def stop(index: int) -> tuple[str, Json]:
    return event("content_block_stop", index=index)


def ends(reason: str) -> tuple[str, Json]:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 1})


BEGUN = event("message_start", message={"id": "msg", "content": [], "stop_reason": None, "usage": {"input_tokens": 1}})
OVER = event("message_stop")
FAILED = event("error", error={"type": "api_error", "message": "No."})
MESSAGE: list[tuple[str, Json]] = [
    BEGUN,
    event("ping"),
    start(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="Hm."),
    delta(0, "signature_delta", signature="S"),
    stop(0),
    start(1, type="text", text=""),
    delta(1, "text_delta", text="So."),
    stop(1),
    start(2, type="tool_use", id="a", name="look", input={}),
    delta(2, "input_json_delta", partial_json='{"a":'),
    delta(2, "input_json_delta", partial_json="1}"),
    stop(2),
    ends("tool_use"),
    OVER,
]


def replaced(place: int, *frames: tuple[str, Json]) -> list[tuple[str, Json]]:
    return [*MESSAGE[:place], *frames, *MESSAGE[place + 1 :]]


BROKEN_MESSAGES: list[tuple[str, list[tuple[str, Json]]]] = [
    ("event-name", replaced(14, ("message_delta", OVER[1]))),
    ("opening", MESSAGE[1:]),
    ("opening", replaced(1, BEGUN)),
    ("opening", replaced(0, event("message_start", message={"content": [], "stop_reason": None}))),
    ("opening", replaced(0, event("message_start", message={"content": ["x"], "stop_reason": None, "usage": {}}))),
    ("closing", MESSAGE[:-1]),
    ("closing", [*MESSAGE[:-1], ends("tool_use"), OVER]),
    ("closing", replaced(13, ends("done"))),
    ("closing", replaced(13, event("message_delta", delta={"stop_reason": "tool_use"}, usage={}))),
    ("closing", [BEGUN, ends("tool_use"), OVER]),
    ("error-event", [*MESSAGE, FAILED]),
    ("error-event", [BEGUN, FAILED, OVER]),
    ("block-order", replaced(5)),
    ("block-order", replaced(12)),
    ("block-order", replaced(7, delta(0, "text_delta", text="So."))),
    ("block-order", replaced(8, stop(0))),
    ("block-index", replaced(6, start(2, type="text", text=""))),
    ("block-start", replaced(6, start(1, type="text", text="So."))),
    ("block-start", replaced(9, start(2, type="tool_use", id="a", name="look", input={"a": 1}))),
    ("block-empty", replaced(7)),
    ("delta", replaced(7, delta(1, "thinking_delta", thinking="So."))),
    ("delta", replaced(7, delta(1, "text_delta", text=None))),
    ("delta", replaced(4, MESSAGE[4], MESSAGE[4])),
    ("delta", replaced(4, MESSAGE[4], MESSAGE[3])),
    ("input", replaced(11)),
]


@pytest.mark.parametrize(
    "frames",
    [
        MESSAGE,
        [BEGUN, ends("end_turn"), OVER],
        [*MESSAGE[:11], FAILED],
        [FAILED],
        [*MESSAGE[:11], *MESSAGE[12:13], ends("max_tokens"), OVER],
    ],
    ids=["whole", "empty", "broken", "failed at once", "cut"],
)
def test_a_sound_messages_stream_breaks_no_rule(frames: list[tuple[str, Json]]):
    assert messages_lifecycle.violations(copy.deepcopy(frames)) == []


@pytest.mark.parametrize(("rule", "frames"), BROKEN_MESSAGES)
def test_a_messages_stream_that_breaks_a_rule_is_caught(rule: str, frames: list[tuple[str, Json]]):
    assert rule in _rules(messages_lifecycle.violations(frames))
