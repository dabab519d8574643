"""A Messages stream as its client reads it: strictly, block by block, and brought to the words all dialects share."""

import json
from functools import lru_cache
from typing import Any

import msgspec
from anthropic.types import ErrorResponse
from anthropic.types import Message as WireMessage
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from tests.museum.clients import Json, Said, strict_json
from tests.support.checked import messages_faults
from tests.support.schemas import faults

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class Blocks(msgspec.Struct, frozen=True):
    """A stream of Messages events that broke no rule."""

    events: tuple[Json, ...]
    comments: tuple[str, ...]
    message: Json
    """What it adds up to; inputs are the text of their pieces."""
    error: Json | None = None

    @property
    def deltas(self) -> list[tuple[int, str, str]]:
        """Block, type and words of each delta."""
        grown = [event for event in self.events if event["type"] == "content_block_delta"]
        return [(each["index"], each["delta"]["type"], [*each["delta"].values()][-1]) for each in grown]

    @property
    def usages(self) -> list[Json]:
        """What the opening says about tokens, and what the end says."""
        return [event.get("message", event)["usage"] for event in self.events if _counts(event)]

    @property
    def said(self) -> Said:
        return said_by_blocks(self.message, self.error)


def _counts(event: Json) -> bool:
    return event["type"] in ("message_start", "message_delta")


def received_blocks(data: bytes) -> Blocks:
    """A whole stream, held against the rules of the protocol and the types of the official client."""
    events, comments = _read(data)
    if events[-1]["type"] == "error":
        return Blocks(tuple(events), tuple(comments), _folded(events[:-1]), events[-1]["error"])
    return Blocks(tuple(events), tuple(comments), _folded(events))


def said_by_blocks(message: Json, error: Json | None = None) -> Said:
    """What a message says, once it agrees with itself."""
    content = message.get("content", [])
    calls = tuple((each["id"], each["name"], _text(each["input"])) for each in content if each["type"] == "tool_use")
    thoughts = [each["thinking"] for each in content if each["type"] == "thinking"]
    text = "".join(each["text"] for each in content if each["type"] == "text")
    finish = None if error else _FINISH.get(message["stop_reason"], "tool_calls" if calls else "stop")
    return Said(text, "", "\n\n".join(thoughts), calls, finish, error)


def sound_message(message: Json) -> Json:
    """A plain answer that the official client can read."""
    assert faults(_schema(WireMessage), [_with_listed_reason(message)]) == []
    return message


def _with_listed_reason(said: Json) -> Json:
    """The same with a reason that the types list; a new one is the server's own word, which no client refuses."""
    is_new = "stop_reason" in said and said["stop_reason"] not in (*_FINISH, "pause_turn", None)
    return {**said, "stop_reason": "end_turn"} if is_new else said


def _text(input: Any) -> str:
    return input if isinstance(input, str) else json.dumps(input)


@lru_cache
def _schema(type: Any) -> Draft202012Validator:
    return Draft202012Validator(TypeAdapter(type).json_schema())


def _read(data: bytes) -> tuple[list[Json], list[str]]:
    events: list[Json] = []
    comments: list[str] = []
    for line in data.decode().split("\n"):
        if line.startswith("data: "):
            events.append(_sound(strict_json(line[6:])))
        elif line.startswith(": "):
            comments.append(line[2:])
        else:
            assert line == "" or line.startswith("event: "), line
    names = [line[7:] for line in data.decode().split("\n") if line.startswith("event: ")]
    found = messages_faults(zip(names, map(_listed, events), strict=True))
    # What a server of the same dialect says in place of JSON goes on as it came.
    assert [fault for fault in found if not fault.startswith("calls.json: ")] == []
    return events, comments


def _listed(event: Json) -> Json:
    return {**event, "delta": _with_listed_reason(event["delta"])} if "delta" in event else event


def _sound(event: Json) -> Json:
    if event["type"] == "error":
        assert faults(_schema(ErrorResponse), [{"request_id": None, **event}]) == []
    elif event["type"] != "ping":
        assert faults(_schema(RawMessageStreamEvent), [_listed(event)]) == []
    return event


def _folded(events: list[Json]) -> Json:
    """What the events add up to. That they are in order is known."""
    if not events:
        return {}
    first, *rest = events
    message: Json = {**first["message"], "content": []}
    for event in rest:
        match event["type"]:
            case "content_block_start":
                message["content"].append(_opened(event["content_block"]))
            case "content_block_delta":
                _grow(message["content"][-1], event["delta"])
            case "message_delta":
                message |= event["delta"]
                message["usage"] = {**message["usage"], **event["usage"]}
            case _:
                pass
    return message


def _opened(block: Json) -> Json:
    """The block; an input that is yet to come is the text of its pieces."""
    return {**block, "input": ""} if block.get("input") == {} else dict(block)


def _grow(block: Json, delta: Json) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "input_json_delta":
            block["input"] += delta["partial_json"]
        case _:
            block["signature"] = delta["signature"]
