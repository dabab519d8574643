r"""Encodes turn events as Messages events, a failure as an error object.

    event: content_block_delta
    data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}

One block is open at a time, and blocks are numbered as they open.

If the backend speaks Messages too, a delta that no policy touched is written as its original event, with our index.
Blocks without turn events (server tools and their results) are forwarded whole, in their position. The unknown fields
of other blocks, of the message and of its end are kept.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import cast

from toolwire.adapt.unwrap import wrap
from toolwire.core import sse
from toolwire.core.allowance import Allowance
from toolwire.core.batch import BatchWriter
from toolwire.core.errors import Failure, InternalError
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Delta,
    Event,
    MessageEnded,
    RawFrame,
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
from toolwire.core.notes import TurnStats
from toolwire.core.raw import Fields, Json, as_object, fields_of, object_in, to_json, without_nulls
from toolwire.core.request import Request
from toolwire.core.sse import Frame
from toolwire.dialects.messages.message import (
    BLOCK_FIELDS,
    NULL_FIELDS,
    NULL_FINAL_USAGE,
    NULL_USAGE,
    encode_head,
    encode_stop,
    encode_thinking,
    encode_usage,
    type_of,
)

_DELTA_HEAD = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
_TEXT = b'"text_delta","text":'
THREADS = "thread_unsupported_request"
OTHER = "other"
"""The type of an open block that no turn event represents."""

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
    """Encodes turn events as the bytes of one stream of Messages events."""

    content_type = sse.CONTENT_TYPE

    def __init__(
        self, request: Request, id: str, created: int, stats: TurnStats, clock: Callable[[], float] | None = None
    ) -> None:
        self._id = id
        self._model = request.model
        self._stats = stats
        self._usage: Usage | None = None
        self._started = False
        self._index = -1
        self._open = ""  # the type of the open block
        self._refused = False
        self._thinking_parts: list[list[str]] = []  # the deltas of each part of the open thinking block
        self._part: tuple[str, int] | None = None
        self._call: CallStarted | None = None  # the open call, while its arguments are held back
        self._pieces: list[str] = []  # those arguments
        self._arguments_head = b""
        self._holds_arguments = False
        self._head = b""
        self._tail = b"}}\n\n"
        self._forwarder = DeltaForwarder()
        self._original_message: Fields = {}  # the server's fields of the message, the next block, the end, the usage
        self._original_block: Fields = {}
        self._original_delta: Fields = {}
        self._original_usage: Fields = {}
        self._original_events: dict[str, Fields] = {}  # the server's latest event of each type
        self._server_block = ""  # the item name of the server's open block
        self._early_deltas: list[RawFrame] = []  # citations of a text that has not begun

    def feed(self, event: Event) -> Sequence[bytes]:
        # Nearly all events of a stream are of these types, so they bypass the match.
        kind = type(event)
        if kind is CallArgs:
            arguments = cast("CallArgs", event)
            return (self._encode_delta(arguments),) if self._head else self._add_arguments(arguments)
        if kind is TextDelta and self._open == "text":
            return (self._encode_delta(cast("TextDelta", event)),)
        if kind is ReasoningDelta:
            return self._add_thinking(cast("ReasoningDelta", event))
        return self._feed_other(event)

    def _feed_other(self, event: Event) -> Sequence[bytes]:
        match event:
            case TurnStarted():
                return self._begin()
            case TextDelta() | RefusalDelta():
                return self._add_text(event)
            case MessageEnded(item):
                # Each message is a block of its own. A server's block ends with the server's own event.
                ends_block = self._open == "text" and (not item or item != self._server_block)
                return self._close() if ends_block else ()
            case ReasoningEnded():
                return self._end_thinking(event)
            case CallStarted(id, name):
                block: Json = {"type": "tool_use", "id": id, "name": name, "input": {}}
                out = self._open_block(block, b'"input_json_delta","partial_json":')
                self._call, self._arguments_head, self._head = event, self._head, b""
                self._pieces, self._holds_arguments = [], event.kind == "custom"
                return out
            case CallEnded():
                return self._end_call()
            case RawFrame():
                return self._take_raw_frame(event)
            case Usage():
                self._usage = event
            case TurnEnded(reason):
                return self._end_turn(reason)
            case TurnFailed(failure):
                return sse.write_comment(self._stats.comment()), sse.write_named("error", encode_error(failure))
            case _:
                pass
        return ()

    def sample(self, event: Delta) -> tuple[bytes, int] | None:
        """What `feed` writes for a delta like the last one, without taking it in; it has no number of its own."""
        if isinstance(event, CallArgs):
            is_open = bool(self._head)
        elif isinstance(event, ReasoningDelta):
            is_open = self._open == "thinking" and (event.kind, event.part) == self._part
        else:
            is_open = isinstance(event, TextDelta) and self._open == "text"
        return (self._encode_delta(event), -1) if is_open else None

    def keepalive(self, silent: float) -> Sequence[bytes]:
        """A ping, which keeps the connection open after this many seconds of silence."""
        return [*self._begin(), b'event: ping\ndata: {"type":"ping"}\n\n']

    def break_off(self) -> Sequence[bytes]:
        """The end of a stream whose encoding failed."""
        return (sse.write_named("error", encode_error(InternalError().failure)),)

    def _begin(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        usage = {**NULL_USAGE, **encode_usage(self._usage or Usage()), **self._original_usage}
        message = {**NULL_FIELDS, **self._original_message, **encode_head(self._id, self._model), "usage": usage}
        return [self._write_event("message_start", {"message": message})]

    def _write_event(self, type: str, fields: Json) -> bytes:
        """An event, with the unknown fields of the server's event of this type."""
        return sse.write_named(type, to_json({**self._original_events.pop(type, {}), "type": type, **fields}))

    def _take_raw_frame(self, event: RawFrame) -> Sequence[bytes]:
        """Keep a server's event for its unknown fields, or pass it on if no turn event represents it."""
        if event.type == "content_block_delta":  # of an unknown block, or a citation
            if self._server_block == event.item:
                if self._open in ("text", OTHER):
                    return (set_index(event.type, event.data, self._index),)
                self._early_deltas.append(event)
            return ()
        fields = self._original_events[event.type] = fields_of(event.data)
        match event.type:
            case "message_start":
                self._original_message = object_in(fields, "message")
                self._original_usage |= without_nulls(object_in(self._original_message, "usage"))
            case "content_block_start":
                self._server_block = event.item
                self._original_events.pop("content_block_stop", None)
                self._original_block = object_in(fields, "content_block")
                if event.is_unknown:
                    self._original_events.pop(event.type)
                    out = self._open_block({"type": OTHER}, b"")
                    return [*out[:-1], set_index(event.type, event.data, self._index)]
            case "content_block_stop":
                self._early_deltas = []
                if self._server_block == event.item and self._open in ("text", OTHER):
                    return self._close()
            case "message_delta":
                self._original_delta |= without_nulls(object_in(fields, "delta"))
                self._original_usage |= object_in(fields, "usage")
            case _:
                pass
        return ()

    def _add_text(self, event: TextDelta | RefusalDelta) -> Sequence[bytes]:
        self._refused = self._refused or isinstance(event, RefusalDelta)
        out: list[bytes] = []
        if self._open != "text":
            out += self._open_block({"type": "text", "text": ""}, _TEXT)
            early, self._early_deltas = self._early_deltas, []
            out += [set_index(frame.type, frame.data, self._index) for frame in early]
        return [*out, self._encode_delta(event)]

    def _encode_delta(self, event: TextDelta | RefusalDelta | ReasoningDelta | CallArgs) -> bytes:
        """Encode a delta: as its original events, if the backend speaks this dialect."""
        if event.frame is not None:
            return self._forwarder.write(event.frame, self._index)
        if event.batch is None:
            return self._head + to_json(event.text) + self._tail
        return event.batch.write_each(self._head, self._tail)

    def _add_thinking(self, event: ReasoningDelta) -> Sequence[bytes]:
        out: list[bytes] = []
        text = event.text
        if self._open != "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            out += self._open_block(block, b'"thinking_delta","thinking":')
            self._thinking_parts = [[]]
            self._part = (event.kind, event.part)
        elif (event.kind, event.part) != self._part:
            self._part = (event.kind, event.part)
            self._thinking_parts.append([])
            text = "\n\n" + text
        self._thinking_parts[-1].append(event.text)
        return [*out, self._encode_delta(event) if text is event.text else self._head + to_json(text) + self._tail]

    def _end_thinking(self, event: ReasoningEnded) -> Sequence[bytes]:
        parts = tuple("".join(part) for part in self._thinking_parts) if self._open == "thinking" else ()
        block = encode_thinking(parts, event)
        if self._open != "thinking":
            if block is None:
                return ()
            return [*self._open_block(block, b""), *self._close()]
        out: list[bytes] = []
        if block is not None and block.get("signature"):
            delta = {"type": "signature_delta", "signature": block["signature"]}
            out.append(self._write_event("content_block_delta", {"index": self._index, "delta": delta}))
        return [*out, *self._close()]

    def _add_arguments(self, event: CallArgs) -> Sequence[bytes]:
        """Write arguments as they arrive. Those of a custom tool, or a JSON string, are held until the call ends."""
        self._pieces.append(event.text)
        self._holds_arguments = self._holds_arguments or event.text.lstrip().startswith('"')
        if self._holds_arguments or event.text.isspace() or not event.text:
            return ()
        pieces, self._pieces = self._pieces, []
        self._call, self._head = None, self._arguments_head
        return [
            *(self._encode_delta(CallArgs(event.id, text)) for text in pieces[:-1] if text),
            self._encode_delta(event),
        ]

    def _end_call(self) -> Sequence[bytes]:
        out: list[bytes] = []
        call, self._call = self._call, None
        text = "".join(self._pieces)
        if call is not None and (text or call.kind == "custom"):
            whole = wrap(text) if call.kind == "custom" else bytes(as_object(text) or text.encode()).decode()
            delta = {"type": "input_json_delta", "partial_json": whole}
            out.append(self._write_event("content_block_delta", {"index": self._index, "delta": delta}))
        return [*out, *self._close()]

    def _end_turn(self, reason: Reason) -> Sequence[bytes]:
        out = [*self._begin(), *self._close()]
        container = self._original_message.get("container")
        stop = encode_stop(reason, self._original_delta, refused=self._refused)
        delta: Json = {"container": container, "stop_details": None, **self._original_delta, **stop}
        usage = {**NULL_FINAL_USAGE, **self._original_usage, **encode_usage(self._usage or Usage())}
        out.append(self._write_event("message_delta", {"delta": delta, "usage": usage}))
        return [*out, sse.write_comment(self._stats.comment()), self._write_event("message_stop", {})]

    def _open_block(self, block: Json, delta: bytes) -> list[bytes]:
        out = [*self._begin(), *self._close()]
        self._index += 1
        self._open = block["type"]
        original, self._original_block = self._original_block, {}
        block = {**(original if type_of(original) == self._open else BLOCK_FIELDS.get(self._open, {})), **block}
        self._head = _DELTA_HEAD % (self._index, delta)
        return [*out, self._write_event("content_block_start", {"index": self._index, "content_block": block})]

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        self._head = b""
        return [self._write_event("content_block_stop", {"index": self._index})]


def encode_allowances(allowances: Sequence[Allowance], now: float) -> list[tuple[bytes, bytes]]:
    """What is left of limits, as Anthropic's headers."""
    out: list[tuple[bytes, bytes]] = []
    for each in allowances:
        reset = datetime.fromtimestamp(int(now) + each.reset, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, value in (("limit", str(each.limit)), ("remaining", str(each.remaining)), ("reset", reset)):
            out.append((f"anthropic-ratelimit-{each.kind}-{name}".encode(), value.encode()))
    return out


def encode_error(failure: Failure) -> bytes:
    """Encode a failure as an error object."""
    default = "api_error" if failure.status >= 500 else "invalid_request_error"
    error: Json = {"type": _TYPES.get(failure.status, default), "message": failure.message}
    if failure.code == THREADS:  # Anthropic's SDKs then send the whole conversation
        error["details"] = {"error_code": THREADS, "unsupported": ["thread"]}
    return to_json({"type": "error", "error": error})


class DeltaForwarder:
    """Writes deltas as the events that they arrived in."""

    def __init__(self) -> None:
        self._index = -1
        self._lead = b""
        self._batch_writer = BatchWriter()

    def write(self, frame: Frame, index: int) -> bytes:
        """Write a frame or a batch, with our index of its block."""
        if index != self._index:
            self._index = index
            self._lead = b'{"type":"content_block_delta","index":%d,' % index
        if frame.batch is None:
            return self._write_event(frame.data)
        return self._batch_writer.write(frame.batch, self._write_event, index)

    def _write_event(self, data: bytes) -> bytes:
        if not data.startswith(self._lead):
            return set_index("content_block_delta", data, self._index)
        return b"event: content_block_delta\ndata: " + data + b"\n\n"


def set_index(type: str, data: bytes, index: int) -> bytes:
    """Encode an event about a block with our index."""
    return sse.write_named(type, to_json({**fields_of(data), "type": type, "index": index}))
