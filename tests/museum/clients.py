"""What clients make of what we send: chat and Responses, both read strictly, both brought to the same words."""

import json
from functools import lru_cache
from typing import Any

import msgspec

from tests.support.checked import responses_faults
from tests.support.fold import fold_chat
from tests.support.schemas import event_errors, response_errors

Json = dict[str, Any]

EXTENDED = ("ping", "response.required_action")
"""Events that no schema knows; a client gets them only if it asks."""


class Said(msgspec.Struct, frozen=True):
    """What a turn said, in no dialect's words. What was left out, null or empty is one."""

    text: str
    refusal: str
    reasoning: str
    calls: tuple[tuple[str, str, str], ...]
    """Id, name and arguments of each."""
    finish: str | None
    error: Json | None


# Chat


def read_frames(data: bytes) -> list[tuple[str, Any]]:
    """A chat stream, read strictly: LF, one line an event, one blank line behind it, strict JSON."""
    frames: list[tuple[str, Any]] = []
    lines = data.decode().split("\n")
    for place, line in enumerate(lines):
        if line.startswith("data: "):
            assert lines[place + 1] == ""
            frames.append(("data", line[6:] if line == "data: [DONE]" else strict_json(line[6:])))
        elif line.startswith(": "):
            assert lines[place + 1] != "", "some readers take that for an empty event"
            frames.append(("comment", line[2:]))
        else:
            assert line == "", line
    return frames


def strict_json(words: str) -> Any:
    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(words, parse_constant=refuse)


def said_in_chat(data: bytes) -> Said:
    folded = fold_chat(read_frames(data))
    return said_by_message(folded["message"], folded["finish"], folded["error"])


def said_by_message(message: Json, finish: str | None, error: Json | None = None) -> Said:
    calls = [(each["id"], *_named(each)) for each in message.get("tool_calls", ())]
    if "function_call" in message:
        calls = [("", message["function_call"]["name"], message["function_call"]["arguments"])]
    texts = (message.get(key) or "" for key in ("content", "refusal", "reasoning_content"))
    return Said(*texts, tuple(calls), "tool_calls" if finish == "function_call" else finish, error)


def _named(part: Json) -> tuple[str, str]:
    inner = part[part["type"]]
    return inner["name"], inner["arguments" if part["type"] == "function" else "input"]


# Responses


class Received(msgspec.Struct, frozen=True):
    """A Responses stream that broke no rule."""

    events: tuple[Json, ...]
    comments: tuple[str, ...] = ()

    @property
    def response(self) -> Json:
        """The last word."""
        return self.events[-1]["response"]

    @property
    def output(self) -> list[Json]:
        return self.response["output"]

    @property
    def said(self) -> Said:
        error = next((event["error"] for event in self.events if event["type"] == "error"), None)
        return said_by_response(self.response, error)

    @property
    def types(self) -> list[str]:
        """The events by type, without the prefix that nearly all of them have."""
        return [event["type"].removeprefix("response.") for event in self.events]

    def of(self, type: str) -> list[Json]:
        return [event for event in self.events if event["type"] == f"response.{type}"]


def received(data: bytes, *, extended: bool = False) -> Received:
    """A whole stream, read strictly and held against the rules of the protocol and every published schema."""
    frames, comments = _blocks(data)
    assert frames.pop() == (None, "[DONE]")
    return _judged(frames, comments, done=True, extended=extended)


def received_messages(messages: list[str]) -> Received:
    """The same for the messages of a socket."""
    return _judged([(None, strict_json(message)) for message in messages], [], done=None, extended=False)


def _judged(
    frames: list[tuple[str | None, Any]], comments: list[str], *, done: bool | None, extended: bool
) -> Received:
    assert responses_faults(frames, done=done, extended=extended) == []
    events = tuple(data for _, data in frames)
    assert [fault for event in events for fault in faults(event) if event["type"] not in EXTENDED] == []
    return Received(events, tuple(comments))


# Codes of a failed response that the service sends and Codex looks for; the published lists of codes lack them.
_UNLISTED = ("context_length_exceeded", "cyber_policy", "insufficient_quota", "server_is_overloaded", "slow_down")


def faults(event: Json) -> tuple[str, ...]:
    """What the published schemas find wrong with an event. Its number is checked elsewhere."""
    if event["type"] == "response.failed":
        event = {**event, "response": _with_listed_code(event["response"])}
    return _faults(json.dumps({**event, "sequence_number": 0}))


def _with_listed_code(response: Json) -> Json:
    error = response["error"]
    return {**response, "error": {**error, "code": "server_error"}} if error["code"] in _UNLISTED else response


@lru_cache(maxsize=4096)
def _faults(event: str) -> tuple[str, ...]:
    return tuple(event_errors(json.loads(event)))


def _blocks(data: bytes) -> tuple[list[tuple[str | None, Any]], list[str]]:
    """Events with their names, and comments: LF, one line of name, one of data, one blank line, strict JSON."""
    frames: list[tuple[str | None, Any]] = []
    comments: list[str] = []
    name = None
    lines = data.decode().split("\n")
    for place, line in enumerate(lines):
        if line.startswith("event: "):
            assert lines[place + 1].startswith("data: ")
            name = line[7:]
        elif line.startswith("data: "):
            assert lines[place + 1] == ""
            frames.append((name, line[6:] if line == "data: [DONE]" else strict_json(line[6:])))
            name = None
        elif line.startswith(": "):
            assert lines[place + 1] != "", "some readers take that for an empty event"
            comments.append(line[2:])
        else:
            assert line == "", line
    return frames, comments


_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


def sound_response(response: Json) -> Json:
    """A plain answer that every schema allows."""
    assert response_errors(_with_listed_code(response) if response["error"] else response) == []
    return response


def said_by_response(response: Json, error: Json | None = None) -> Said:
    """What a response says, once it agrees with itself: status, calls and what it requires."""
    output, status = response["output"], response["status"]
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    thoughts = [
        part["text"]
        for item in output
        if item["type"] == "reasoning"
        for part in (*item["summary"], *item.get("content", ()))
    ]
    called = [item for item in output if item["type"] in ("function_call", "custom_tool_call")]
    calls = tuple((each["call_id"], each["name"], each.get("arguments", each.get("input"))) for each in called)
    waiting = response.get("required_action", {}).get("submit_tool_outputs", {}).get("tool_calls", [])
    complete = [each["call_id"] for each in called if each["status"] == "completed"]
    kept = status == "completed" and response["store"]
    assert [each["id"] for each in waiting] == (complete if kept else [])
    assert (status == "failed") == (response["error"] is not None)
    finish = {"completed": "tool_calls" if called else "stop", "failed": None}.get(status)
    if status == "incomplete":
        finish = _REASONS[response["incomplete_details"]["reason"]]
    else:
        assert response["incomplete_details"] is None
    return Said(
        "".join(part.get("text", "") for part in parts),
        "".join(part.get("refusal", "") for part in parts),
        "\n\n".join(thoughts),
        calls,
        finish,
        error,
    )
