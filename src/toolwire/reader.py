"""Reads one reply of a backend: bytes in, turn events out. It does no IO, and clocks are arguments.

Used by attempts for replies from sockets, by `toolwire replay` and the console for recorded replies, and by the library
for its caller's bytes. A reply is an event stream, lines of JSON-RPC, or one plain body; `ReplySplitter` detects which.
"""

from collections.abc import Callable, Sequence, Sized

import msgspec

from toolwire.backends.lowered import LoweredConversation
from toolwire.core.batch import Template
from toolwire.core.errors import MAX_CALLS, BackendFault, Failure, ReplyTooLarge, TooManyCalls
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Delta,
    Event,
    Note,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    decode_frames,
)
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.jsonrpc import MAX_LINE_BYTES as LINE_LIMIT
from toolwire.core.lane import Check
from toolwire.core.sse import MAX_EVENT_BYTES as FRAME_LIMIT
from toolwire.core.sse import Frame, FrameReader

CONTENT = frozenset((TextDelta, ReasoningDelta, RefusalDelta, CallStarted, CallArgs, CallEnded))
"""Events that make a turn longer."""
MAX_EMPTY_FRAMES = 50_000
"""Maximum frames and comments in a row without content. Codex sends up to 10,000 deltas of one command's output, which
are not content."""
FRAMES_PER_SLICE = 64
"""Frames that are decoded before the clock is read."""
BYTES_PER_SLICE = 2048
"""Bytes that are split into frames before the clock is read, if their lines are short."""
MAX_SHORT_LINE = 32
"""Lines are short if they average fewer bytes than this."""
SLICE_SECONDS = 0.005
"""Decoding a large read pauses after this time so that other tasks can run."""
EVENT_STREAM = "text/event-stream"


class ReplySplitter:
    """Splits a reply into frames. A plain body has none; it is kept until the reply ends."""

    def __init__(self, content_type: str = "", limit: int = FRAME_LIMIT, delta_fields: Sequence[bytes] = ()) -> None:
        """`limit` is the maximum bytes of a frame. Frames that differ only in a field of `delta_fields` become one."""
        self._limit = limit
        self._delta_fields = delta_fields
        self._plain: list[bytes] = []
        self.frames: FrameReader | LineReader | None = None
        """Splits the reply; None if it is plain, or not known to have frames yet."""
        if "event-stream" in content_type:
            self.frames = FrameReader(min(FRAME_LIMIT, limit), delta_fields)
        elif content_type == JSON_LINES:
            self.frames = LineReader(min(LINE_LIMIT, limit))

    @property
    def is_plain(self) -> bool:
        """Whether the reply so far is a plain body."""
        return bool(self._plain)

    @property
    def body(self) -> bytes:
        """The plain body so far."""
        return b"".join(self._plain)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete. Raises `BackendFault` if one is too large."""
        if self.frames is None:
            if not self._plain:
                data = data.lstrip()  # some servers send blank lines while they think
            if not data:
                return []
            if self._plain or data.startswith((b"{", b"[")):
                self._plain.append(data)
                return []
            self.frames = FrameReader(min(FRAME_LIMIT, self._limit), self._delta_fields)
        return self.frames.feed(data)

    def end(self) -> Sequence[Frame]:
        """The frames that the end of the reply completes."""
        return self.frames.end() if self.frames is not None else ()


class ReplyLimits(msgspec.Struct, frozen=True):
    """The limits of one reply."""

    max_held: int = 0
    """Maximum bytes in memory: all of a plain reply, or those of a stream since text was last shown. 0: no limit, also
    on frames without content."""
    after_finish: float = 0.0
    """Seconds for which a stream may stay open after its finish reason."""
    hold: Callable[[int], None] | None = None
    """Reserves memory for each part of a plain body; may raise."""


NO_LIMITS = ReplyLimits()


class TurnReader:
    """Reads one reply. An invalid reply raises `BackendFault`.

    `feed` decodes bytes for one slice of time, and `feed_more` the rest of them.
    """

    def __init__(
        self,
        conversation: LoweredConversation,
        content_type: str = "",
        limits: ReplyLimits = NO_LIMITS,
        *,
        batches: bool = False,
        call_ids: Sized = (),
        on_frames: Callable[[Sequence[Frame]], None] | None = None,
        clock: Callable[[], float] | None = None,
        now: float = 0.0,
    ) -> None:
        """Read the reply to a conversation.

        Args:
            conversation: Decodes the frames.
            content_type: The content type of the reply, if it is known.
            limits: The limits of the reply.
            batches: Whether frames of one read that differ only in their text are batched.
            call_ids: The calls of the turn so far; too many of them raise `TooManyCalls`.
            on_frames: Called with frames before they are decoded; may raise.
            clock: Limits the time of one call of `feed`; without it everything is decoded at once.
            now: The current time, on the same clock as the times passed to `feed`.
        """
        self.conversation = conversation
        self._limits = limits
        self._max_held = limits.max_held
        self._after_finish = limits.after_finish
        self._batches = batches
        self._call_ids = call_ids
        self.on_frames = on_frames
        """Called with frames before they are decoded."""
        self._clock = clock
        self._bytes: list[bytes] = []  # pieces to split into frames, the last one first
        self._frames: list[Frame] = []  # frames to decode, the last one first
        self._empty = 0  # frames since the last content
        self._held = 0  # content that the conversation holds back
        self._finishing = 0  # frames since the finish reason
        self.heard_at = 0.0
        """The time of the last bytes."""
        self.progressed = now
        """The time at which content was last shown, or arrived and was held back."""
        self.held_bytes = 0
        """Bytes of the reply since text was last shown."""
        self.finish_over = 0.0
        """The deadline for the end of the stream; 0 before there is a finish reason."""
        self.left_open = False
        """Whether the turn ended without the end of the stream."""
        self.take_head(content_type)

    def take_head(self, content_type: str) -> None:
        """Take the content type, before any part of the body."""
        fields = self.conversation.delta_fields if self._batches else ()
        self._splitter = ReplySplitter(content_type, self._max_held or FRAME_LIMIT, fields)
        self._source = self._splitter.frames

    @property
    def is_plain(self) -> bool:
        """Whether the reply so far is a plain body."""
        return self._splitter.is_plain

    @property
    def has_more(self) -> bool:
        """Whether bytes that were fed are not decoded yet."""
        return bool(self._frames or self._bytes)

    def feed(self, data: bytes, now: float = 0.0) -> list[Event]:
        """The events of the next bytes, which arrived at this time."""
        self.heard_at = now
        if self._max_held:
            self.held_bytes += len(data)
            if self.held_bytes > self._max_held:
                raise ReplyTooLarge(self._max_held)
        if len(self._call_ids) > MAX_CALLS:
            raise TooManyCalls
        source = self._source
        if source is None:
            found = self._splitter.feed(data)
            self._source = self._splitter.frames
            if self._source is None:
                if self._limits.hold is not None:
                    self._limits.hold(len(data))
                return []
        elif len(data) > BYTES_PER_SLICE and self._clock is not None and _has_short_lines(data):
            starts = range(0, len(data), BYTES_PER_SLICE)
            self._bytes = [data[start : start + BYTES_PER_SLICE] for start in starts][::-1]
            return self.feed_more()
        else:
            found = source.feed(data)
        if len(found) > FRAMES_PER_SLICE and self._clock is not None:
            self._frames = found[::-1]
            return self.feed_more()
        return self._decode(found)

    def feed_more(self) -> list[Event]:
        """The events of bytes that were fed before, for one slice of time."""
        clock = self._clock
        assert clock is not None
        out: list[Event] = []
        until = clock() + SLICE_SECONDS
        while self._frames or self._bytes:
            if not self._frames:
                self._frames = self._splitter.feed(self._bytes.pop())[::-1]
            frames = self._frames[-FRAMES_PER_SLICE:][::-1]
            del self._frames[-FRAMES_PER_SLICE:]
            out += self._decode(frames)
            if clock() > until:
                break
        self.check_calls()
        return out

    def find_repetition(self, data: bytes, delta: Delta) -> tuple[Template, Check] | None:
        """The template of further frames like the last one, and what must hold for their text; None if there is none.

        `data` was fed last, and has led to nothing but this delta.
        """
        if not isinstance(self._source, FrameReader) or self.on_frames is not None:
            return None
        check = self.conversation.decoder.find_check(delta)
        template = self._source.find_template(data) if check is not None else None
        return (template, check) if template is not None and check is not None else None

    def has_room(self, size: int) -> bool:
        """Whether this many bytes more may be held."""
        return not self._max_held or self.held_bytes + size <= self._max_held

    def take_in(self, frame: Frame) -> list[Event]:
        """The events of a frame whose bytes were not fed."""
        return self._decode((frame,))

    def end(self) -> Sequence[Event]:
        """The events caused by the end of the reply."""
        if self._splitter.is_plain:
            return self.conversation.feed_plain(self._splitter.body)
        return [*self._decode(self._splitter.end()), *self.conversation.end()]

    def end_left_open(self) -> Sequence[Event]:
        """The events that end a turn whose stream the backend leaves open after the finish reason."""
        self.left_open = True
        return [Note("end_missing"), *self.conversation.end()]

    def check_calls(self) -> None:
        """Raise if the turn has more calls than any model would make."""
        if len(self._call_ids) > MAX_CALLS:
            raise TooManyCalls

    def _decode(self, frames: Sequence[Frame]) -> list[Event]:
        if self.on_frames is not None:
            self.on_frames(frames)
        out = decode_frames(self.conversation.feed, frames)
        if self._max_held:
            self._count_empty(frames, out)
        if self._after_finish:
            finishing = self.conversation.decoder.finishing
            if finishing != self._finishing:
                self._finishing = finishing
                self.finish_over = self.heard_at + self._after_finish if finishing else 0.0
        return out

    def _count_empty(self, frames: Sequence[Frame], events: Sequence[Event]) -> None:
        """Raise if the backend has sent too many frames without content."""
        skipped = self._source.skipped if self._source is not None else 0
        before, self._held = self._held, self.conversation.decoder.held
        if self._held > before:
            self._empty, self.progressed = -skipped, self.heard_at
            return
        for event in events:
            if type(event) in CONTENT and getattr(event, "text", True):
                self._empty = -skipped
                return
        self._empty += len(frames)
        if self._empty + skipped > MAX_EMPTY_FRAMES and not self.conversation.decoder.ended:
            message = f"The backend sent more than {MAX_EMPTY_FRAMES} frames in a row without content."
            raise BackendFault(Failure(502, "reply_without_content", message))


def _has_short_lines(data: bytes) -> bool:
    """Whether a read ends with short lines."""
    lines = data.count(b"\n", -BYTES_PER_SLICE) + data.count(b"\r", -BYTES_PER_SLICE)
    return lines * MAX_SHORT_LINE > BYTES_PER_SLICE
