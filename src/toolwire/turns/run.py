"""A run: one turn being produced, and what everybody reads its events from.

It goes through attempts until one shows something to the client, which is the commit: until then a failure may be
answered by another attempt, afterwards never. `read(until)` gives the next events, or none when `until` has come.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import perf_counter

from toolwire.backends.lowered import LoweredConversation
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import (
    CallArgs,
    CallStarted,
    Event,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.order import TurnOrder
from toolwire.turns.attempt import Attempt, Question
from toolwire.turns.explain import explained
from toolwire.turns.prepare import Attempts, Job
from toolwire.upstream.scheduling import STEP, Alarm, give_way

CONTENT = (TextDelta, ReasoningDelta, RefusalDelta, CallStarted, TurnEnded)
"""Events that show something to the client."""

HELD = frozenset((CallStarted, CallArgs, ReasoningDelta))
"""Events that are kept until their call or their reasoning ends, though they are shown."""

MANY_EVENTS = 400
"""Events of one read that are passed on at once. More of them are passed on in parts of this size, and other tasks run
in between once that takes long."""


class Run:
    """One turn, from the question to its end. `hold` is called with so many bytes more of a plain reply."""

    def __init__(
        self,
        job: Job,
        loop: asyncio.AbstractEventLoop,
        alarm: Alarm,
        hold: Callable[[int], None] | None = None,
    ) -> None:
        self._loop = loop
        self._alarm = alarm
        self._hold = hold
        self._began = loop.time()
        self._grace = job.options.rules.stop_after_grace_ms / 1000
        self._retry_at = 0.0
        self._shown = False  # content went out: from here on no new attempt
        self.finished = False
        self._attempts = Attempts(job)
        self._start(job.first)

    def _start(self, question: Question) -> None:
        """Make an attempt."""
        self._asked = question.backend
        self.backend = question.backend.name
        self.assembly = question.assembly
        self._attempt = Attempt(question, self._loop, self._alarm, self._hold, self._began)
        self._order = TurnOrder()
        self._held: list[Event] = []  # events before the first content
        self._burst_over = 0.0  # when a burst of calls counts as over
        self._burst_calls = 0
        self._looked_again = False
        self._ahead: Iterator[Event] | None = None  # events that were too many to be passed on at once
        self._gives_way_at = 0.0  # while they are passed on

    @property
    def conversation(self) -> LoweredConversation:
        """The backend's side of the attempt that is being made."""
        return self._attempt.conversation

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the reply, once they are there."""
        return self._attempt.headers

    async def read(self, until: float) -> Sequence[Event]:
        """The next events, or none if `until` comes first. After the last ones `finished` is set."""
        while not self.finished:
            if self._ahead is not None:
                events = await self._next_part(self._ahead)
            elif self._burst_over or self._retry_at:
                events = await self._step(until)
            else:
                events = await self._attempt.read(until)
            if events is None:
                return ()
            if len(events) > MANY_EVENTS:
                self._ahead = iter(events)
                continue
            out = self._settle(events)
            if out:
                return out
        return ()

    def commit(self) -> Sequence[Event]:
        """The client has an answer: from here on no new attempt. Returns the events that waited for content."""
        self._shown = True
        self._attempt.reader.progressed = self._loop.time()
        held, self._held = self._held, []
        return held

    def close(self) -> None:
        """Stop at once. A reply that is not whole is broken off, which stops the model."""
        self.finished = True
        self._alarm.close()
        self._attempt.close()

    async def finish(self) -> None:
        """The turn is over: read the reply's last bytes, so that its connection can be used again."""
        await self._attempt.finish()
        self.close()

    async def _next_part(self, ahead: Iterator[Event]) -> Sequence[Event]:
        """Some more of the events that were too many at once."""
        if perf_counter() > self._gives_way_at:
            await give_way()
            self._gives_way_at = perf_counter() + STEP
        try:
            self._attempt.reader.check_calls()
        except BackendFault as fault:
            self._ahead = None
            return (TurnFailed(fault.failure),)
        part = [*islice(ahead, MANY_EVENTS)]
        if len(part) < MANY_EVENTS:
            self._ahead = None
        return part

    async def _step(self, until: float) -> Sequence[Event] | None:
        """One wait that is not simply for the backend, and what it brought; None if `until` came first."""
        if self._retry_at:
            await asyncio.sleep(max(0.0, min(until, self._retry_at) - self._loop.time()))
            if until < self._retry_at:
                return None
            self._retry_at = 0.0
            return ()
        if self._loop.time() < self._burst_over:
            events = await self._attempt.read(min(until, self._burst_over))
            return events if events is not None or until < self._burst_over else ()
        events = None if self._looked_again else self._attempt.read_nowait()
        if events is None:
            return (TurnEnded(),)
        self._looked_again = True  # a slow client must not cost a call that is already here
        return events

    def _settle(self, events: Sequence[Event]) -> Sequence[Event]:
        """Make another attempt if that is due; otherwise pass the events on, once there is something to show."""
        if not self._shown:
            failure = early_failure(events)
            if failure is not None and self._is_tried_again(failure):
                return ()
        if events and isinstance(events[-1], TurnFailed):
            events = [*events[:-1], TurnFailed(explained(events[-1].failure, self._asked))]
        policies = self.assembly.policies
        out = policies.feed_all(events)
        self._order.see(out)
        self.finished = policies.closed
        if self.finished:
            self._attempt.settle()
        if self.assembly.burst is not None:
            self._watch_burst()
        if self._shown:
            if out:
                reader = self._attempt.reader
                reader.progressed = reader.heard_at
                if type(out[-1]) not in HELD:
                    reader.held_bytes = 0
            return out
        self._held += out
        if not self.finished and not any(isinstance(event, CONTENT) for event in out):
            return ()
        return self.commit()

    def _is_tried_again(self, failure: Failure) -> bool:
        now = self._loop.time()
        question = self._attempts.after(failure, now)
        if question is None:
            return False
        self._attempt.close()
        self._start(question)
        if self._attempts.pause:
            self._retry_at = self._attempt.reader.progressed = now + self._attempts.pause
        return True

    def _watch_burst(self) -> None:
        burst = self.assembly.burst
        if burst is None or not burst.waiting:
            self._burst_over = 0.0
        elif not self._burst_over or burst.calls != self._burst_calls:
            self._burst_over = self._loop.time() + self._grace
            self._burst_calls = burst.calls
            self._looked_again = False


def early_failure(events: Sequence[Event]) -> Failure | None:
    """The failure among these events, if it comes before anything to show."""
    for event in events:
        if isinstance(event, TurnFailed):
            return event.failure
        if isinstance(event, CONTENT):
            return None
    return None
