"""A run: one turn being produced. It owns the backend's reply and the policies, and asks again where that is allowed.

`read(until)` gives the next events, or nothing when `until` has come and nothing was there. Every wait for the backend
has a deadline. Until the first event with content a failure may be answered by asking again; afterwards never.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from toolwire.assembly import Assembly
from toolwire.core.backend import Conversation
from toolwire.core.errors import BackendFault, Failure, ReplyTooLarge
from toolwire.core.events import (
    CallArgs,
    CallStarted,
    Event,
    Note,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.flow import in_pieces
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.jsonrpc import LIMIT as LINE_LIMIT
from toolwire.core.order import TurnOrder
from toolwire.core.sse import DEFAULT_LIMIT as FRAME_LIMIT
from toolwire.core.sse import Frame, FrameReader
from toolwire.runs.retries import RetryBudget
from toolwire.transport.alarm import Alarm
from toolwire.transport.drain import MOST as MUCH
from toolwire.transport.fairness import give_way
from toolwire.transport.pauses import spread
from toolwire.transport.record import Recorder
from toolwire.transport.reply import Broken, Reply, Timeouts, Upstream

CONTENT = (TextDelta, ReasoningDelta, RefusalDelta, CallStarted, TurnEnded)
"""Events that show something to the client."""

LONGEST_PAUSE = 5.0
"""Seconds: a backend that asks for a longer pause is not asked again, the client is told instead."""

HELD = frozenset((CallStarted, CallArgs, ReasoningDelta))
"""Events that are kept until their call or their reasoning ends, though they are shown."""

MANY_CALLS = 10_000
"""Calls of one turn from which on the rest of it counts as held: each of them is remembered until its end."""


class Plan(msgspec.Struct, frozen=True):
    """All a run needs to know."""

    converse: Callable[[], Conversation]
    assemble: Callable[[Conversation], Assembly]
    upstream: Upstream
    key: str
    timeouts: Timeouts
    budget: RetryBudget
    """What is left of the backend's retries, for all requests to it."""
    retries: int = 2
    grace: float = 0.3
    recorder: Recorder | None = None
    max_reply: int = 64_000_000
    """Bytes of the reply that may be held: all of a plain one, or those of a stream since text was last shown."""
    instead: "Callable[[], Plan] | None" = None
    """The plan for the next backend that serves the model, when this one fails before anything was shown."""
    without: "Callable[[Failure], tuple[Plan, Sequence[Note]] | None] | None" = None
    """The plan without the part of the request that the backend refuses with this failure, if that is what it does."""


class AnyRun(Protocol):
    """What a delivery needs of a run."""

    @property
    def finished(self) -> bool: ...

    @property
    def assembly(self) -> Assembly: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, until: float) -> Sequence[Event]: ...

    def commit(self) -> Sequence[Event]: ...

    def close(self) -> None: ...

    async def finish(self) -> None: ...


class Run:
    """One turn, from the opening to its end."""

    def __init__(
        self,
        plan: Plan,
        loop: asyncio.AbstractEventLoop,
        alarm: Alarm,
        hold: Callable[[int], None] | None = None,
    ) -> None:
        """`hold` hears of so many bytes more of a plain reply, and may refuse them."""
        self._plan = plan
        self._hold = hold
        self._loop = loop
        self._alarm = alarm
        self._began = self._progressed = self._loop.time()
        self._attempts = 0
        self._retry_at = 0.0
        self._shown = False  # content went out: from here on no new attempt
        self._notes: list[Note] = []
        self._opening: asyncio.Task[Reply] | None = None
        self.finished = False
        self._prepare()

    def _prepare(self) -> None:
        """Everything that belongs to one attempt."""
        plan = self._plan
        self.conversation = plan.converse()
        self.assembly = plan.assemble(self.conversation)
        for note in self._notes:
            self.assembly.tally.note(note)
        self._reply: Reply | None = None
        self.headers: Mapping[str, str] = {}  # of the reply, once they are there
        self._reader: FrameReader | LineReader | None = None
        self._plain: list[bytes] = []
        self._held_bytes = 0  # of the reply, since text was last shown
        self._heard_at = 0.0  # when bytes of the reply's body came last
        self._order = TurnOrder()
        self._held: list[Event] = []  # events before the first content
        self._burst_over = 0.0  # when a burst of calls counts as over
        self._burst_calls = 0
        self._looked_again = False
        self._finishing: int = 0  # frames since the finish reason
        self._finish_over = 0.0  # when the end of the stream is no longer waited for
        self._left_open = False  # it did not come

    async def read(self, until: float) -> Sequence[Event]:
        """The next events, or none if `until` comes first. After the last ones `finished` is set."""
        while not self.finished:
            try:
                if self._reply is None or self._burst_over:
                    events = await self._step(until)
                else:
                    data = self._reply.read_nowait()
                    if len(data) >= MUCH:
                        await give_way()  # there may be more
                    events = self._decode(data) if data else await self._wait(self._reply, until)
            except Broken as broken:
                events = self._end_left_open() if self._finish_over else (TurnFailed(broken.failure),)
            except BackendFault as fault:
                events = (TurnFailed(fault.failure),)
            if events is None:
                return ()
            out = self._settle(events)
            if out:
                return out
        return ()

    def commit(self) -> Sequence[Event]:
        """The client has an answer: from here on no new attempt. Returns the events that waited for content."""
        self._shown = True
        self._progressed = self._loop.time()
        held, self._held = self._held, []
        return held

    def close(self) -> None:
        """Stop at once. A reply that is not whole is broken off, which stops the model."""
        self.finished = True
        self._alarm.close()
        self._leave()
        if self._plan.recorder is not None:
            self._plan.recorder.close()

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

    def _leave(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and not opening.cancel() and not opening.cancelled() and opening.exception() is None:
            opening.result().close()  # it had come, and nobody had looked
        if self._reply is not None:
            self._reply.close()
            self._reply = None

    # What comes in goes out

    def _settle(self, events: Sequence[Event]) -> Sequence[Event]:
        """Ask again if that is due; otherwise pass the events on, once there is something to show."""
        if not self._shown:
            failure = early_failure(events)
            if failure is not None and (self._asks_without(failure) or self._asks_again(failure)):
                return ()
        feed, see = self.assembly.policies.feed, self._order.see
        out: list[Event] = []
        for event in events:
            for passed in feed(event):
                see(passed)
                out.append(passed)
        self.finished = self.assembly.policies.closed
        self._watch_burst()
        if self._shown:
            if out:
                self._progressed = self._heard_at
                if type(out[-1]) not in HELD and self.assembly.tally.call_count < MANY_CALLS:
                    self._held_bytes = 0
            return out
        self._held += out
        if not self.finished and not any(isinstance(event, CONTENT) for event in out):
            return ()
        return self.commit()

    def _asks_without(self, failure: Failure) -> bool:
        found = self._plan.without(failure) if self._plan.without is not None else None
        if found is None:
            return False
        self._leave()
        self._plan, notes = found
        self._notes += notes
        self._attempts = 0
        self._prepare()
        return True

    def _asks_again(self, failure: Failure) -> bool:
        pause = _pause(failure, self._attempts)
        if not failure.retryable:
            return False
        if pause is None or self._attempts > self._plan.retries:
            return self._goes_elsewhere(failure)
        if not self._plan.budget.spend(self._loop.time()):
            withheld = Note("retry_withheld", failure.code)
            self._notes.append(withheld)
            self.assembly.tally.note(withheld)
            return self._goes_elsewhere(failure)
        self._leave()
        self._notes.append(Note("retried", failure.code))
        self._retry_at = self._progressed = self._loop.time() + pause
        self._prepare()
        return True

    def _goes_elsewhere(self, failure: Failure) -> bool:
        if self._plan.instead is None:
            return False
        self._leave()
        self._notes.append(Note("failed_over", failure.code))
        self._plan = self._plan.instead()
        self._attempts = 0
        self._progressed = self._loop.time()
        self._prepare()
        return True

    def _watch_burst(self) -> None:
        burst = self.assembly.burst
        if burst is None or not burst.waiting:
            self._burst_over = 0.0
        elif not self._burst_over or burst.calls != self._burst_calls:
            self._burst_over = self._loop.time() + self._plan.grace
            self._burst_calls = burst.calls
            self._looked_again = False

    # Waiting for the backend

    async def _step(self, until: float) -> Sequence[Event] | None:
        """One wait that is not simply for bytes, and what it brought; None if `until` came first."""
        if self._retry_at:
            await asyncio.sleep(max(0.0, min(until, self._retry_at) - self._loop.time()))
            if until < self._retry_at:
                return None
            self._retry_at = 0.0
        reply = self._reply
        if reply is None:
            return await self._open(until)
        if self._loop.time() < self._burst_over:
            data = reply.read_nowait()
            return self._decode(data) if data else await self._wait(reply, until)
        data = b"" if self._looked_again else reply.read_nowait()
        if not data:
            return (TurnEnded(),)
        self._looked_again = True  # a slow client must not cost a call that is already here
        return self._decode(data)

    async def _open(self, until: float) -> Sequence[Event] | None:
        deadline = self._began + self._plan.timeouts.first_byte
        try:
            if until >= deadline:
                with self._alarm.at(deadline):
                    reply = await (self._opening or self._ask())
            else:
                reply = await self._open_in_background(until)
        except TimeoutError:
            raise _too_slow("first_byte", self._plan.timeouts.first_byte) from None
        if reply is None:
            return None
        self._opening = None
        self._reply = reply
        self.headers = reply.headers
        kind = reply.headers.get("content-type", "")
        if self._plan.recorder is not None:
            self._plan.recorder.start(self._loop.time(), reply.status, kind)
        if not 200 <= reply.status < 300:
            raise BackendFault(self.conversation.refused(reply.status, reply.headers, await self._error_body(reply)))
        if "html" in kind:
            message = "The backend answered with a web page instead of a turn."
            raise BackendFault(Failure(502, "bad_reply", message, retryable=True))
        if "event-stream" in kind:
            self._reader = self._new_reader()
        elif kind == JSON_LINES:
            self._reader = LineReader(min(LINE_LIMIT, self._plan.max_reply))
        return ()

    def _ask(self) -> Coroutine[Any, Any, Reply]:
        if not self._attempts:
            self._plan.budget.earn()
        self._attempts += 1
        return self._plan.upstream.open(self.conversation.start(), self._plan.key)

    async def _open_in_background(self, until: float) -> Reply | None:
        """Open without losing the attempt when `until` comes first."""
        if self._opening is None:
            self._opening = self._loop.create_task(self._ask())
        await asyncio.wait((self._opening,), timeout=max(0.0, until - self._loop.time()))
        return self._opening.result() if self._opening.done() else None

    async def _error_body(self, reply: Reply) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(self._plan.timeouts.connect):
                while len(body) < 65536 and (data := reply.read_nowait() or await reply.read()):
                    body += data
        except TimeoutError:
            pass
        if self._plan.recorder is not None:
            self._plan.recorder.body(self._loop.time(), body)
        return body

    async def _wait(self, reply: Reply, until: float) -> Sequence[Event] | None:
        limits = self._plan.timeouts
        deadline = min(
            self._heard_at + limits.idle if self._heard_at else self._began + limits.first_byte,
            self._progressed + limits.progress,
            self._began + limits.total,
        )
        finish_over = min(self._finish_over, deadline) if self._finish_over else 0.0
        first = min(deadline, until, self._burst_over or until, finish_over or until)
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
        limits = self._plan.timeouts
        if now >= self._began + limits.total:
            return _too_slow("total", limits.total)
        if now >= self._progressed + limits.progress:
            return _too_slow("progress", limits.progress)
        return _too_slow("idle", limits.idle) if self._heard_at else _too_slow("first_byte", limits.first_byte)

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
        self._heard_at = self._loop.time()
        self._held_bytes += len(data)
        if self._held_bytes > self._plan.max_reply:
            raise ReplyTooLarge(self._plan.max_reply)
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
        """A recording keeps every frame by itself."""
        limit = min(FRAME_LIMIT, self._plan.max_reply)
        return FrameReader(limit, self.conversation.flowing if self._plan.recorder is None else ())

    def _keep_plain(self, data: bytes) -> Sequence[Event]:
        if self._hold is not None:
            self._hold(len(data))
        self._plain.append(data)
        return self._end() if self._reply is not None and self._reply.is_whole() else ()

    def _converse(self, frames: Sequence[Frame]) -> list[Event]:
        recorder = self._plan.recorder
        if recorder is not None:
            for frame in frames:
                recorder.frame(self._loop.time(), frame)
        feed = self.conversation.feed
        out: list[Event] = []
        for frame in frames:
            out += feed(frame) if frame.pieces is None else in_pieces(feed(frame), frame)
        finishing = self.conversation.finishing
        if finishing != self._finishing:
            self._finishing = finishing
            self._finish_over = self._heard_at + self._plan.timeouts.after_finish if finishing else 0.0
        return out

    def _end(self) -> Sequence[Event]:
        if self._plain:
            body, self._plain = b"".join(self._plain), []
            if self._plan.recorder is not None:
                self._plan.recorder.body(self._loop.time(), body)
            return self.conversation.feed_plain(body)
        frames = self._reader.end() if self._reader is not None else ()
        return [*self._converse(frames), *self.conversation.end()]


def early_failure(events: Sequence[Event]) -> Failure | None:
    """The failure among these events, if it comes before anything to show."""
    for event in events:
        if isinstance(event, TurnFailed):
            return event.failure
        if isinstance(event, CONTENT):
            return None
    return None


def _pause(failure: Failure, attempts: int) -> float | None:
    """Seconds before the next attempt, or None if the backend asks for more than we wait."""
    asked = failure.pause(time.time())
    if asked is None:
        return 0.25 * 2**attempts * (0.75 + random.random() / 2)
    return spread(asked) if asked <= LONGEST_PAUSE else None


def _too_slow(name: str, seconds: float) -> BackendFault:
    message = f"The backend was too slow: timeouts.{name} of {seconds:g} seconds has passed."
    return BackendFault(Failure(504, "backend_timeout", message, "timeout_error"))
