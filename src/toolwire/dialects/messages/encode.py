r"""Turn events as Messages events, a failure as an error object.

    event: content_block_delta
    data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}

One block is open at a time, and blocks are counted as they open.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import msgspec

from toolwire.core import sse
from toolwire.core.errors import Failure, InternalError
from toolwire.core.events import (
    SPOKEN_BLOCKS,
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    MessageEnded,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    Told,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import Tally
from toolwire.core.request import Request
from toolwire.core.text import as_object
from toolwire.core.unwrap import wrap
from toolwire.dialects.messages.forward import (
    Fields,
    Forward,
    block_type,
    fields_of,
    inner,
    passed,
    usage_of,
    without_nulls,
)
from toolwire.dialects.messages.message import (
    UNCOUNTED,
    UNCOUNTED_AT_THE_END,
    UNKNOWN,
    end_of,
    message_head,
    thought_block,
    usage_object,
)

_json = msgspec.json.Encoder().encode

_TEXT = b'"text_delta","text":'
THREADS = "thread_unsupported_request"
OTHER = "other"
"""Stands for the type of a block that is not ours."""

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
        self._thought: list[list[str]] = []  # the parts of the open thought, in pieces
        self._part: tuple[str, int] | None = None
        self._call: CallStarted | None = None  # whose arguments wait
        self._growing = b""
        self._waits = False
        self._head = b""
        self._tail = b"}}\n\n"
        self._forward = Forward()
        self._said: Fields = {}  # what the server said of the message, of the block to come, and of the end
        self._said_block: Fields = {}
        self._said_delta: Fields = {}
        self._counted: Fields = {}
        self._told: dict[str, Fields] = {}  # the server's latest events, which ours are laid over
        self._place = ""  # the block that the server is telling
        self._waiting: list[Told] = []  # what it said of a text that has not begun

    def feed(self, event: Event) -> Sequence[bytes]:
        kind = type(event)
        if kind is CallArgs and self._head:
            return (self._delta(cast("CallArgs", event)),)
        if kind is TextDelta and self._open == "text":
            return (self._delta(cast("TextDelta", event)),)
        handler = self._HANDLERS.get(kind)
        return handler(self, event) if handler is not None else ()

    def end(self) -> Sequence[bytes]:
        return ()

    def keepalive(self, silent: float) -> Sequence[bytes]:
        """A sign of life after this many seconds of silence."""
        return [*self._begin(), b'event: ping\ndata: {"type":"ping"}\n\n']

    def break_off(self) -> Sequence[bytes]:
        """The end of the stream when nothing else can be encoded."""
        return (sse.write_named("error", encode_error(InternalError().failure)),)

    def _start(self, event: TurnStarted) -> Sequence[bytes]:
        return self._begin()

    def _begin(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        usage = {**UNCOUNTED, **usage_object(self._usage or Usage()), **self._counted}
        message = {**UNKNOWN, **self._said, **message_head(self._id, self._model), "usage": usage}
        return [self._event("message_start", {"message": message})]

    def _event(self, type: str, fields: dict[str, Any]) -> bytes:
        """An event, over what the server's own says beside our words."""
        return sse.write_named(type, _json({**self._told.pop(type, {}), "type": type, **fields}))

    def _hear(self, event: Told) -> Sequence[bytes]:
        """Keep what an event says beyond our words, or pass it on if it is about something we have none for."""
        if event.type == "content_block_delta":
            return self._hear_delta(event)
        self._told[event.type] = fields_of(event.data)
        match event.type:
            case "message_start":
                self._said = inner(event.data, "message")
                self._counted |= usage_of(self._said)
            case "content_block_start":
                return self._hear_block(event)
            case "content_block_stop":
                self._waiting = []
                if self._place == event.item and self._open in ("text", OTHER):
                    return self._close()
            case "message_delta":
                self._said_delta |= without_nulls(inner(event.data, "delta"))
                self._counted |= inner(event.data, "usage")
            case _:
                pass
        return ()

    def _hear_block(self, event: Told) -> Sequence[bytes]:
        self._place = event.item
        self._told.pop("content_block_stop", None)
        self._said_block = inner(event.data, "content_block")
        if block_type(self._said_block) in SPOKEN_BLOCKS:
            return ()
        self._told.pop(event.type)
        out = self._open_block({"type": OTHER}, b"")
        return [*out[:-1], passed(event.type, event.data, self._index)]

    def _hear_delta(self, event: Told) -> Sequence[bytes]:
        """Citations of a text, which wait for it, or more of a block that is not ours."""
        if self._place != event.item:
            return ()
        if self._open in ("text", OTHER):
            return (passed(event.type, event.data, self._index),)
        self._waiting.append(event)
        return ()

    def _say(self, event: TextDelta | RefusalDelta) -> Sequence[bytes]:
        self._refused = self._refused or isinstance(event, RefusalDelta)
        out: list[bytes] = []
        if self._open != "text":
            out += self._open_block({"type": "text", "text": ""}, _TEXT)
            waiting, self._waiting = self._waiting, []
            out += [passed(told.type, told.data, self._index) for told in waiting]
        return [*out, self._delta(event)]

    def _end_message(self, event: MessageEnded) -> Sequence[bytes]:
        """Each message of a turn has a block of its own. The end of a block that the server told comes from there."""
        return self._close() if self._open == "text" and (not event.item or event.item != self._place) else ()

    def _delta(self, event: TextDelta | RefusalDelta | ReasoningDelta | CallArgs) -> bytes:
        """A delta in as many events as it came in, and in those themselves where they are of this dialect."""
        if event.frame is not None:
            return self._forward.written(event.frame, self._index)
        if event.pieces is None:
            return self._head + _json(event.text) + self._tail
        return event.pieces.spread(self._head, self._tail)

    def _think(self, event: ReasoningDelta) -> Sequence[bytes]:
        out: list[bytes] = []
        text = event.text
        if self._open != "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            out += self._open_block(block, b'"thinking_delta","thinking":')
            self._thought = [[]]
            self._part = (event.kind, event.part)
        elif (event.kind, event.part) != self._part:
            self._part = (event.kind, event.part)
            self._thought.append([])
            text = "\n\n" + text
        self._thought[-1].append(event.text)
        return [*out, self._delta(event) if text is event.text else self._head + _json(text) + self._tail]

    def _end_thought(self, event: ReasoningEnded) -> Sequence[bytes]:
        parts = tuple("".join(part) for part in self._thought) if self._open == "thinking" else ()
        block = thought_block(parts, event)
        if self._open != "thinking":
            if block is None:
                return ()
            return [*self._open_block(block, b""), *self._close()]
        out: list[bytes] = []
        if block is not None and block.get("signature"):
            delta = {"type": "signature_delta", "signature": block["signature"]}
            out.append(self._event("content_block_delta", {"index": self._index, "delta": delta}))
        return [*out, *self._close()]

    def _call_starts(self, event: CallStarted) -> Sequence[bytes]:
        block: dict[str, Any] = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
        out = self._open_block(block, b'"input_json_delta","partial_json":')
        self._call, self._growing, self._head = event, self._head, b""
        self._pieces: list[str] = []
        self._waits = event.kind == "custom"
        return out

    def _call_grows(self, event: CallArgs) -> Sequence[bytes]:
        """Arguments go on as they come. Those of a custom tool wait until they are whole, and so does a string."""
        self._pieces.append(event.text)
        self._waits = self._waits or event.text.lstrip().startswith('"')
        if self._waits or event.text.isspace() or not event.text:
            return ()
        pieces, self._pieces = self._pieces, []
        self._call, self._head = None, self._growing
        return [*(self._delta(CallArgs(event.id, text)) for text in pieces[:-1] if text), self._delta(event)]

    def _call_ends(self, event: CallEnded) -> Sequence[bytes]:
        out: list[bytes] = []
        call, self._call = self._call, None
        text = "".join(self._pieces)
        if call is not None and (text or call.kind == "custom"):
            whole = wrap(text) if call.kind == "custom" else bytes(as_object(text) or text.encode()).decode()
            delta = {"type": "input_json_delta", "partial_json": whole}
            out.append(self._event("content_block_delta", {"index": self._index, "delta": delta}))
        return [*out, *self._close()]

    def _count(self, event: Usage) -> Sequence[bytes]:
        self._usage = event
        return ()

    def _end_turn(self, event: TurnEnded) -> Sequence[bytes]:
        out = [*self._begin(), *self._close()]
        known = {"container": self._said.get("container"), "stop_details": None, **self._said_delta}
        delta = {**known, **end_of(event.reason, self._said_delta, refused=self._refused)}
        usage = {**UNCOUNTED_AT_THE_END, **self._counted, **usage_object(self._usage or Usage())}
        out.append(self._event("message_delta", {"delta": delta, "usage": usage}))
        return [*out, sse.write_comment(self._tally.comment()), self._event("message_stop", {})]

    def _fail_turn(self, event: TurnFailed) -> Sequence[bytes]:
        return [sse.write_comment(self._tally.comment()), sse.write_named("error", encode_error(event.failure))]

    def _open_block(self, block: dict[str, Any], delta: bytes) -> list[bytes]:
        out = [*self._begin(), *self._close()]
        self._index += 1
        self._open = block["type"]
        if block_type(self._said_block) == self._open:
            block = {**self._said_block, **block}
        self._said_block = {}
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
            % (
                self._index,
                delta,
            )
        )
        return [*out, self._event("content_block_start", {"index": self._index, "content_block": block})]

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        self._head = b""
        return [self._event("content_block_stop", {"index": self._index})]

    _HANDLERS: ClassVar[dict[type[Event], Callable[[Any, Any], Sequence[bytes]]]] = {
        TurnStarted: _start,
        TextDelta: _say,
        RefusalDelta: _say,
        MessageEnded: _end_message,
        ReasoningDelta: _think,
        ReasoningEnded: _end_thought,
        CallStarted: _call_starts,
        CallArgs: _call_grows,
        CallEnded: _call_ends,
        Told: _hear,
        Usage: _count,
        TurnEnded: _end_turn,
        TurnFailed: _fail_turn,
    }


def encode_error(failure: Failure) -> bytes:
    """The dialect's error object."""
    default = "api_error" if failure.status >= 500 else "invalid_request_error"
    error: dict[str, Any] = {"type": _TYPES.get(failure.status, default), "message": failure.message}
    if failure.code == THREADS:  # its SDKs then send the whole conversation
        error["details"] = {"error_code": THREADS, "unsupported": ["thread"]}
    return _json({"type": "error", "error": error})
