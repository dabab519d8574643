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
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import Event, TurnFailed
from toolwire.core.request import Request
from toolwire.reader import ReplyLimits, TurnReader
from toolwire.turns.explain import WEB_PAGE, AskedBackend
from toolwire.turns.observers import AttemptTap
from toolwire.upstream.aiohttp_buffer import MAX_READ
from toolwire.upstream.reply import Broken, Reply, Timeouts, Upstream
from toolwire.upstream.scheduling import Alarm, give_way

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
        self._loop = loop
        self._alarm = alarm
        self._began = began  # when the turn was asked for
        self.reader = TurnReader(
            question.conversation,
            limits=ReplyLimits(question.max_reply, question.timeouts.after_finish, hold),
            batches=question.batching,
            call_ids=question.assembly.stats.call_ids,
            clock=perf_counter,
            now=loop.time(),
        )
        self._headers: Mapping[str, str] = {}  # of a reply that is closed
        self._opening: asyncio.Task[Reply] | None = None
        self._dialogue: Dialogue | None = None
        self._reply: Reply | None = None
        self._taps = question.taps

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
            if self.reader.has_more:
                await give_way()
                return self.reader.feed_more()
            data = reply.read_nowait()
            if not data:
                return await self._wait(reply, until)
            if len(data) >= MAX_READ:
                await give_way()  # there may be more
            return self._feed(data)
        except Broken as broken:
            return self.reader.end_left_open() if self.reader.finish_over else (TurnFailed(broken.failure),)
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)

    def read_nowait(self) -> Sequence[Event] | None:
        """The events of what has come already; None if nothing has."""
        try:
            if self.reader.has_more:
                return self.reader.feed_more()
            data = self._reply.read_nowait() if self._reply is not None else b""
            return self._feed(data) if data else None
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)

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
        if reply is not None and not reply.is_whole() and self.conversation.ended and not self.reader.left_open:
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
        self.reader.take_head(kind)
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
        limits, reader = self._question.timeouts, self.reader
        deadline = min(
            reader.heard_at + limits.idle if reader.heard_at else self._began + limits.first_byte,
            reader.progressed + limits.progress,
            self._began + limits.total,
        )
        finish_over = min(reader.finish_over, deadline) if reader.finish_over else 0.0
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
        return self._feed(data) if data else self._end()

    def _too_slow(self, now: float) -> BackendFault:
        """Which of the limits has passed."""
        limits = self._question.timeouts
        if now >= self._began + limits.total:
            return _too_slow("total", limits)
        if now >= self.reader.progressed + limits.progress:
            return _too_slow("progress", limits)
        return _too_slow("idle" if self.reader.heard_at else "first_byte", limits)

    def _look_once_more(self, reply: Reply, now: float) -> Sequence[Event]:
        """Nothing has come since the finish reason. What is there after all counts, unless it is a heartbeat."""
        data = reply.read_nowait()
        events = self._feed(data) if data else ()
        if self.conversation.ended or self.reader.finish_over > now or self.reader.has_more:
            return events
        return [*events, *self.reader.end_left_open()]

    def _feed(self, data: bytes) -> Sequence[Event]:
        for tap in self._taps:
            tap.read(data)
        events = self.reader.feed(data, self._loop.time())
        if self._dialogue is not None:
            for tap in self._taps:
                tap.send(self._dialogue.outbox)
        elif not events and self.reader.is_plain and self._reply is not None and self._reply.is_whole():
            return self._end()
        return events

    def _end(self) -> Sequence[Event]:
        for tap in self._taps:
            tap.end()
        return self.reader.end()


async def _open_confirmed(confirm: Confirm, opening: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
    await confirm()
    return await opening()


def _too_slow(limit: str, limits: Timeouts) -> BackendFault:
    message = f"The backend was too slow: {limits.name_of(limit)} of {getattr(limits, limit):g} seconds has passed."
    return BackendFault(Failure(504, "backend_timeout", message, "timeout_error"))
