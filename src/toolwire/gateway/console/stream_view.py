"""The frames of a stream, and the calls and texts that they make together.

The backends' decoders read both sides: a client is sent what a server of its dialect sends.
"""

from collections.abc import Sequence
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
from toolwire.protocols import converse_as
from toolwire.reader import ReplySplitter

Lane: TypeAlias = Literal["text", "reasoning", "call", "other"]


class FrameView(msgspec.Struct):
    """One frame: when it came, and what it carries."""

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
        for t, data in parts:
            for frame in splitter.feed(data):
                reader.feed(t, conversation.feed(frame), reader.add_frame(t, frame.event, frame.data))
        if splitter.is_plain:
            frame = reader.add_frame(last, b"", splitter.body)
            reader.feed(last, conversation.feed_plain(splitter.body), frame)
            return reader.view()
        for frame in splitter.end():
            reader.feed(last, conversation.feed(frame), reader.add_frame(last, frame.event, frame.data))
        reader.feed(last, conversation.end(), FrameView(last, "", ""))
    except ToolwireError as error:
        reader.failure = error.failure.message
    return reader.view()


class _StreamReader:
    """Collects frames and events in linear time."""

    def __init__(self) -> None:
        self.failure = ""
        self._frames: list[FrameView] = []
        self._calls: list[CallView] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: list[list[str]] = []
        self._open: dict[str, int] = {}

    def add_frame(self, t: float, event: bytes, data: bytes) -> FrameView:
        """Add a frame before it is decoded, so that one that cannot be decoded is shown too."""
        self._frames.append(FrameView(t, event.decode(errors="replace"), data.decode(errors="replace")))
        return self._frames[-1]

    def feed(self, t: float, events: Sequence[Event], frame: FrameView) -> None:
        """Take the events of a frame."""
        for event in events:
            match event:
                case TextDelta() | RefusalDelta():
                    self._text.append(event.text)
                    frame.lane = "text"
                case ReasoningDelta():
                    self._reasoning.append(event.text)
                    frame.lane = "reasoning"
                case CallStarted():
                    frame.lane, frame.call = "call", len(self._calls)
                    self._open[event.id] = frame.call
                    self._calls.append(CallView(event.id, event.name, first=t, last=t))
                    self._arguments.append([])
                case CallArgs():
                    frame.lane, frame.call = "call", self._open[event.id]
                    self._arguments[frame.call].append(event.text)
                    self._calls[frame.call].last = t
                case CallEnded():
                    frame.lane, frame.call = "call", self._open[event.id]
                    call = self._calls[frame.call]
                    call.last, call.complete = t, event.complete
                case TurnFailed():
                    self.failure = event.failure.message
                case _:
                    pass

    def view(self) -> StreamView:
        """All that was read."""
        for call, pieces in zip(self._calls, self._arguments, strict=True):
            call.arguments = "".join(pieces)
        return StreamView(self._frames, self._calls, "".join(self._text), "".join(self._reasoning), self.failure)
