"""The content of a turn without secrets, as it is kept, sent to other workers and shown. Decodes its streams.

The backends' decoders read the streams of both sides: a client receives what a server of its dialect sends.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnFailed,
)
from toolwire.core.request import Request
from toolwire.core.sse import Frame
from toolwire.gateway.console.rows import TurnRow
from toolwire.protocols import converse_as
from toolwire.reader import ReplySplitter

Headers: TypeAlias = list[tuple[str, str]]
Lane: TypeAlias = Literal["text", "reasoning", "call", "other"]


class StreamContent(msgspec.Struct, array_like=True, gc=False):
    """Bytes with their times: for each part the seconds since the turn began, and the offset of its end."""

    data: bytes = b""
    marks: list[tuple[float, int]] = []
    withheld: bool = False
    """Nothing is kept, because a secret is spread over its frames."""

    def parts(self) -> list[tuple[float, bytes]]:
        starts = [0, *(end for _, end in self.marks)]
        return [(t, self.data[start:end]) for start, (t, end) in zip(starts, self.marks, strict=False)]


class SentBody(msgspec.Struct, array_like=True, gc=False):
    """A body or a message that was sent to a backend."""

    t: float
    path: str
    body: bytes


class AttemptContent(msgspec.Struct, array_like=True):
    """One attempt."""

    backend: str
    kind: str
    model: str
    asked: float
    replied: float
    status: int
    headers: Headers
    sent_headers: Headers
    sent: list[SentBody]
    reply: StreamContent
    content_type: str = ""
    round: int = 0
    """The number of the model's turn that it belongs to; between them the gateway runs tools."""


class TurnContent(msgspec.Struct, array_like=True):
    """Everything that is kept of a turn besides its row."""

    request: bytes
    request_headers: Headers
    attempts: list[AttemptContent]
    answer: StreamContent
    answer_headers: Headers
    notes: list[tuple[str, str]]
    is_cut: bool
    path: str = ""

    def read_answer(self, row: TurnRow) -> "StreamView":
        """What the answer to the client carries."""
        return read_stream(row.dialect, row.answer_type, self.answer.parts())


_decode = msgspec.msgpack.Decoder(TurnContent).decode


def pack(content: TurnContent) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(content), 1)


def unpack(packed: bytes) -> TurnContent:
    return _decode(zlib.decompress(packed))


class FrameView(msgspec.Struct):
    """One frame: its time, and what it carries."""

    t: float
    event: str
    data: str
    lane: Lane = "other"
    call: int = -1
    """Index of its call."""


class CallView(msgspec.Struct):
    """A call, assembled from its frames."""

    id: str
    name: str
    arguments: str = ""
    first: float = 0.0
    last: float = 0.0
    complete: bool = False


class StreamView(msgspec.Struct):
    """Everything that a stream carries."""

    frames: list[FrameView] = []
    calls: list[CallView] = []
    text: str = ""
    reasoning: str = ""
    failure: str = ""


def read_stream(kind: str, content_type: str, parts: Sequence[tuple[float, bytes]]) -> StreamView:
    """Read a reply of a backend of this kind, or an answer in this dialect; `parts` are bytes with their times."""
    reader = _StreamReader()
    conversation = converse_as(kind, Request("", (), stream=True, include_usage=True), "console")
    last = parts[-1][0] if parts else 0.0
    splitter = ReplySplitter(content_type)
    try:
        for t, frame in split_parts(splitter, parts):
            view = reader.add_frame(t, frame.event, frame.data)
            reader.feed(t, conversation.feed(frame), view)
        if splitter.is_plain:
            view = reader.add_frame(last, b"", splitter.body)
            reader.feed(last, conversation.feed_plain(splitter.body), view)
        else:
            reader.feed(last, conversation.end(), FrameView(last, "", ""))
    except ToolwireError as error:
        reader.failure = error.failure.message
    return reader.make_view()


def split_parts(splitter: ReplySplitter, parts: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, Frame]]:
    """The frames with their times, including an unfinished last one. Raises `BackendFault` if one is too large."""
    for t, data in parts:
        for frame in splitter.feed(data):
            yield t, frame
    for frame in splitter.end():
        yield parts[-1][0], frame


class _StreamReader:
    """Collects frames and events in linear time."""

    def __init__(self) -> None:
        self.failure = ""
        self._frames: list[FrameView] = []
        self._calls: list[CallView] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: list[list[str]] = []

    def add_frame(self, t: float, event: bytes, data: bytes) -> FrameView:
        """Add a frame before it is decoded, so that an invalid one is shown too."""
        self._frames.append(FrameView(t, event.decode(errors="replace"), data.decode(errors="replace")))
        return self._frames[-1]

    def feed(self, t: float, events: Sequence[Event], frame: FrameView) -> None:
        """Add the events of a frame."""
        for event in events:
            match event:
                case TextDelta() | RefusalDelta():
                    self._text.append(event.text)
                    frame.lane = "text"
                case ReasoningDelta():
                    self._reasoning.append(event.text)
                    frame.lane = "reasoning"
                case CallStarted():
                    self._calls.append(CallView(event.id, event.name, first=t))
                    self._arguments.append([])
                case CallArgs():
                    self._arguments[-1].append(event.text)
                case CallEnded():
                    self._calls[-1].complete = event.complete
                case TurnFailed():
                    self.failure = event.failure.message
                case _:
                    pass
            if isinstance(event, CallStarted | CallArgs | CallEnded):  # calls do not interleave
                self._calls[-1].last = t
                frame.lane, frame.call = "call", len(self._calls) - 1

    def make_view(self) -> StreamView:
        for call, pieces in zip(self._calls, self._arguments, strict=True):
            call.arguments = "".join(pieces)
        return StreamView(self._frames, self._calls, "".join(self._text), "".join(self._reasoning), self.failure)
