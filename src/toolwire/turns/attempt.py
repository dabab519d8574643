"""An attempt: one reply of one backend, from the question to its last byte, as turn events.

Every wait for the backend has a deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import msgspec

from toolwire.assembly import Assembly
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Dialogue
from toolwire.core.delta_batch import decoded
from toolwire.core.errors import MAX_CALLS, BackendFault, Failure, ReplyTooLarge, TooManyCalls
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    Note,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnFailed,
)
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.jsonrpc import LIMIT as LINE_LIMIT
from toolwire.core.request import Request
from toolwire.core.sse import DEFAULT_LIMIT as FRAME_LIMIT
from toolwire.core.sse import Frame, FrameReader
from toolwire.turns.explain import WEB_PAGE, AskedBackend
from toolwire.turns.observers import AttemptTap
from toolwire.upstream.aiohttp_buffer import MAX_READ
from toolwire.upstream.reply import Broken, Reply, Timeouts, Upstream
from toolwire.upstream.scheduling import STEP, Alarm, give_way

CONTENT = frozenset((TextDelta, ReasoningDelta, RefusalDelta, CallStarted, CallArgs, CallEnded))
"""Events that make a turn longer."""
MAX_EMPTY_FRAMES = 50_000
"""Frames and comments in a row without content, after which the backend is not read any further. Codex sends up to
10,000 deltas of one command's output, which are not content."""
FRAMES_PER_LOOK = 64
"""Frames that are decoded before the clock is looked at."""
BYTES_PER_LOOK, USUAL_LINE = 2048, 32
"""Bytes that are split into frames before the clock is looked at, where lines are shorter than usual on average."""


Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises if this process may no longer continue the turn. Called before a backend is asked or a tool is run."""


class TurnGuard(Protocol):
    """The right of this process to continue a turn that another process could take over."""

    async def confirm(self) -> None:
        """Raise if another process may have taken over the turn."""
        ...

    async def begin_action(self) -> None:
        """Confirm, and record that something begins that must not be repeated."""
        ...


class Question(msgspec.Struct, frozen=True):
    """What one attempt asks, whom, and how its reply is read."""

    backend: AskedBackend
    request: Request
    """The request as the backend gets it, before it is written in the backend's protocol."""
    conversation: LoweredConversation
    assembly: Assembly
    upstream: Upstream
    key: str
    timeouts: Timeouts
    max_reply: int
    """Bytes of the reply that may be held: all of a plain one, or those of a stream since text was last shown."""
    batching: bool
    """Whether frames of one read that differ in their text alone are read as one."""
    confirm: Confirm | None = None
    """Called before the backend is asked; raises if it must not be."""
    taps: Sequence[AttemptTap] = ()


class Attempt:
    """One reply being read. `hold` is called with so many bytes more of a plain reply, and may refuse them."""

    def __init__(
        self,
        question: Question,
        loop: asyncio.AbstractEventLoop,
        alarm: Alarm,
        hold: Callable[[int], None] | None,
        began: float,
    ) -> None:
        self._question = question
        self.conversation = question.conversation
        self._call_ids = question.assembly.stats.call_ids
        self._loop = loop
        self._alarm = alarm
        self._hold = hold
        self._began = began  # when the turn was asked for
        self.progressed = loop.time()
        """When something was last shown of it, or content came that waits for its place."""
        self.held_bytes = 0
        """Of the reply, since text was last shown."""
        self._headers: Mapping[str, str] = {}  # of a reply that is closed
        self._opening: asyncio.Task[Reply] | None = None
        self._dialogue: Dialogue | None = None
        self._reply: Reply | None = None
        self._reader: FrameReader | LineReader | None = None
        self._plain: list[bytes] = []
        self._bytes: list[bytes] = []  # what was read and is not split into frames yet, in pieces, the last one first
        self._frames: list[Frame] = []  # those that are not decoded yet, the last one first
        self._empty = 0  # frames since the last content
        self._held: int = 0  # content that waits for its place
        self.heard_at = 0.0
        """When bytes of the reply's body came last."""
        self._taps = question.taps
        self._finishing: int = 0  # frames since the finish reason
        self._finish_over = 0.0  # when the end of the stream is no longer waited for
        self._left_open = False  # it did not come

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the reply, once they are there. A Codex worker learns its limits while it answers."""
        return self._reply.headers if self._reply is not None else self._headers

    async def read(self, until: float) -> Sequence[Event] | None:
        """The next events, of which there may be none; None if `until` comes first."""
        reply = self._reply
        try:
            if reply is None:
                return await self._open(until)
            if self._has_more:
                await give_way()
                return self._decode_more()
            data = reply.read_nowait()
            if not data:
                return await self._wait(reply, until)
            if len(data) >= MAX_READ:
                await give_way()  # there may be more
            return self._decode(data)
        except Broken as broken:
            return self._end_left_open() if self._finish_over else (TurnFailed(broken.failure),)
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)

    def read_nowait(self) -> Sequence[Event] | None:
        """The events of what has come already; None if nothing has."""
        try:
            if self._has_more:
                return self._decode_more()
            data = self._reply.read_nowait() if self._reply is not None else b""
            return self._decode(data) if data else None
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)

    def check_calls(self) -> None:
        """Raise if the turn has more calls than any model would make."""
        if len(self._call_ids) > MAX_CALLS:
            raise TooManyCalls

    def close(self) -> None:
        """Break off a reply that is not whole, which stops the model."""
        opening, self._opening = self._opening, None
        if opening is not None and not opening.cancel() and not opening.cancelled() and opening.exception() is None:
            opening.result().close()  # it had come, and nobody had looked
        if self._reply is not None:
            self._headers = self._reply.headers
            self._reply.close()
            self._reply = None
        for tap in self._taps:
            tap.close()

    def settle(self) -> None:
        """The turn is over, and its client does not know yet. A thread waits from now on, or is left."""
        if self._dialogue is not None and self._reply is not None:
            self._reply.close()

    async def finish(self) -> None:
        """The turn is over: read the reply's last bytes, so that its connection can be used again."""
        reply = self._reply
        if reply is not None and not reply.is_whole() and self.conversation.ended and not self._left_open:
            try:
                async with asyncio.timeout(1.0):
                    while await reply.read():
                        pass
            except (TimeoutError, BackendFault):
                pass
        self.close()

    # Waiting for the backend

    async def _open(self, until: float) -> Sequence[Event] | None:
        deadline = self._began + self._question.timeouts.first_byte
        try:
            if until >= deadline:
                with self._alarm.at(deadline):
                    reply = await (self._opening or self._ask())
            else:
                reply = await self._open_in_background(until)
        except TimeoutError:
            raise _too_slow("first_byte", self._question.timeouts) from None
        if reply is None:
            return None
        self._opening = None
        self._reply = reply
        kind = reply.headers.get("content-type", "")
        for tap in self._taps:
            tap.reply(reply.status, reply.headers)
        if not 200 <= reply.status < 300:
            raise BackendFault(self.conversation.read_error(reply.status, reply.headers, await self._error_body(reply)))
        if "html" in kind:
            message = "The backend answered with a web page instead of a turn."
            raise BackendFault(Failure(502, WEB_PAGE, message, retryable=True))
        if "event-stream" in kind:
            self._reader = self._new_reader()
        elif kind == JSON_LINES:
            self._reader = LineReader(min(LINE_LIMIT, self._question.max_reply))
        return ()

    def _ask(self) -> Coroutine[Any, Any, Reply]:
        asked = self.conversation.start()
        if isinstance(asked, Dialogue):
            self._dialogue = asked  # of a body nothing is kept: it may be large
        for tap in self._taps:
            tap.ask(asked, partial(self._question.upstream.headers, asked, self._question.key))
        opening = partial(self._question.upstream.open, asked, self._question.key)
        return opening() if self._question.confirm is None else _open_confirmed(self._question.confirm, opening)

    async def _open_in_background(self, until: float) -> Reply | None:
        """Open without losing the attempt when `until` comes first."""
        if self._opening is None:
            self._opening = self._loop.create_task(self._ask())
        await asyncio.wait((self._opening,), timeout=max(0.0, until - self._loop.time()))
        return self._opening.result() if self._opening.done() else None

    async def _error_body(self, reply: Reply) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(self._question.timeouts.connect):
                while len(body) < 65536 and (data := reply.read_nowait() or await reply.read()):
                    body += data
        except TimeoutError:
            pass
        for tap in self._taps:
            tap.read(body)
            tap.end()
        return body

    async def _wait(self, reply: Reply, until: float) -> Sequence[Event] | None:
        limits = self._question.timeouts
        deadline = min(
            self.heard_at + limits.idle if self.heard_at else self._began + limits.first_byte,
            self.progressed + limits.progress,
            self._began + limits.total,
        )
        finish_over = min(self._finish_over, deadline) if self._finish_over else 0.0
        first = min(deadline, until, finish_over or until)
        try:
            with self._alarm.at(first):
                data = await reply.read()
        except TimeoutError:
            now = self._loop.time()
            if finish_over and now >= finish_over:
                return self._look_once_more(reply, now)
            if now < deadline:
                return None if first == until else ()
            raise self._too_slow(now) from None
        return self._decode(data) if data else self._end()

    def _too_slow(self, now: float) -> BackendFault:
        """Which of the limits has passed."""
        limits = self._question.timeouts
        if now >= self._began + limits.total:
            return _too_slow("total", limits)
        if now >= self.progressed + limits.progress:
            return _too_slow("progress", limits)
        return _too_slow("idle" if self.heard_at else "first_byte", limits)

    def _look_once_more(self, reply: Reply, now: float) -> Sequence[Event]:
        """Nothing has come since the finish reason. What is there after all counts, unless it is a heartbeat."""
        data = reply.read_nowait()
        events = self._decode(data) if data else ()
        if self.conversation.ended or self._finish_over > now or self._has_more:
            return events
        return [*events, *self._end_left_open()]

    def _end_left_open(self) -> Sequence[Event]:
        """The turn has its finish reason, and the backend does not end its stream: this is the turn."""
        self._left_open = True
        return [Note("end_missing"), *self.conversation.end()]

    # From bytes to events

    def _decode(self, data: bytes) -> Sequence[Event]:
        self.heard_at = self._loop.time()
        self.held_bytes += len(data)
        for tap in self._taps:
            tap.read(data)
        if self.held_bytes > self._question.max_reply:
            raise ReplyTooLarge(self._question.max_reply)
        if len(self._call_ids) > MAX_CALLS:
            raise TooManyCalls
        if self._reader is None:
            if not self._plain:
                data = data.lstrip()  # some servers send blank lines while they think
            if not data:
                return ()
            if self._plain or data.startswith(b"{"):
                return self._keep_plain(data)
            self._reader = self._new_reader()
        if len(data) > BYTES_PER_LOOK and _has_short_lines(data):
            starts = range(0, len(data), BYTES_PER_LOOK)
            self._bytes = [data[start : start + BYTES_PER_LOOK] for start in starts][::-1]
            return self._decode_more()
        frames = self._reader.feed(data)
        if len(frames) > FRAMES_PER_LOOK:
            self._frames = frames[::-1]
            return self._decode_more()
        return self._converse(frames)

    @property
    def _has_more(self) -> bool:
        """Whether something that was read is not decoded yet."""
        return bool(self._frames or self._bytes)

    def _decode_more(self) -> list[Event]:
        """Decode what was read, for some milliseconds."""
        assert self._reader is not None
        out: list[Event] = []
        until = perf_counter() + STEP
        while self._has_more:
            if not self._frames:
                self._frames = self._reader.feed(self._bytes.pop())[::-1]
            frames = self._frames[-FRAMES_PER_LOOK:][::-1]
            del self._frames[-FRAMES_PER_LOOK:]
            out += self._converse(frames)
            if perf_counter() > until:
                break
        self.check_calls()
        return out

    def _new_reader(self) -> FrameReader:
        limit = min(FRAME_LIMIT, self._question.max_reply)
        return FrameReader(limit, self.conversation.delta_fields if self._question.batching else ())

    def _keep_plain(self, data: bytes) -> Sequence[Event]:
        if self._hold is not None:
            self._hold(len(data))
        self._plain.append(data)
        return self._end() if self._reply is not None and self._reply.is_whole() else ()

    def _converse(self, frames: Sequence[Frame]) -> list[Event]:
        out = decoded(self.conversation.feed, frames)
        self._count_empty(frames, out)
        if self._dialogue is not None:
            for tap in self._taps:
                tap.send(self._dialogue.outbox)
        finishing = self.conversation.finishing
        if finishing != self._finishing:
            self._finishing = finishing
            self._finish_over = self.heard_at + self._question.timeouts.after_finish if finishing else 0.0
        return out

    def _count_empty(self, frames: Sequence[Frame], events: Sequence[Event]) -> None:
        """Raise if the backend has sent too many frames without content."""
        skipped = self._reader.skipped if self._reader is not None else 0
        before, self._held = self._held, self.conversation.held
        if self._held > before:
            self._empty, self.progressed = -skipped, self.heard_at
            return
        for event in events:
            if type(event) in CONTENT and getattr(event, "text", True):
                self._empty = -skipped
                return
        self._empty += len(frames)
        if self._empty + skipped > MAX_EMPTY_FRAMES and not self.conversation.ended:
            message = f"The backend sent more than {MAX_EMPTY_FRAMES} frames in a row without content."
            raise BackendFault(Failure(502, "reply_without_content", message))

    def _end(self) -> Sequence[Event]:
        for tap in self._taps:
            tap.end()
        if self._plain:
            body, self._plain = b"".join(self._plain), []
            return self.conversation.feed_plain(body)
        frames = self._reader.end() if self._reader is not None else ()
        return [*self._converse(frames), *self.conversation.end()]


async def _open_confirmed(confirm: Confirm, opening: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
    await confirm()
    return await opening()


def _has_short_lines(data: bytes) -> bool:
    """Whether a read ends with lines that are shorter than usual."""
    lines = data.count(b"\n", -BYTES_PER_LOOK) + data.count(b"\r", -BYTES_PER_LOOK)
    return lines * USUAL_LINE > BYTES_PER_LOOK


def _too_slow(limit: str, limits: Timeouts) -> BackendFault:
    message = f"The backend was too slow: {limits.name_of(limit)} of {getattr(limits, limit):g} seconds has passed."
    return BackendFault(Failure(504, "backend_timeout", message, "timeout_error"))
