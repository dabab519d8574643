r"""Encodes turn events as `generateContent` chunks: as server-sent events or as the elements of one JSON array.

    data: {"candidates":[{"content":{"parts":[{"text":"Hi"}],"role":"model"},"index":0}],"modelVersion":…}\r\n\r\n

Clients raise, or silently lose the rest of a stream, at comments, `event:` lines and `[DONE]`. So a keepalive is a
blank line, and nothing follows the chunk with the finish reason. A call is written whole when it ends, because clients
run what they see; an incomplete one is not written.

If the backend is Gemini, a delta that no policy changed is written as its original chunk with our id and model. Other
chunks come as raw frames before their events: their unknown fields go into the next chunk.
"""

import re
from collections.abc import Callable, Sequence
from typing import cast

from toolwire.core.batch import BatchWriter
from toolwire.core.collect import CallAssembler
from toolwire.core.errors import InternalError
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    RawFrame,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    Usage,
    list_texts,
)
from toolwire.core.notes import TurnStats
from toolwire.core.raw import Json, fields_of, to_json
from toolwire.core.request import Request
from toolwire.core.sse import Frame
from toolwire.dialects.gemini.answer import (
    Original,
    Parts,
    encode_error,
    encode_finish,
    encode_usage,
    is_signed_with,
)
from toolwire.dialects.gemini.decode import ARRAY

_TEXT = b'{"candidates":[{"content":{"parts":[{"text":'
_THOUGHT = b'{"candidates":[{"content":{"parts":[{"thought":true,"text":'
_CLOSE = b'}],"role":"model"},"index":0}],'
_LINE = b"\r\n"


class StreamEncoder:
    """Encodes turn events as the bytes of one stream."""

    def __init__(
        self, request: Request, id: str, created: int, stats: TurnStats, clock: Callable[[], float] | None = None
    ) -> None:
        is_array = request.stream_form == ARRAY
        self.content_type = b"application/json" if is_array else b"text/event-stream; charset=utf-8"
        self._opening = b"[" if is_array else b""  # before the first chunk
        self._lead, self._end, self._close = (b",\r\n", b"", b"]") if is_array else (b"data: ", _LINE * 2, b"")
        self._own: Json = {"modelVersion": request.model, "responseId": id}
        written = to_json(self._own)[1:]
        self._tail = _CLOSE + written + self._end
        self._text_head, self._thought_head = self._lead + _TEXT, self._lead + _THOUGHT
        self._parts = Parts(request)
        self._usage: Usage | None = None
        self._calls = CallAssembler()
        self._thoughts: list[list[str]] = []  # the texts of each part of the open reasoning
        self._thought_part: tuple[str, int] | None = None
        self._refused = False
        self._original = Original()
        self._signed: Json = {}  # the last part with a signature of Gemini's
        self._forwarder = ChunkForwarder(self._own, self._lead, self._end)

    def feed(self, event: Event) -> Sequence[bytes]:
        kind = type(event)
        if kind is TextDelta:  # nearly all events of a stream
            return self._add_text(cast("TextDelta", event))
        if kind is CallArgs:
            self._calls.feed(event)
            return ()
        match event:
            case RefusalDelta():
                self._refused = True
                return self._add_text(event)
            case ReasoningDelta():
                return self._add_thought(event)
            case ReasoningEnded():
                return self._end_thought(event)
            case CallStarted() | CallEnded():
                call = self._calls.feed(event)
                return self._write(self._parts.make_call(call)) if call is not None and call.complete else ()
            case RawFrame():
                return self._take_raw_frame(event)
            case Usage():
                self._usage = event
            case TurnEnded(reason):
                finish = encode_finish(reason, self._original, refused=self._refused)
                return [*self._write(self._parts.make_ending(), {"finishReason": finish}), *self._finish()]
            case TurnFailed(failure):
                return [*self._frame(encode_error(failure)), *self._finish()]
            case _:
                pass
        return ()

    def keepalive(self, silent: float) -> Sequence[bytes]:
        """A blank line: all that every client takes."""
        return (_LINE,)

    def break_off(self) -> Sequence[bytes]:
        """The end of a stream whose encoding failed."""
        return [*self._frame(encode_error(InternalError().failure)), *self._finish()]

    def _finish(self) -> Sequence[bytes]:
        return (self._close,) if self._close else ()

    def _frame(self, data: bytes) -> Sequence[bytes]:
        return self._open(self._lead + data + self._end)

    def _open(self, written: bytes) -> Sequence[bytes]:
        """Chunks; an array begins with the first, which nothing separates from another."""
        if not self._opening:
            return (written,)
        opening, self._opening = self._opening, b""
        return (opening + written[len(self._lead) :],)

    def _write(self, part: Json, ending: Json | None = None) -> Sequence[bytes]:
        """A chunk with one part, and with the unknown fields of the server's last chunks. Its last one counts."""
        original = self._original
        candidate: Json = {"content": {"parts": [part], "role": "model"}, **(ending or {}), "index": 0}
        chunk: Json = {"candidates": [{**candidate, **original.candidate}, *original.others]}
        if ending is not None and self._usage is not None:
            chunk["usageMetadata"] = encode_usage(self._usage, original)
        data = to_json({**chunk, **original.extra, **self._own})
        original.candidate, original.others, original.extra = {}, [], {}
        return self._frame(data)

    def _add_text(self, event: TextDelta | RefusalDelta) -> Sequence[bytes]:
        if event.frame is not None:
            return self._open(self._forwarder.write(event.frame))
        signed = self._original.take_signature(event.text)
        if signed or self._parts.holds or self._original.candidate or self._original.extra:
            self._signed = {**self._parts.make_text(event.text), **signed}
            return self._write(self._signed)
        return self._open(self._encode_delta(event, self._text_head))

    def _encode_delta(self, event: TextDelta | RefusalDelta | ReasoningDelta, head: bytes) -> bytes:
        if event.batch is None:
            return head + to_json(event.text) + self._tail
        return event.batch.write_each(head, self._tail)

    def _add_thought(self, event: ReasoningDelta) -> Sequence[bytes]:
        part, is_next = (event.kind, event.part), False
        if part != self._thought_part:
            is_next = bool(self._thoughts)
            self._thoughts.append([])
            self._thought_part = part
        self._thoughts[-1].append(event.text)
        if not self._parts.shows_thoughts:
            return ()
        if is_next:
            first, *others = list_texts(event)
            return [
                piece
                for text in ("\n\n" + first, *others)
                for piece in self._open(self._thought_head + to_json(text) + self._tail)
            ]
        if event.frame is not None:
            return self._open(self._forwarder.write(event.frame))
        signed = self._original.take_signature(event.text)
        if signed:
            self._signed = {"text": event.text, "thought": True, **signed}
            return self._write(self._signed)
        return self._open(self._encode_delta(event, self._thought_head))

    def _end_thought(self, event: ReasoningEnded) -> Sequence[bytes]:
        texts = tuple("".join(part) for part in self._thoughts)
        self._thoughts, self._thought_part = [], None
        signed, self._signed = self._signed, {}
        if is_signed_with(signed, event.signature):
            return ()
        part = self._parts.end_reasoning(event, texts)
        return self._write(part) if part is not None else ()

    def _take_raw_frame(self, event: RawFrame) -> Sequence[bytes]:
        """Keep the unknown fields of a chunk, or write a part that has no events."""
        if event.type == "chunk":
            self._parts.is_native = True
            self._original.update(Original(event.data))
            return ()
        return self._write({**fields_of(event.data)}) if event.type == "part" else ()


class ChunkForwarder:
    """Writes deltas as the chunks that they arrived in, with our model and id."""

    def __init__(self, own: Json, lead: bytes, end: bytes) -> None:
        self._own = [(re.compile(rb'"%b" ?: ?"[^"\\]*"' % name.encode()), name) for name in own]
        self._written = {name: b'"%b":%b' % (name.encode(), to_json(value)) for name, value in own.items()}
        self._fields = own
        self._lead = lead
        self._end = end
        self._batch_writer = BatchWriter()

    def write(self, frame: Frame) -> bytes:
        """Write a frame or a batch."""
        if frame.batch is None:
            return self._write_chunk(frame.data)
        return self._batch_writer.write(frame.batch, self._write_chunk)

    def _write_chunk(self, data: bytes) -> bytes:
        # In a JSON string these quotes would be escaped. A value of this form elsewhere makes two matches.
        for pattern, name in self._own:
            data, found = pattern.subn(lambda _, name=name: self._written[name], data)
            if found != 1:
                return self._lead + to_json({**fields_of(data), **self._fields}) + self._end
        return self._lead + data + self._end
