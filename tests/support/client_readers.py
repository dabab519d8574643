"""What a client of each dialect holds at the end of a turn, read strictly: framing and order are judged on the way.

`hold` gives the turn as the dialect's own client would keep it (a chat message, a response object, a message with
blocks) and, as `seen`, in no dialect's words; `hold_socket` does so for the messages of a WebSocket. `shape_faults`
holds all that came against the published types.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from tests.support.checked import chat_faults, gemini_faults, messages_faults, responses_faults
from tests.support.fold import fold_chat
from tests.support.google_shapes import answer_faults
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
    "gemini": "/v1beta/models",
}
"""Where a body goes that says everything; clients of Gemini say the model and the way in the path (`address`)."""


def address(dialect: Name, body: Json) -> tuple[str, Json]:
    """Where a client of this dialect sends a request, and what it sends."""
    if dialect != "gemini":
        return PATHS[dialect], body
    method = "streamGenerateContent?alt=sse" if body.get("stream") else "generateContent"
    rest = {name: value for name, value in body.items() if name not in ("model", "stream")}
    return f"{PATHS[dialect]}/{quote(str(body.get('model')))}:{method}", rest


CONTENT_TYPES = {True: "text/event-stream; charset=utf-8", False: "application/json"}


class Telemetry(msgspec.Struct, frozen=True):
    """The figures of a turn: the last comment of a stream, headers of a plain answer, a field over WebSocket."""

    tool_call_count: int
    tool_call_truncated: bool
    stop_after_tools_mode: str = "burst"
    notes: list[dict[str, str]] = []


class Held(msgspec.Struct, frozen=True):
    """A turn in a client's hand: in the dialect's own form, and in nobody's."""

    own: Json
    seen: Seen
    error: Json | None
    """The error inside the stream, if there was one."""
    came: list[Json]
    """All that came: the data of a stream's events, or the one object of a plain answer."""
    telemetry: Telemetry | None = None
    mode: str = ""
    """The output mode, if a header tells it."""


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

    @property
    def code(self) -> str:
        """The code of the error, if the dialect has one."""
        error = self.body["error"]
        reasons = [detail["reason"].lower() for detail in error.get("details", ()) if "reason" in detail]
        return next(iter(reasons), "") if "status" in error else error.get("code") or ""


def hold(response: httpx.Response, dialect: Name, *, stream: bool, extended: bool = False) -> Held:
    """The turn in this answer. Raises `Refused` if there is none. `extended` is about streams of Responses."""
    if response.status_code != 200:
        raise Refused(response, dialect)
    assert response.headers["content-type"] == CONTENT_TYPES[stream]
    if dialect == "gemini" and stream:
        held, telemetry = _gemini_stream(response.read()), None  # its clients take no comments
    elif not stream:
        response.read()
        held, telemetry = PLAIN_READERS[dialect](response), _telemetry_in_headers(response.headers)
    else:
        read = read_stream(response.read())
        held = STREAM_READERS[dialect](read, response.request.content if dialect == "chat" else b"", extended)
        telemetry = next((_telemetry(each) for each in read.comments[-1:] if each.startswith("{")), None)
    mode = response.headers.get("x-proxy-output-mode", "")
    return msgspec.structs.replace(held, telemetry=telemetry, mode=mode)


def hold_socket(messages: list[Json]) -> Held:
    """The turn in the messages of a WebSocket, from the first event of a response to its last."""
    assert responses_faults([(None, data) for data in messages], done=None) == []
    held = _responses_events(messages)
    return msgspec.structs.replace(held, telemetry=msgspec.convert(held.own["toolwire"], Telemetry))


def _telemetry(text: str) -> Telemetry:
    return msgspec.json.decode(text, type=Telemetry)


def _telemetry_in_headers(headers: httpx.Headers) -> Telemetry | None:
    if "x-codex-tool-call-count" not in headers:
        return None
    return Telemetry(
        int(headers["x-codex-tool-call-count"]),
        {"true": True, "false": False}[headers["x-codex-tool-call-truncated"]],
        headers["x-codex-stop-after-tools-mode"],
        json.loads(headers.get("x-toolwire-notes", "[]")),
    )


# Framing


class Stream(msgspec.Struct, frozen=True):
    """The events of a stream in order: the name, None for an event without one, and the data."""

    frames: list[tuple[str | None, Json]]
    comments: list[str]
    done: bool
    """Whether `[DONE]` came last."""


def read_stream(body: bytes) -> Stream:
    """Everything in the bytes of a stream: LF, at most one `event` line, one `data` line and a blank line an event."""
    *lines, rest = body.decode().split("\n")
    assert rest == "", f"the stream ends in mid-line: {rest!r}"
    stream, done, block = Stream([], [], done=False), False, list[str]()
    for line in lines:
        assert not done, f"{line!r} comes after [DONE]"
        if line.startswith(": "):
            assert not block, f"a comment inside an event: {line!r}"
            stream.comments.append(line[2:])
        elif line:
            block.append(line)
        elif block == ["data: [DONE]"]:
            done, block = True, []
        else:
            *named, data = block
            assert data.startswith("data: "), block
            assert not named or (len(named) == 1 and named[0].startswith("event: ")), block
            stream.frames.append((named[0][7:] if named else None, json.loads(data[6:])))
            block = []
    assert not block, f"the stream ends in mid-event: {block}"
    return msgspec.structs.replace(stream, done=done)


def named_frames(response: httpx.Response) -> list[tuple[str | None, Json]]:
    """The events of a stream."""
    return read_stream(response.read()).frames


# Chat


def _chat_stream(stream: Stream, request: bytes, extended: bool) -> Held:
    assert not any(name for name, _ in stream.frames)
    came = [data for _, data in stream.frames]
    frames: list[tuple[str, Any]] = [("data", data) for data in (*came, *(["[DONE]"] if stream.done else []))]
    assert chat_faults(frames, usage=b'"include_usage"' in request) == []
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


def _responses_stream(stream: Stream, request: bytes, extended: bool) -> Held:
    assert responses_faults(stream.frames, done=stream.done, extended=extended) == []
    return _responses_events([data for _, data in stream.frames])


def _responses_events(came: list[Json]) -> Held:
    error = next((data for data in came if data["type"] == "error"), None)
    return _responses(came[-1]["response"], error, came)


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
    if response["status"] == "incomplete" and response["incomplete_details"] is None:  # in an extended stream
        assert response["required_action"]
        return "calls"
    if response["status"] == "incomplete":
        reasons: dict[str, Finish] = {"max_output_tokens": "length", "content_filter": "filter"}
        return reasons[response["incomplete_details"]["reason"]]
    assert response["status"] == "completed"
    assert ("required_action" in response) == (bool(calls) and response["store"])
    assert response["completed_at"] >= response["created_at"]
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


def _messages_stream(stream: Stream, request: bytes, extended: bool) -> Held:
    assert not stream.done
    assert messages_faults(stream.frames) == []
    came = [data for _, data in stream.frames]
    events = [data for data in came if data["type"] != "ping"]
    error = events[-1]["error"] if events[-1]["type"] == "error" else None
    return _messages(_folded(events), error, came)


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


# Gemini


def _gemini_stream(body: bytes) -> Held:
    """The chunks, framed as the strictest client wants them: a line of data, a blank line, and nothing else."""
    *lines, rest = body.split(b"\r\n")
    assert rest == b"", f"the stream ends in mid-line: {rest!r}"
    chunks: list[bytes] = []
    for line, following in zip(lines, [*lines[1:], b""], strict=True):
        assert not line or (line.startswith(b"data: {") and b"\n" not in line and not following), line
        chunks += [line[6:]] if line else []
    held = _gemini(chunks)
    assert gemini_faults(held.came) == []
    return held


def _gemini_plain(response: httpx.Response) -> Held:
    return _gemini([response.content])


class _GeminiCall(msgspec.Struct, rename="camel"):
    name: str
    id: str
    args: msgspec.Raw


class _GeminiPart(msgspec.Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    thought_signature: str = ""
    function_call: _GeminiCall | None = None


class _GeminiContent(msgspec.Struct):
    parts: list[_GeminiPart]


class _GeminiCandidate(msgspec.Struct, rename="camel"):
    content: _GeminiContent
    finish_reason: str = ""


class _GeminiChunk(msgspec.Struct, rename="camel"):
    candidates: list[_GeminiCandidate] = []
    error: Json | None = None


def _gemini(chunks: list[bytes]) -> Held:
    came: list[Json] = [json.loads(chunk) for chunk in chunks]
    read = [msgspec.json.decode(chunk, type=_GeminiChunk) for chunk in chunks]
    candidates = [candidate for chunk in read for candidate in chunk.candidates]
    parts = [part for candidate in candidates for part in candidate.content.parts]
    error = read[-1].error
    reasons = [candidate.finish_reason for candidate in candidates]
    assert [bool(reason) for reason in reasons] == [False] * (len(reasons) - (error is None)) + [True] * (error is None)
    calls = [part.function_call for part in parts if part.function_call is not None]
    contents = [chunk["candidates"][0]["content"] for chunk in came if "candidates" in chunk]
    usage = came[-1].get("usageMetadata")
    seen = Seen(
        text="".join(part.text for part in parts if not part.thought),
        reasoning="\n\n".join(_thoughts(parts)),
        signed=sum(_signatures_on(part) for part in parts),
        calls=tuple(Call(call.id, call.name, bytes(call.args).decode()) for call in calls),
        finish="failed" if error else "calls" if calls and reasons[-1] == "STOP" else _GEMINI_FINISH[reasons[-1]],
        tokens=_gemini_tokens(usage) if usage else None,
    )
    return Held({"contents": contents}, seen, error, came)


def _thoughts(parts: list[_GeminiPart]) -> list[str]:
    """The thoughts: parts that follow each other are one."""
    found, is_open = list[str](), False
    for part in parts:
        if part.thought and part.text:
            found = [*found[:-1], found[-1] + part.text] if is_open else [*found, part.text]
        is_open = part.thought
    return found


def _signatures_on(part: _GeminiPart) -> int:
    """How many thoughts a part carries signatures of. That of the service is on a call, or is one of a thought."""
    data = b64decode(part.thought_signature, validate=True)
    if data.startswith(PACKED):
        return len(json.loads(data.removeprefix(PACKED))[2])
    return int(bool(data) and part.function_call is None)


PACKED = b"toolwire.signature.1."
_GEMINI_FINISH: dict[str, Finish] = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "filter"}


def _gemini_tokens(usage: Json) -> Tokens:
    thoughts = usage.get("thoughtsTokenCount", 0)
    output = usage.get("candidatesTokenCount", 0) + thoughts
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + output
    return Tokens(usage["promptTokenCount"], output, usage.get("cachedContentTokenCount", 0), 0, thoughts)


# Shapes


def shape_faults(held: Held, dialect: Name, *, stream: bool) -> list[str]:
    """What the published types say against all that came."""
    return event_faults(held.came, dialect) if stream else PLAIN_SHAPES[dialect](held.came[0])


def event_faults(events: Iterable[Json], dialect: Name = "responses", *, extended: bool = False) -> list[str]:
    """What the published types say against events. Of deltas with the same fields a few are looked at."""
    some: dict[str, list[Json]] = {}
    for data in events:
        some.setdefault(_kind(data), []).append(data)
    errors = _extended_errors if extended else EVENT_SHAPES[dialect]
    return [fault for alike in some.values() for data in alike[:4] for fault in errors(data)]


def _kind(data: Json) -> str:
    """What an event is alike to: events of its type and form if it is a delta, else none."""
    is_delta = "choices" in data or data.get("type", "").endswith("delta")
    return f"{data.get('type')} {_form(data)}" if is_delta else str(data)


def _form(value: Any) -> str:
    """The fields of a value and the types of what is in them."""
    if isinstance(value, dict):
        fields: Json = value
        return str([(name, fields["type"] if name == "type" else _form(fields[name])) for name in sorted(fields)])
    if isinstance(value, list):
        return str([_form(each) for each in value])
    return type(value).__name__


def _extended_errors(data: Json) -> list[str]:
    """What is wrong with an event of a stream that was asked for as extended."""
    match data:
        case {"type": "ping"}:
            return [] if set(data) == {"type", "sequence_number"} else [f"a ping has more than its number: {data}"]
        case {"type": "response.required_action", "response": response, "required_action": action}:
            return [*response_errors(response), *([] if response["required_action"] == action else ["two actions"])]
        case _:
            # A failure keeps the code of the server, of which the SDK lists only some.
            return [fault for fault in event_errors(data) if "$.response.error.code" not in fault]


def _chunk_errors(chunk: Json) -> list[str]:
    return error_errors("chat", chunk) if "error" in chunk else chunk_errors([chunk])


EVENT_SHAPES: dict[Name, Callable[[Json], list[str]]] = {
    "chat": _chunk_errors,
    "responses": event_errors,
    "messages": message_event_errors,
    "gemini": answer_faults,
}
PLAIN_SHAPES: dict[Name, Callable[[Json], list[str]]] = {
    "chat": completion_errors,
    "responses": response_errors,
    "messages": message_errors,
    "gemini": answer_faults,
}

STREAM_READERS: dict[Name, Callable[[Stream, bytes, bool], Held]] = {
    "chat": _chat_stream,
    "responses": _responses_stream,
    "messages": _messages_stream,
}
PLAIN_READERS: dict[Name, Callable[[httpx.Response], Held]] = {
    "chat": _chat_plain,
    "responses": _responses_plain,
    "messages": _messages_plain,
    "gemini": _gemini_plain,
}
