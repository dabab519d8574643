"""An attempt: one reply of one backend, from the question to its last byte, as turn events.

Every wait for the backend has a deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from toolwire.assembly import Assembly
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Dialogue, Opening
from toolwire.core.delta_batch import decoded
from toolwire.core.errors import MAX_CALLS, BackendFault, Failure, ReplyTooLarge, TooManyCalls
from toolwire.core.events import Event, Note, TurnFailed
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.jsonrpc import LIMIT as LINE_LIMIT
from toolwire.core.request import Request
from toolwire.core.sse import DEFAULT_LIMIT as FRAME_LIMIT
from toolwire.core.sse import Frame, FrameReader
from toolwire.turns.explain import WEB_PAGE, AskedBackend
from toolwire.turns.trace import AttemptTrace
from toolwire.upstream.alarm import Alarm
from toolwire.upstream.drain import MOST as MUCH
from toolwire.upstream.fairness import give_way
from toolwire.upstream.record import Recorder
from toolwire.upstream.reply import Broken, Reply, Timeouts, Upstream

Starting: TypeAlias = Callable[[], Awaitable[None]]
"""Notes down that something begins which must not be done twice; it does not begin if this raises."""


class Question(msgspec.Struct, frozen=True):
    """What one attempt asks, whom, and how its reply is read."""

    backend: AskedBackend
    request: Request
    """The request as the backend gets it, before it is written in the backend's protocol."""
    conversation: LoweredConversation
    assembly: Assembly
    upstream: Upstream
    key: str
    recorder: Recorder | None
    timeouts: Timeouts
    max_reply: int
    """Bytes of the reply that may be held: all of a plain one, or those of a stream since text was last shown."""
    batching: bool
    """Whether frames of one read that differ in their text alone are read as one."""
    starting: Starting | None = None
    """Called before the backend is asked, if what it does then must not be done twice."""
    trace: AttemptTrace | None = None
    """For whoever watches."""


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
        """When something was last shown of it."""
        self.held_bytes = 0
        """Of the reply, since text was last shown."""
        self.headers: Mapping[str, str] = {}
        """Of the reply, once they are there."""
        self._opening: asyncio.Task[Reply] | None = None
        self._asked: Opening | None = None
        self._reply: Reply | None = None
        self._reader: FrameReader | LineReader | None = None
        self._plain: list[bytes] = []
        self.heard_at = 0.0
        """When bytes of the reply's body came last."""
        self._trace = question.trace
        self._finishing: int = 0  # frames since the finish reason
        self._finish_over = 0.0  # when the end of the stream is no longer waited for
        self._left_open = False  # it did not come

    async def read(self, until: float) -> Sequence[Event] | None:
        """The next events, of which there may be none; None if `until` comes first."""
        reply = self._reply
        try:
            if reply is None:
                return await self._open(until)
            data = reply.read_nowait()
            if not data:
                return await self._wait(reply, until)
            if len(data) >= MUCH:
                await give_way()  # there may be more
            return self._decode(data)
        except Broken as broken:
            return self._end_left_open() if self._finish_over else (TurnFailed(broken.failure),)
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)

    def read_nowait(self) -> Sequence[Event] | None:
        """The events of what has come already; None if nothing has."""
        try:
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
            self._reply.close()
            self._reply = None
        if self._question.recorder is not None:
            self._question.recorder.close()

    def settle(self) -> None:
        """The turn is over, and its client does not know yet. A thread waits from now on, or is left."""
        if isinstance(self._asked, Dialogue) and self._reply is not None:
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
            raise _too_slow("first_byte", self._question.timeouts.first_byte) from None
        if reply is None:
            return None
        self._opening = None
        self._reply = reply
        self.headers = reply.headers
        kind = reply.headers.get("content-type", "")
        if self._trace is not None:
            self._trace.reply(reply.status, reply.headers)
        if self._question.recorder is not None:
            self._question.recorder.start(self._loop.time(), reply.status, kind)
        if not 200 <= reply.status < 300:
            raise BackendFault(self.conversation.refused(reply.status, reply.headers, await self._error_body(reply)))
        if "html" in kind:
            message = "The backend answered with a web page instead of a turn."
            raise BackendFault(Failure(502, WEB_PAGE, message, retryable=True))
        if "event-stream" in kind:
            self._reader = self._new_reader()
        elif kind == JSON_LINES:
            self._reader = LineReader(min(LINE_LIMIT, self._question.max_reply))
        return ()

    def _ask(self) -> Coroutine[Any, Any, Reply]:
        self._asked = self.conversation.start()
        if self._question.recorder is not None:
            self._question.recorder.ask(self._asked)
        if self._trace is not None:
            self._trace.ask(self._asked)
            if self._trace.turn.keeps:
                self._trace.sent_headers = self._question.upstream.headers(self._asked, self._question.key)
        opening = partial(self._question.upstream.open, self._asked, self._question.key)
        return opening() if self._question.starting is None else _noted(self._question.starting, opening)

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
        if self._question.recorder is not None:
            self._question.recorder.body(self._loop.time(), body)
        if self._trace is not None:
            self._trace.read(body)
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
            return _too_slow("total", limits.total)
        if now >= self.progressed + limits.progress:
            return _too_slow("progress", limits.progress)
        return _too_slow("idle", limits.idle) if self.heard_at else _too_slow("first_byte", limits.first_byte)

    def _look_once_more(self, reply: Reply, now: float) -> Sequence[Event]:
        """Nothing has come since the finish reason. What is there after all counts, unless it is a heartbeat."""
        data = reply.read_nowait()
        events = self._decode(data) if data else ()
        if self.conversation.ended or self._finish_over > now:
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
        if self._trace is not None:
            self._trace.read(data)
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
        return self._converse(self._reader.feed(data))

    def _new_reader(self) -> FrameReader:
        limit = min(FRAME_LIMIT, self._question.max_reply)
        return FrameReader(limit, self.conversation.delta_fields if self._question.batching else ())

    def _keep_plain(self, data: bytes) -> Sequence[Event]:
        if self._hold is not None:
            self._hold(len(data))
        self._plain.append(data)
        return self._end() if self._reply is not None and self._reply.is_whole() else ()

    def _converse(self, frames: Sequence[Frame]) -> list[Event]:
        recorder = self._question.recorder
        if recorder is not None:
            for frame in frames:
                recorder.frame(self._loop.time(), frame)
        out = decoded(self.conversation.feed, frames)
        if isinstance(self._asked, Dialogue):
            if recorder is not None:
                recorder.answer(self._loop.time(), self._asked.outbox)
            if self._trace is not None:
                self._trace.answer(self._asked.outbox)
        finishing = self.conversation.finishing
        if finishing != self._finishing:
            self._finishing = finishing
            self._finish_over = self.heard_at + self._question.timeouts.after_finish if finishing else 0.0
        return out

    def _end(self) -> Sequence[Event]:
        if self._plain:
            body, self._plain = b"".join(self._plain), []
            if self._question.recorder is not None:
                self._question.recorder.body(self._loop.time(), body)
            return self.conversation.feed_plain(body)
        frames = self._reader.end() if self._reader is not None else ()
        return [*self._converse(frames), *self.conversation.end()]


async def _noted(starting: Starting, opening: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
    await starting()
    return await opening()


def _too_slow(name: str, seconds: float) -> BackendFault:
    message = f"The backend was too slow: timeouts.{name} of {seconds:g} seconds has passed."
    return BackendFault(Failure(504, "backend_timeout", message, "timeout_error"))
