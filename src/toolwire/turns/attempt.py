"""An attempt: one request to one backend, and its reply as turn events.

Every wait for the backend has a deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol, TypeAlias

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
from toolwire.upstream.connection import MAX_READ
from toolwire.upstream.reply import Broken, Reply, Timeouts, Upstream
from toolwire.upstream.scheduling import Alarm, give_way

MAX_ERROR_BYTES = 64 * 1024
"""Maximum bytes read from an error reply."""

Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises if this process may no longer continue the turn. Called before a backend is asked or a tool is run."""


class TurnGuard(Protocol):
    """The right of this process to continue a turn that another process could take over."""

    async def confirm(self) -> None:
        """Raise if another process may have taken over the turn."""
        ...

    async def begin_action(self) -> None:
        """Confirm, and record the start of an action that must not be repeated."""
        ...


class Question(msgspec.Struct, frozen=True):
    """What an attempt needs: the backend, the conversation with it, and how its reply is read."""

    backend: AskedBackend
    request: Request
    """The request with all rules applied; the conversation encodes it."""
    conversation: LoweredConversation
    assembly: Assembly
    upstream: Upstream
    key: str
    timeouts: Timeouts
    max_reply: int
    """Maximum bytes in memory: a whole plain reply, or the part of a stream since text was last shown."""
    batching: bool
    """Whether frames of one read that differ only in their text are batched."""
    confirm: Confirm | None = None
    """Called before the request is sent; raises to prevent it."""
    taps: Sequence[AttemptTap] = ()


class Taker(Protocol):
    """Takes bytes of the reply while the task waits for them."""

    def take(self, data: bytes) -> bool:
        """Take bytes when they arrive; returns False if the task must go on."""
        ...

    def end_wait(self) -> None:
        """The task goes on, and has not read anything else yet."""
        ...


class Attempt:
    """Reads one reply. `hold` reserves memory for each part of a plain reply, and may raise."""

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
        self._began = began  # when the turn began
        self.reader = TurnReader(
            question.conversation,
            limits=ReplyLimits(question.max_reply, question.timeouts.after_finish, hold),
            batches=question.batching,
            call_ids=question.assembly.stats.call_ids,
            clock=perf_counter,
            now=loop.time(),
        )
        self._headers: Mapping[str, str] = {}  # of a closed reply
        self._opening: asyncio.Task[Reply] | None = None
        self._dialogue: Dialogue | None = None
        self._reply: Reply | None = None
        self._taps = question.taps

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the reply; empty before they arrive. Those of a Codex worker change while it answers."""
        return self._reply.headers if self._reply is not None else self._headers

    async def read(self, until: float, taker: Taker | None = None) -> Sequence[Event] | None:
        """The next events, possibly empty; None if `until` comes first.

        `taker` is given bytes that arrive during the wait, and calls `feed` with them.
        """
        reply = self._reply
        try:
            if reply is None:
                return await self._open(until)
            if self.reader.has_more:
                await give_way()
                return self.reader.feed_more()
            data = reply.read_nowait()
            if not data:
                return await self._wait(reply, until, taker)
            if len(data) >= MAX_READ:
                await give_way()  # there may be more
            return self._feed(data)
        except Broken as broken:
            return self.reader.end_left_open() if self.reader.finish_over else (TurnFailed(broken.failure),)
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)

    def read_nowait(self) -> Sequence[Event] | None:
        """The events of the bytes that have arrived; None if no bytes have."""
        try:
            if self.reader.has_more:
                return self.reader.feed_more()
            data = self._reply.read_nowait() if self._reply is not None else b""
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)
        return self.feed(data) if data else None

    def feed(self, data: bytes) -> Sequence[Event]:
        """The events of these bytes of the reply."""
        try:
            return self._feed(data)
        except BackendFault as fault:
            return (TurnFailed(fault.failure),)

    def note_passed(self, data: bytes, *, is_held: bool) -> None:
        """Note a frame that is not decoded now."""
        for tap in self._taps:
            tap.read(data)
        reader = self.reader
        reader.heard_at = self._loop.time()
        if is_held:
            reader.held_bytes += len(data)

    def close(self) -> None:
        """Close an incomplete reply, which stops the model."""
        opening, self._opening = self._opening, None
        if opening is not None and not opening.cancel() and not opening.cancelled() and opening.exception() is None:
            opening.result().close()  # the reply had arrived
        if self._reply is not None:
            self._headers = self._reply.headers
            self._reply.close()
            self._reply = None
        for tap in self._taps:
            tap.close()

    def release_thread(self) -> None:
        """Let a worker's thread wait for results, or end it, before the client learns that the turn is over."""
        if self._dialogue is not None and self._reply is not None:
            self._reply.close()

    async def finish(self) -> None:
        """Read the rest of the reply after the end of the turn, so that its connection can be reused."""
        reply = self._reply
        if reply is not None and not reply.is_whole() and self.conversation.decoder.ended and not self.reader.left_open:
            try:
                async with asyncio.timeout(1.0):
                    while await reply.read():
                        pass
            except (TimeoutError, BackendFault):
                pass
        self.close()

    # Waiting for the backend

    async def _open(self, until: float) -> Sequence[Event] | None:
        limits = self._question.timeouts
        deadline = self._began + limits.first_byte
        try:
            if until >= deadline:
                with self._alarm.at(deadline):
                    reply = await (self._opening or self._ask())
            else:  # in a task, which continues after `until`
                self._opening = self._opening or self._loop.create_task(self._ask())
                await asyncio.wait((self._opening,), timeout=max(0.0, until - self._loop.time()))
                if not self._opening.done():
                    return None
                reply = self._opening.result()
        except TimeoutError:
            raise _make_timeout("first_byte", limits) from None
        self._opening = None
        self._reply = reply
        kind = reply.headers.get("content-type", "")
        for tap in self._taps:
            tap.reply(reply.status, reply.headers)
        if not 200 <= reply.status < 300:
            raise BackendFault(self.conversation.read_error(reply.status, reply.headers, await self._read_error(reply)))
        if "html" in kind:
            message = "The backend answered with a web page instead of a turn."
            raise BackendFault(Failure(502, WEB_PAGE, message, retryable=True))
        self.reader.take_head(kind)
        return ()

    async def _ask(self) -> Reply:
        """Send the request; returns when the headers of the reply have arrived."""
        question = self._question
        opening = self.conversation.start()
        if isinstance(opening, Dialogue):
            self._dialogue = opening
        for tap in self._taps:
            tap.ask(opening, partial(question.upstream.make_headers, opening, question.key))
        if question.confirm is not None:
            await question.confirm()
        opened = question.upstream.open(opening, question.key)
        del opening  # so that the upstream can free a large body once it is written
        return await opened

    async def _read_error(self, reply: Reply) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(self._question.timeouts.connect):
                while len(body) < MAX_ERROR_BYTES and (data := reply.read_nowait() or await reply.read()):
                    body += data
        except TimeoutError:
            pass
        for tap in self._taps:
            tap.read(body)
            tap.end()
        return body

    async def _wait(self, reply: Reply, until: float, taker: Taker | None) -> Sequence[Event] | None:
        """Wait for more of the reply, until the earliest deadline."""
        limits, reader = self._question.timeouts, self.reader
        deadline = self._find_deadline()
        finish_over = min(reader.finish_over, deadline) if reader.finish_over else 0.0
        first = min(deadline, until, finish_over or until)
        try:
            with self._alarm.at(first):
                data = await (_wait_and_take(reply, taker) if taker is not None and not finish_over else reply.read())
        except TimeoutError:
            now, deadline = self._loop.time(), self._find_deadline()  # it moves with what was taken
            if finish_over and now >= finish_over:
                # The stream was left open. What has arrived since still counts, unless it is a heartbeat.
                data = reply.read_nowait()
                events = self._feed(data) if data else ()
                is_over = not (self.conversation.decoder.ended or reader.finish_over > now or reader.has_more)
                return [*events, *reader.end_left_open()] if is_over else events
            if now < deadline:
                return None if first == until else ()
            passed = "idle" if reader.heard_at else "first_byte"
            if now >= self._began + limits.total:
                passed = "total"
            elif now >= reader.progressed + limits.progress:
                passed = "progress"
            raise _make_timeout(passed, limits) from None
        if data is None:
            return ()
        return self._feed(data) if data else self._end()

    def _find_deadline(self) -> float:
        """The time at which the backend is too slow."""
        limits, reader = self._question.timeouts, self.reader
        quiet_until = reader.heard_at + limits.idle if reader.heard_at else self._began + limits.first_byte
        return min(quiet_until, reader.progressed + limits.progress, self._began + limits.total)

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


async def _wait_and_take(reply: Reply, taker: Taker) -> bytes | None:
    try:
        return await reply.read(taker.take)
    finally:
        taker.end_wait()


def _make_timeout(limit: str, limits: Timeouts) -> BackendFault:
    message = f"The backend was too slow: {limits.name_of(limit)} of {getattr(limits, limit):g} seconds has passed."
    return BackendFault(Failure(504, "backend_timeout", message, "timeout_error"))
