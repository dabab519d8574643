"""What a client of each dialect holds at the end of a turn, read strictly: the order of events is judged on the way.

`hold` gives the turn as the dialect's own client would keep it (a chat message, a response object, a message with
blocks) and, as `seen`, in no dialect's words. `shape_faults` holds all that came against the published types.
"""

import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from tests.support.checked import chat_faults, messages_faults, responses_faults
from tests.support.fold import fold_chat
from tests.support.gateway import read_events, read_sse
from tests.support.schemas import event_errors, response_errors
from tests.support.scripts import Call, Finish, Name, Seen, Tokens
from tests.support.shapes import (
    chunk_errors,
    completion_errors,
    error_errors,
    message_errors,
    message_event_errors,
)
from toolwire.check.turns.messages import DELTAS

Json = dict[str, Any]

CUT = ("max_tokens", "refusal")
"""How a message ends whose last call may be half."""

PATHS: dict[Name, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


class Held(msgspec.Struct, frozen=True):
    """A turn in a client's hand: in the dialect's own form, and in nobody's."""

    own: Json
    seen: Seen
    error: Json | None
    """The error inside the stream, if there was one."""
    came: list[Json]
    """All that came: the data of a stream's events, or the one object of a plain answer."""


class Refused(Exception):
    """The answer is an error, with a status of its own."""

    def __init__(self, response: httpx.Response, dialect: Name) -> None:
        super().__init__(response.text)
        self.status = response.status_code
        self.headers = response.headers
        self.body: Json = response.json()
        assert error_errors(dialect, self.body) == []

    @property
    def message(self) -> str:
        return self.body["error"]["message"]


def hold(response: httpx.Response, dialect: Name, *, stream: bool) -> Held:
    """The turn in this answer. Raises `Refused` if there is none."""
    if response.status_code != 200:
        raise Refused(response, dialect)
    kind = response.headers["content-type"].partition(";")[0]
    assert kind == ("text/event-stream" if stream else "application/json")
    return READERS[dialect, stream](response)


# Chat


def _chat_stream(response: httpx.Response) -> Held:
    frames = list(read_sse(response))
    asked = b'"include_usage"' in response.request.content
    assert chat_faults(frames, usage=asked) == []
    came = [value for kind, value in frames if kind == "data" and value != "[DONE]"]
    folded = fold_chat(frames)
    return _chat(folded["message"], folded["finish"], folded["usage"], folded["error"], came)


def _chat_plain(response: httpx.Response) -> Held:
    completion = response.json()
    [choice] = completion["choices"]
    return _chat(choice["message"], choice["finish_reason"], completion.get("usage"), None, [completion])


def _chat(message: Json, finish: str | None, usage: Json | None, error: Json | None, came: list[Json]) -> Held:
    refusal = message.get("refusal") or ""
    seen = Seen(
        text=message["content"] or "",
        refusal=refusal,
        reasoning=message.get("reasoning_content") or "",
        calls=tuple(_chat_call(call, finish) for call in message.get("tool_calls") or ()),
        finish="refused" if refusal and finish == "stop" else _CHAT_FINISH[finish],
        tokens=_chat_tokens(usage) if usage else None,
    )
    return Held(message, seen, error, came)


_CHAT_FINISH: dict[str | None, Finish] = {
    "stop": "stop",
    "tool_calls": "calls",
    "length": "length",
    "content_filter": "filter",
    None: "failed",
}


def _chat_call(call: Json, finish: str | None) -> Call:
    if call["type"] == "custom":
        return Call(call["id"], call["custom"]["name"], call["custom"]["input"], "custom", whole=finish == "tool_calls")
    function = call["function"]
    whole = finish == "tool_calls" or is_object(function["arguments"])
    return Call(call["id"], function["name"], function["arguments"], whole=whole)


def _chat_tokens(usage: Json) -> Tokens:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    given, made = usage["prompt_tokens_details"], usage["completion_tokens_details"]
    return Tokens(
        usage["prompt_tokens"],
        usage["completion_tokens"],
        given.get("cached_tokens") or 0,
        given.get("cache_write_tokens") or 0,
        made.get("reasoning_tokens") or 0,
    )


# Responses


def _responses_stream(response: httpx.Response) -> Held:
    events = read_events(response)
    assert responses_faults(events.frames, done=events.done) == []
    came = [data for _, data in events.frames]
    error = next((data for data in came if data["type"] == "error"), None)
    return _responses(events.response, error, came)


def _responses_plain(response: httpx.Response) -> Held:
    return _responses(response.json(), None, [response.json()])


def _responses(response: Json, error: Json | None, came: list[Json]) -> Held:
    items = response["output"]
    thoughts = [item for item in items if item["type"] == "reasoning"]
    calls = tuple(_responses_call(item) for item in items if item["type"] in ("function_call", "custom_tool_call"))
    refusal = _in_messages(items, "refusal")
    seen = Seen(
        text=_in_messages(items, "text"),
        refusal=refusal,
        reasoning="\n\n".join(part["text"] for item in thoughts for part in (*item["summary"], *item.get("content", ()))),
        signed=sum(1 for item in thoughts if item.get("encrypted_content")),
        calls=calls,
        finish=_responses_finish(response, calls, refusal),
        tokens=_responses_tokens(response["usage"]) if response["usage"] else None,
    )  # fmt: skip
    return Held(response, seen, error, came)


def _in_messages(items: list[Json], field: str) -> str:
    return "".join(part.get(field, "") for item in items if item["type"] == "message" for part in item["content"])


def _responses_call(item: Json) -> Call:
    kind = "custom" if item["type"] == "custom_tool_call" else "function"
    text = item["input"] if kind == "custom" else item["arguments"]
    whole = item["status"] == "completed"
    return Call(item["call_id"], item["name"], text, kind, item.get("namespace") or "", whole)


def _responses_finish(response: Json, calls: tuple[Call, ...], refusal: str) -> Finish:
    if response["status"] == "failed":
        return "failed"
    if response["status"] == "incomplete":
        reasons: dict[str, Finish] = {"max_output_tokens": "length", "content_filter": "filter"}
        return reasons[response["incomplete_details"]["reason"]]
    assert response["status"] == "completed"
    return "calls" if calls else "refused" if refusal else "stop"


def _responses_tokens(usage: Json) -> Tokens:
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    given, made = usage["input_tokens_details"], usage["output_tokens_details"]
    return Tokens(
        usage["input_tokens"],
        usage["output_tokens"],
        given["cached_tokens"],
        given.get("cache_write_tokens") or 0,
        made["reasoning_tokens"],
    )


# Messages


def named_frames(response: httpx.Response) -> list[tuple[str | None, Json]]:
    """The events of a stream: an `event` line and a `data` line each."""
    frames: list[tuple[str | None, Json]] = []
    name = None
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            frames.append((name, json.loads(line[6:])))
            name = None
        else:
            assert not line or line.startswith(": "), line
    return frames


def _messages_stream(response: httpx.Response) -> Held:
    frames = named_frames(response)
    assert messages_faults(frames) == []
    events = [data for _, data in frames if data["type"] != "ping"]
    error = events[-1]["error"] if events[-1]["type"] == "error" else None
    return _messages(_folded(events), error, [data for _, data in frames])


def _folded(events: list[Json]) -> Json:
    """The message, as the SDK folds it; the input of a tool stays text."""
    message: Json = dict(events[0]["message"])
    blocks: list[Json] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"], "input": ""} if "input" in event["content_block"] else {**event["content_block"]})  # fmt: skip
            case "content_block_delta":
                delta = event["delta"]
                field = {"partial_json": "input"}.get(_field(delta), _field(delta))
                grown = "" if field == "signature" else blocks[-1][field]
                blocks[-1][field] = grown + delta[_field(delta)]
            case "message_delta":
                message |= event["delta"]
                message["usage"] = {**message["usage"], **event["usage"]}
            case _:
                pass
    return {**message, "content": blocks}


def _field(delta: Json) -> str:
    return DELTAS[delta["type"]][1]


class _Input(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")


class _Content(msgspec.Struct):
    content: list[_Input]


def _messages_plain(response: httpx.Response) -> Held:
    message = response.json()
    written = msgspec.json.decode(response.content, type=_Content).content
    blocks = [
        {**block, "input": bytes(raw.input).decode()} if block["type"] == "tool_use" else block
        for block, raw in zip(message["content"], written, strict=True)
    ]
    return _messages({**message, "content": blocks}, None, [message])


def _messages(message: Json, error: Json | None, came: list[Json]) -> Held:
    blocks, stop = message["content"], message["stop_reason"]
    thoughts = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
    shown = [block["thinking"] for block in thoughts if block["type"] == "thinking"]
    seen = Seen(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        reasoning="\n\n".join(shown),
        signed=sum(1 for block in thoughts if block.get("signature") or block.get("data")),
        calls=tuple(
            _messages_call(block, stop, last=block is blocks[-1]) for block in blocks if block["type"] == "tool_use"
        ),
        finish=_MESSAGES_FINISH[stop],
        tokens=_messages_tokens(message["usage"]) if error is None else None,
    )
    return Held({**message, "content": [_with_input(block) for block in blocks]}, seen, error, came)


_MESSAGES_FINISH: dict[str | None, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "refusal": "refused",
    None: "failed",
}


def _messages_call(block: Json, stop: str | None, *, last: bool) -> Call:
    """A call; the last of a message that was cut is half, if what there is of it is nothing, no object or wrapped."""
    text = block["input"] or "{}"
    cut = last and stop in (*CUT, None)
    half = _half(text) if cut else None
    return Call(block["id"], block["name"], text if half is None else half, whole=half is None)


def _half(text: str) -> str | None:
    """What there is of half a call; None if it is a whole one."""
    if not is_object(text):
        return text
    read: Json = json.loads(text)
    return read.get("__arguments") if read else ""


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _with_input(block: Json) -> Json:
    """The block as a client sends it back: what cannot be read counts as nothing, as in the SDK."""
    if block["type"] != "tool_use":
        return block
    text = block["input"] or "{}"
    return {**block, "input": json.loads(text) if is_object(text) else {}}


def _messages_tokens(usage: Json) -> Tokens:
    cached, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    details: Json = usage.get("output_tokens_details") or {}
    return Tokens(
        usage["input_tokens"] + cached + written,
        usage["output_tokens"],
        cached,
        written,
        details.get("thinking_tokens") or 0,
    )


# Shapes


def shape_faults(held: Held, dialect: Name, *, stream: bool) -> list[str]:
    """What the published types say against all that came. Deltas are alike, so a few of each kind are looked at."""
    if not stream:
        return PLAIN_SHAPES[dialect](held.came[0])
    some: dict[str, list[Json]] = {}
    for data in held.came:
        some.setdefault(_kind(data), []).append(data)
    return [fault for alike in some.values() for data in alike[:4] for fault in EVENT_SHAPES[dialect](data)]


def _kind(data: Json) -> str:
    """What an event is alike to: its type, or the keys of its delta."""
    if "choices" in data:
        return " ".join(sorted(key for choice in data["choices"] for key in choice["delta"]))
    if not data.get("type", "").endswith("delta"):
        return str(data)
    delta: Any = data["delta"]
    return data["type"] if isinstance(delta, str) else f"{data['type']} {delta.get('type')}"


def _chunk_errors(chunk: Json) -> list[str]:
    return error_errors("chat", chunk) if "error" in chunk else chunk_errors([chunk])


EVENT_SHAPES: dict[Name, Callable[[Json], list[str]]] = {
    "chat": _chunk_errors,
    "responses": event_errors,
    "messages": message_event_errors,
}
PLAIN_SHAPES: dict[Name, Callable[[Json], list[str]]] = {
    "chat": completion_errors,
    "responses": response_errors,
    "messages": message_errors,
}

READERS: dict[tuple[Name, bool], Callable[[httpx.Response], Held]] = {
    ("chat", True): _chat_stream,
    ("chat", False): _chat_plain,
    ("responses", True): _responses_stream,
    ("responses", False): _responses_plain,
    ("messages", True): _messages_stream,
    ("messages", False): _messages_plain,
}
