"""What a stream says: its frames, and the calls and texts that they make together.

The decoders of the backends read it, whichever side it is from: a client is sent what a server of its dialect sends.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.backends.replay import KINDS
from toolwire.core.bounds import Steps
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
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.request import Request
from toolwire.core.sse import Frame, FrameReader

Lane: TypeAlias = Literal["text", "reasoning", "call", "other"]
FRAMES_PER_STEP = 200


class ReadFrame(msgspec.Struct):
    """One frame: when it came, and what it is about."""

    t: float
    event: str
    data: str
    lane: Lane = "other"
    call: int = -1
    """The index of its call."""


class ReadCall(msgspec.Struct):
    """A call, put together."""

    id: str
    name: str
    arguments: str = ""
    first: float = 0.0
    last: float = 0.0
    complete: bool = False


class Reading(msgspec.Struct):
    """All that a stream says."""

    frames: list[ReadFrame] = []
    calls: list[ReadCall] = []
    text: str = ""
    reasoning: str = ""
    failure: str = ""


def reading(kind: str, content_type: str, parts: Sequence[tuple[float, bytes]]) -> Steps[Reading]:
    """Read a reply of a backend of this kind, or an answer in this dialect."""
    reader = _Reader(kind)
    lines = content_type == JSON_LINES
    beginning = b"".join([data for _, data in parts[:2]])[:64].lstrip()
    if beginning.startswith(b"{") and not lines:
        reader.plain(parts[-1][0], b"".join([data for _, data in parts]))
        return reader.result()
    frames = LineReader() if lines else FrameReader()
    try:
        for t, data in parts:
            for index, frame in enumerate(frames.feed(data)):
                reader.frame(t, frame)
                if index % FRAMES_PER_STEP == FRAMES_PER_STEP - 1:
                    yield
            yield
        for frame in frames.end():
            reader.frame(parts[-1][0] if parts else 0.0, frame)
        reader.end(parts[-1][0] if parts else 0.0)
    except ToolwireError as error:
        reader.fail(error)
    return reader.result()


class _Reader:
    def __init__(self, kind: str) -> None:
        self._conversation = KINDS[kind](Request("", (), stream=True, include_usage=True), "console")
        self._reading = Reading()
        self._open: dict[str, int] = {}
        self._pieces: dict[str, list[str]] = {"text": [], "reasoning": []}
        self._arguments: list[list[str]] = []

    def plain(self, t: float, body: bytes) -> None:
        """A reply in one piece."""
        frame = ReadFrame(t, "", body.decode(errors="replace"))
        self._reading.frames.append(frame)
        try:
            self._take(t, self._conversation.feed_plain(body), frame)
        except ToolwireError as error:
            self.fail(error)

    def frame(self, t: float, frame: Frame) -> None:
        shown = ReadFrame(t, frame.event.decode(errors="replace"), frame.data.decode(errors="replace"))
        self._reading.frames.append(shown)
        self._take(t, self._conversation.feed(frame), shown)

    def end(self, t: float) -> None:
        self._take(t, self._conversation.end(), ReadFrame(t, "", ""))

    def fail(self, error: ToolwireError) -> None:
        self._reading.failure = error.failure.message

    def result(self) -> Reading:
        found = self._reading
        found.text, found.reasoning = ("".join(self._pieces[name]) for name in ("text", "reasoning"))
        for call, pieces in zip(found.calls, self._arguments, strict=True):
            call.arguments = "".join(pieces)
        return found

    def _take(self, t: float, events: Sequence[Event], frame: ReadFrame) -> None:
        for event in events:
            match event:
                case TextDelta() | RefusalDelta():
                    self._pieces["text"].append(event.text)
                    frame.lane = "text"
                case ReasoningDelta():
                    self._pieces["reasoning"].append(event.text)
                    frame.lane = "reasoning"
                case CallStarted():
                    self._open[event.id] = frame.call = len(self._arguments)
                    self._reading.calls.append(ReadCall(event.id, event.name, first=t, last=t))
                    self._arguments.append([])
                    frame.lane = "call"
                case CallArgs():
                    frame.lane, frame.call = "call", self._open[event.id]
                    self._arguments[frame.call].append(event.text)
                    self._reading.calls[frame.call].last = t
                case CallEnded():
                    frame.lane, frame.call = "call", self._open[event.id]
                    call = self._reading.calls[frame.call]
                    call.last, call.complete = t, event.complete
                case TurnFailed():
                    self._reading.failure = event.failure.message
                case _:
                    pass
