r"""Turn events as Messages events, a finished turn as one message, a failure as an error object.

    event: content_block_delta
    data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}

One block is open at a time, and blocks are counted as they open.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from toolwire.core import sse
from toolwire.core.collect import Call, Reasoning, Refusal, Text, Turn
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import Tally
from toolwire.core.request import Request
from toolwire.core.seals import Seal, pack
from toolwire.core.text import as_object, wrapped
from toolwire.core.unwrap import wrap
from toolwire.dialects.messages.history import ISSUER

_json = msgspec.json.Encoder().encode

_STOP: dict[Reason, str] = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class StreamEncoder:
    """A stage from turn events to bytes of one stream of Messages events."""

    def __init__(self, request: Request, id: str, created: int, tally: Tally) -> None:
        self._id = id
        self._model = request.model
        self._tally = tally
        self._usage: Usage | None = None
        self._started = False
        self._index = -1
        self._open = ""  # the type of the open block
        self._refused = False
        self._thought: list[str] = []
        self._part: tuple[str, int] | None = None
        self._call: CallStarted | None = None
        self._head = b""
        self._tail = b"}}\n\n"

    def feed(self, event: Event) -> Sequence[bytes]:
        kind = type(event)
        if kind is CallArgs and self._head:
            return (self._head + _json(event.text) + self._tail,)  # pyright: ignore
        if kind is TextDelta and self._open == "text":
            return (self._head + _json(event.text) + self._tail,)  # pyright: ignore
        handler = self._HANDLERS.get(kind)
        return handler(self, event) if handler is not None else ()

    def end(self) -> Sequence[bytes]:
        return ()

    def keepalive(self, silent: float) -> Sequence[bytes]:
        """A sign of life after this many seconds of silence."""
        return [*self._begin(), b'event: ping\ndata: {"type":"ping"}\n\n']

    def _start(self, event: TurnStarted) -> Sequence[bytes]:
        return self._begin()

    def _begin(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        message = {**_message(self._id, self._model), "usage": usage_object(self._usage or Usage())}
        return [_event("message_start", {"message": message})]

    def _say(self, event: TextDelta | RefusalDelta) -> Sequence[bytes]:
        self._refused = self._refused or isinstance(event, RefusalDelta)
        out: list[bytes] = []
        if self._open != "text":
            out += self._open_block({"type": "text", "text": ""}, b'"text_delta","text":')
        return [*out, self._head + _json(event.text) + self._tail]

    def _think(self, event: ReasoningDelta) -> Sequence[bytes]:
        out: list[bytes] = []
        text = event.text
        if self._open != "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            out += self._open_block(block, b'"thinking_delta","thinking":')
            self._thought = []
            self._part = (event.kind, event.part)
        elif (event.kind, event.part) != self._part:
            self._part = (event.kind, event.part)
            text = "\n\n" + text
        self._thought.append(text)
        return [*out, self._head + _json(text) + self._tail]

    def _end_thought(self, event: ReasoningEnded) -> Sequence[bytes]:
        text = "".join(self._thought) if self._open == "thinking" else ""
        block = thought_block(text, event)
        if self._open != "thinking":
            if block is None:
                return ()
            return [*self._open_block(block, b""), *self._close()]
        out: list[bytes] = []
        if block is not None and block.get("signature"):
            delta = {"type": "signature_delta", "signature": block["signature"]}
            out.append(_event("content_block_delta", {"index": self._index, "delta": delta}))
        return [*out, *self._close()]

    def _call_starts(self, event: CallStarted) -> Sequence[bytes]:
        block: dict[str, Any] = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
        out = self._open_block(block, b'"input_json_delta","partial_json":')
        if event.kind == "custom":
            self._call, self._head = event, b""
            self._pieces: list[str] = []
        return out

    def _call_grows(self, event: CallArgs) -> Sequence[bytes]:
        self._pieces.append(event.text)  # the input of a custom tool, wrapped when it is whole
        return ()

    def _call_ends(self, event: CallEnded) -> Sequence[bytes]:
        out: list[bytes] = []
        if self._call is not None:
            self._call = None
            delta = {"type": "input_json_delta", "partial_json": wrap("".join(self._pieces))}
            out.append(_event("content_block_delta", {"index": self._index, "delta": delta}))
        return [*out, *self._close()]

    def _count(self, event: Usage) -> Sequence[bytes]:
        self._usage = event
        return ()

    def _end_turn(self, event: TurnEnded) -> Sequence[bytes]:
        out = [*self._begin(), *self._close()]
        reason = "refusal" if self._refused and event.reason == "stop" else _STOP[event.reason]
        delta = {"stop_reason": reason, "stop_sequence": None}
        out.append(_event("message_delta", {"delta": delta, "usage": usage_object(self._usage or Usage())}))
        return [*out, sse.write_comment(self._tally.comment()), _event("message_stop", {})]

    def _fail_turn(self, event: TurnFailed) -> Sequence[bytes]:
        return [sse.write_comment(self._tally.comment()), sse.write_named("error", encode_error(event.failure))]

    def _open_block(self, block: dict[str, Any], delta: bytes) -> list[bytes]:
        out = [*self._begin(), *self._close()]
        self._index += 1
        self._open = block["type"]
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
            % (
                self._index,
                delta,
            )
        )
        return [*out, _event("content_block_start", {"index": self._index, "content_block": block})]

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        self._head = b""
        return [_event("content_block_stop", {"index": self._index})]

    _HANDLERS: ClassVar[dict[type[Event], Callable[[Any, Any], Sequence[bytes]]]] = {
        TurnStarted: _start,
        TextDelta: _say,
        RefusalDelta: _say,
        ReasoningDelta: _think,
        ReasoningEnded: _end_thought,
        CallStarted: _call_starts,
        CallArgs: _call_grows,
        CallEnded: _call_ends,
        Usage: _count,
        TurnEnded: _end_turn,
        TurnFailed: _fail_turn,
    }


def _event(type: str, fields: dict[str, Any]) -> bytes:
    return sse.write_named(type, _json({"type": type, **fields}))


def _message(id: str, model: str) -> dict[str, Any]:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def thought_block(text: str, end: ReasoningEnded) -> dict[str, Any] | None:
    """A thought as a block, sealed so that it can go back to whoever made it."""
    if not text and not end.seal:
        return None
    if end.seal and end.issuer != ISSUER:
        seal = pack(Seal(end.issuer, end.id, (text,) if text else (), end.seal, end.redacted))
    else:
        seal = end.seal
    if end.redacted or not text:
        return {"type": "redacted_thinking", "data": seal}
    return {"type": "thinking", "thinking": text, "signature": seal}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as Anthropic counts them: what came from the cache is not in the input."""
    return {
        "input_tokens": max(0, usage.input - usage.cached - usage.cache_write),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """The whole turn as one message."""
    content: list[dict[str, Any]] = []
    refused = False
    for item in turn.items:
        match item:
            case Text(text) | Refusal(text):
                refused = refused or isinstance(item, Refusal)
                if content and content[-1]["type"] == "text":
                    content[-1]["text"] += text
                else:
                    content.append({"type": "text", "text": text})
            case Reasoning():
                end = ReasoningEnded(item.id, item.seal, item.issuer, item.redacted)
                block = thought_block("\n\n".join(item.parts), end)
                if block is not None:
                    content.append(block)
            case Call():
                content.append({"type": "tool_use", "id": item.id, "name": item.name, "input": _input(item)})
            case _:
                pass
    reason = "refusal" if refused and turn.reason == "stop" else _STOP[turn.reason]
    message = {**_message(id, request.model), "content": content, "stop_reason": reason}
    return _json({**message, "usage": usage_object(turn.usage or Usage())})


def _input(call: Call) -> msgspec.Raw:
    if call.kind == "custom":
        return msgspec.Raw(wrap(call.arguments).encode())
    return as_object(call.arguments) or wrapped(call.arguments)


def encode_error(failure: Failure) -> bytes:
    """The dialect's error object."""
    default = "api_error" if failure.status >= 500 else "invalid_request_error"
    error = {"type": _TYPES.get(failure.status, default), "message": failure.message}
    return _json({"type": "error", "error": error})
