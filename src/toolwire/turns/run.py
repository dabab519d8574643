"""A run: the production of one turn, and the source of its events.

It makes attempts until one produces visible output, which is the commit. Before the commit a failure may lead to
another attempt; afterwards it ends the turn.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import perf_counter

import msgspec

from toolwire.backends.lowered import LoweredConversation
from toolwire.core.batch import SAMPLE_PADDING, SAMPLE_TEXT
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
from toolwire.core.lane import BACKEND_NUMBER, Lane, make_lane
from toolwire.core.order import TurnOrder
from toolwire.core.sse import Frame
from toolwire.turns.attempt import Attempt, Question
from toolwire.turns.explain import explain_failure
from toolwire.turns.prepare import Attempts, Job
from toolwire.turns.source import Listener
from toolwire.upstream.scheduling import STEP, Alarm, give_way

REPEATED = (TextDelta, ReasoningDelta, CallArgs)
"""Events that may come from frames that differ in their text alone."""

MAX_IDLE_LANES = 4
"""Lanes that may be opened in a row although nothing passes."""

VISIBLE = (TextDelta, ReasoningDelta, RefusalDelta, CallStarted, TurnEnded)
"""Events that the client sees, and that commit the run."""

HELD = frozenset((CallStarted, CallArgs, ReasoningDelta))
"""Visible events that stay in memory until their call or their reasoning ends."""

MAX_EVENTS_AT_ONCE = 400
"""Larger reads are passed on in slices of this size so that other tasks can run."""


class Run:
    """Produces one turn. `hold` reserves memory for each part of a plain reply, and may raise."""

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
        self._is_committed = False
        self.finished = False
        self._listener: Listener | None = None  # gets events while `read` waits
        self._is_stopped = False  # whether it leaves the rest to the task
        self._lane: Lane | None = None
        self._lanes_left = MAX_IDLE_LANES
        self._lane_is_held = False  # whether what passes counts as held
        self._error: Exception | None = None  # of `take`, for `read`
        self._attempts = Attempts(job)
        self._start(job.first)

    def _start(self, question: Question) -> None:
        """Begin an attempt."""
        self._asked = question.backend
        self.backend = question.backend.name
        self.assembly = question.assembly
        self._attempt = Attempt(question, self._loop, self._alarm, self._hold, self._began)
        self._order = TurnOrder()
        self._uncommitted: list[Event] = []  # events before the first visible one
        self._burst_over = 0.0  # when a burst of calls counts as over
        self._burst_calls = 0
        self._looked_again = False
        self._rest: Iterator[Event] | None = None  # of a read with too many events
        self._gives_way_at = 0.0  # while the rest is passed on

    @property
    def conversation(self) -> LoweredConversation:
        """The conversation of the current attempt."""
        return self._attempt.conversation

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the reply; empty before they arrive."""
        return self._attempt.headers

    async def read(self, until: float, listener: Listener | None = None) -> Sequence[Event]:
        """The next events, or none if `until` comes first. Sets `finished` with the last events."""
        self._listener, self._is_stopped = listener, False
        while not self.finished:
            if self._rest is not None:
                events = await self._next_slice(self._rest)
            elif self._burst_over or self._retry_at:
                events = await self._wait(until)
            else:
                events = await self._attempt.read(until, self if listener is not None and self._is_committed else None)
                if self._error is not None:
                    raise self._error
            if events is None or self._is_stopped:
                return ()
            if len(events) > MAX_EVENTS_AT_ONCE:
                self._rest = iter(events)
                continue
            out = self._process(events)
            if out:
                return out
        return ()

    def take(self, data: bytes) -> bool:
        """Process and show what these bytes cause, while `read` waits; returns False if `read` must go on."""
        listener, reader = self._listener, self._attempt.reader
        assert listener is not None
        try:
            if self._lane is not None:
                if self._pass(self._lane, data, listener):
                    return self._error is None
                self.end_wait()
                if self._error is not None:
                    return False
            events = self._attempt.feed(data)
            if len(events) > MAX_EVENTS_AT_ONCE:
                self._rest = iter(events)
                return False
            out = self._process(events)
            self._is_stopped = bool(out) and not listener.show(out)
            if self._is_stopped or self._burst_over or reader.finish_over or reader.has_more:
                return False
            if len(events) == len(out) == 1 and out[0] is events[0] and isinstance(out[0], REPEATED):
                self._open_lane(data, out[0], listener)
        except Exception as error:  # noqa: BLE001 - it must not reach the event loop
            self._error = error
        return self._error is None

    # The lane

    def _open_lane(self, data: bytes, delta: TextDelta | ReasoningDelta | CallArgs, listener: Listener) -> None:
        """Let frames like this one, which led to this delta alone, pass by the stages, if all of them allow that."""
        checks = self.assembly.policies.find_checks(delta) if self._lanes_left else None
        found = self._attempt.reader.find_repetition(data, delta) if checks is not None else None
        if checks is None or found is None:
            return
        template, check = found
        frame = delta.frame
        if frame is not None:
            frame = Frame(frame.event, template.render(SAMPLE_TEXT, BACKEND_NUMBER, SAMPLE_PADDING))
        sample = listener.sample(msgspec.structs.replace(delta, text=SAMPLE_TEXT.decode(), frame=frame))
        if sample is not None:
            self._lane = make_lane(template, data, *sample, (check, *checks))
            self._lanes_left -= 1
            self._lane_is_held = type(delta) in HELD

    def _pass(self, lane: Lane, data: bytes, listener: Listener) -> bool:
        """Pass a frame on; returns False if it must take the usual way."""
        attempt = self._attempt
        if not listener.is_ready or not attempt.reader.has_room(len(data)) or (piece := lane.feed(data)) is None:
            return False
        self._lanes_left = MAX_IDLE_LANES
        attempt.note_passed(data, is_held=self._lane_is_held)
        listener.send(piece)
        if lane.is_full:
            self._catch_up(lane, listener)
        return True

    def end_wait(self) -> None:
        """Have the stages take in what has passed by them: they are about to be given something else."""
        lane, self._lane = self._lane, None
        if lane is not None and self._listener is not None and not lane.is_empty:
            self._catch_up(lane, self._listener)

    def _catch_up(self, lane: Lane, listener: Listener) -> None:
        """Have the stages take in what has passed."""
        frame, written = lane.take()
        try:
            expected = listener.take_in(self._process(self._attempt.reader.take_in(frame)))
        except Exception as error:  # noqa: BLE001 - it must not reach the event loop
            self._error = error
        else:
            if written != expected:
                self._error = RuntimeError("a lane has sent something else than its stages would have")

    def commit(self) -> Sequence[Event]:
        """Commit the run: no further attempt follows. Returns the events that were held until now."""
        self._is_committed = True
        self._attempt.reader.progressed = self._loop.time()
        held, self._uncommitted = self._uncommitted, []
        return held

    def close(self) -> None:
        """Stop at once. An incomplete reply is closed, which stops the model."""
        self.finished = True
        self._alarm.close()
        self._attempt.close()

    async def finish(self) -> None:
        """Read the rest of the reply after the end of the turn, so that its connection can be reused."""
        await self._attempt.finish()
        self.close()

    async def _next_slice(self, rest: Iterator[Event]) -> Sequence[Event]:
        if perf_counter() > self._gives_way_at:
            await give_way()
            self._gives_way_at = perf_counter() + STEP
        try:
            self._attempt.reader.check_calls()
        except BackendFault as fault:
            self._rest = None
            return (TurnFailed(fault.failure),)
        events = [*islice(rest, MAX_EVENTS_AT_ONCE)]
        if len(events) < MAX_EVENTS_AT_ONCE:
            self._rest = None
        return events

    async def _wait(self, until: float) -> Sequence[Event] | None:
        """Wait for a retry or the end of a burst; None if `until` comes first."""
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
        self._looked_again = True  # with a slow client, another call may have arrived meanwhile
        return events

    def _process(self, events: Sequence[Event]) -> Sequence[Event]:
        """Apply the policies; returns nothing if another attempt follows, or before the commit."""
        if not self._is_committed and (failure := find_early_failure(events)) is not None and self._retry(failure):
            return ()
        if events and isinstance(events[-1], TurnFailed):
            events = [*events[:-1], TurnFailed(explain_failure(events[-1].failure, self._asked))]
        policies = self.assembly.policies
        out = policies.feed_all(events)
        self._order.check(out)
        self.finished = policies.closed
        if self.finished:
            self._attempt.release_thread()
        if self.assembly.burst is not None:
            self._watch_burst()
        if self._is_committed:
            if out:
                reader = self._attempt.reader
                reader.progressed = reader.heard_at
                if type(out[-1]) not in HELD:
                    reader.held_bytes = 0
            return out
        self._uncommitted += out
        if not self.finished and not any(isinstance(event, VISIBLE) for event in out):
            return ()
        return self.commit()

    def _retry(self, failure: Failure) -> bool:
        """Begin the attempt that follows a failure; returns False if the failure is final."""
        now = self._loop.time()
        question = self._attempts.choose_next(failure, now)
        if question is None:
            return False
        self._attempt.close()
        self._start(question)
        if self._attempts.delay:
            self._retry_at = self._attempt.reader.progressed = now + self._attempts.delay
        return True

    def _watch_burst(self) -> None:
        burst = self.assembly.burst
        if burst is None or not burst.waiting:
            self._burst_over = 0.0
        elif not self._burst_over or burst.calls != self._burst_calls:
            self._burst_over = self._loop.time() + self._grace
            self._burst_calls = burst.calls
            self._looked_again = False


def find_early_failure(events: Sequence[Event]) -> Failure | None:
    """The failure among these events, if no visible event precedes it."""
    for event in events:
        if isinstance(event, TurnFailed):
            return event.failure
        if isinstance(event, VISIBLE):
            return None
    return None
