"""Background runs of this process: the application owns them, so they outlive the request that started them.

Each run is in the store, and this process writes it under a fence. A process that loses the fence stops the run at
once: another process owns it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from toolwire.core.cache import TenantCache
from toolwire.core.errors import Failure, ReplyTooLarge
from toolwire.core.events import TurnFailed
from toolwire.dialects.responses.encode import EVENT_KEEPALIVE_AFTER
from toolwire.gateway.answer import Answer
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.metrics import Metrics
from toolwire.gateway.responses.answer import ResponsesAnswer
from toolwire.gateway.responses.history import StoredTurn
from toolwire.gateway.responses.run_log import MAX_UNCOMMITTED_BYTES, Flusher, Follower, RunLog, RunReader, count_events
from toolwire.gateway.responses.run_progress import ProgressCache
from toolwire.gateway.sinks import SHUTTING_DOWN, find_request_id
from toolwire.memory.membership import Membership
from toolwire.memory.sql.store import Store
from toolwire.memory.store import ClaimedRun, EventChunk, Fence, Overtaken, StoreFailed
from toolwire.turns.observers import TurnTap
from toolwire.turns.source import TurnSource

END_TIMEOUT = 4.0
"""Seconds for which the end of a run waits for a failing store."""
END_RETRY_DELAY = 0.2
"""Seconds between two attempts to store the end of a run."""

CANCELLED = Failure(499, "cancelled", "The response was cancelled.")
OWNER_LOST = Failure(
    500,
    "owner_lost",
    "The process that produced this response is gone, and what it had begun cannot be repeated.",
)


class UnstoredRun(msgspec.Struct, frozen=True):
    """A run that ended while the store failed. It is shown from memory until it can be stored."""

    log: RunLog
    turn: StoredTurn
    remaining: EventChunk
    response: bytes

    @property
    def size(self) -> int:
        return len(self.remaining.frames) + 2 * len(self.response)


class RunTask:
    """One background run: the sink and the guard of its turn, and the task that produces it."""

    def __init__(
        self,
        runs: "BackgroundRuns",
        log: RunLog,
        reservation: Reservation,
        taps: Sequence[TurnTap] = (),
        *,
        needs_key: bool = False,
        close_early: Callable[[Failure], Awaitable[None]] | None = None,
    ) -> None:
        """`needs_key` marks a run that needs its client's key, so that no other process can repeat it.

        `close_early` closes a recovered run that fails before its turn has begun.
        """
        self._runs = runs
        self.log = log
        self._reservation = reservation
        self._needs_key = needs_key
        self._close_early = close_early
        self._reserved = 0  # bytes
        self._answer: ResponsesAnswer | None = None
        self.task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_ending = False
        self._is_cancelled = False
        self._has_acted = False
        self.unstored: UnstoredRun | None = None
        """The end of the run, if it could not be stored."""
        self.headers: list[tuple[bytes, bytes]] = []
        self._taps = taps
        self.status = 200
        self.upstream_id = ""
        self.committed = True
        self.has_own_limits = False

    @property
    def has_shown_output(self) -> bool:
        return self.log.has_shown_output

    @property
    def outcome(self) -> str:
        """How the run ended, for the log."""
        if self.log.is_lost:
            return "lost"
        return self._answer.response.status if self._answer is not None else "failed"

    @property
    def interruption(self) -> Failure:
        return CANCELLED if self._is_cancelled else SHUTTING_DOWN

    @property
    def can_be_repeated(self) -> bool:
        """Whether another process can produce the run again without repeating or contradicting anything."""
        has_begun = self.log.has_shown_output or self._has_acted
        return not (has_begun or self._needs_key or self._is_ending or self._is_cancelled)

    # The task

    def start(self, exchange: Coroutine[Any, Any, None], on_done: Callable[["RunTask"], None]) -> None:
        """Serve the exchange of the run in a task."""
        self.task = asyncio.create_task(exchange)
        self.task.add_done_callback(lambda _: on_done(self))

    def cancel(self) -> None:
        """Stop the run. It ends as cancelled, unless it is stopping or ending already."""
        if not self._is_stopped:
            self._is_cancelled = True
        self.stop()

    async def cancel_and_wait(self) -> None:
        """Cancel the run, and wait for its end."""
        self.cancel()
        assert self.task is not None
        await asyncio.wait((self.task,))

    def lose(self) -> None:
        """Stop the run without an end: another process owns it."""
        self.log.lose()
        self.stop()

    def stop(self) -> None:
        """Stop the run, once. The task is cancelled after its first step, because before that it cannot end the run."""
        if not self._is_stopped:
            self._is_stopped = True
            asyncio.get_running_loop().call_soon(self._cancel_task)

    def _cancel_task(self) -> None:
        if self.task is not None and not self._is_ending:
            self.task.cancel()

    # The guard of the turn

    async def confirm(self) -> None:
        """Raise `Overtaken` if another process may own the run."""
        if not await self._runs.membership.is_current() or self.log.is_lost:
            self.lose()
            raise Overtaken(self.log.fence)

    async def begin_action(self) -> None:
        """Commit that the run starts something that must not be repeated. Raises `Overtaken`."""
        self._has_acted = True
        if not await self._runs.store.start(self.log.fence):
            self.lose()
            raise Overtaken(self.log.fence)

    # The sink of the turn

    async def send_plain(self, run: TurnSource, answer: Answer, hold: Callable[[int], None]) -> None:
        """Stream this turn too: clients can retrieve a background response as a stream or as a whole."""
        await self.send_stream(run, answer)

    async def send_stream(self, run: TurnSource, answer: Answer) -> None:
        """Append the turn's events to the log as they arrive, and keepalives while none arrive."""
        assert isinstance(answer, ResponsesAnswer)
        self._answer = answer
        encoder = answer.get_encoder(run)
        opening = encoder.begin()
        if not self.log.next:
            await self._append(opening, is_output=False)
        elif sum(map(count_events, opening)) > self.log.next:
            await self._end_early(OWNER_LOST)  # another version of Toolwire began the log differently
            return
        else:
            encoder.continue_from(self.log.next)
        loop = asyncio.get_running_loop()
        interval = answer.pace.keepalive if answer.pace is not None else self._runs.keepalive
        last_event = loop.time()
        due = last_event + interval
        while not run.finished:
            events = await run.read(due)
            self.upstream_id = self.upstream_id or find_request_id(run.headers)
            feed = answer.get_encoder(run).feed
            pieces: Sequence[bytes] = [piece for event in events for piece in feed(event)]
            for tap in self._taps:
                tap.look(events)
            if run.finished:
                await self._end_with(pieces)
                return
            now = loop.time()
            is_output = bool(pieces)
            if is_output:
                last_event = now
            elif now >= due:
                pieces = encoder.keepalive(now - last_event)
            if pieces:
                due = now + interval
                await self._append(pieces, is_output=is_output)
            answer.check()

    async def _append(self, pieces: Sequence[bytes], *, is_output: bool) -> None:
        """Append events, and wait while too many of them are uncommitted: backpressure for the backend."""
        for tap in self._taps:
            tap.write(pieces)
        self.log.append(pieces, is_output=is_output)
        uncommitted = self.log.uncommitted
        if uncommitted > self._reserved:
            self._reservation.grow(uncommitted - self._reserved)
        else:
            self._reservation.shrink(self._reserved - uncommitted)
        self._reserved = uncommitted
        if self.log.size > self._runs.max_reply:
            raise ReplyTooLarge(self._runs.max_reply)
        self._runs.flusher.flush(self.log)
        if uncommitted > MAX_UNCOMMITTED_BYTES:
            await self._runs.flusher.wait_for_room(self.log)

    async def fail(self, failure: Failure, run: TurnSource | None) -> None:
        """End the response as failed, or as cancelled if it was cancelled."""
        if self._is_ending or self.log.is_lost:
            return
        failure = CANCELLED if self._is_cancelled else failure
        if self._answer is None:
            await self._end_early(failure)
            return
        encoder = self._answer.get_encoder(run)
        pieces = encoder.feed(TurnFailed(failure))
        if self._is_cancelled:
            encoder.cancel()
        await self._end_with(pieces)

    async def give_up(self) -> None:
        """End the response if even its failure could not be encoded."""
        if not self.log.is_lost and self._answer is not None:
            await self._end_with(self._answer.get_encoder(None).break_off())

    async def _end_early(self, failure: Failure) -> None:
        """End a recovered run whose turn could not begin. Its readers find the end in the store."""
        self._is_ending = True
        if self._close_early is not None:
            await self._close_early(failure)
        self.log.lose()

    async def _end_with(self, last: Sequence[bytes]) -> None:
        """Store the turn with its last events, then show them."""
        assert self._answer is not None
        self._is_ending = True
        for tap in self._taps:
            tap.write(last)
        deadline = time.monotonic() + END_TIMEOUT
        try:
            await self._runs.flusher.settle(self.log, deadline)
            await self._answer.settle_memory()
            await self._store_end(self._answer.make_turn(), last, deadline)
        except Overtaken:
            self.lose()
        except StoreFailed as error:  # the end is shown, and says that it is not stored
            last = self._answer.mark_unstored(last, error)
            if self._is_cancelled:
                self._answer.get_encoder(None).cancel()
            remaining = self.log.join_remaining(last)
            self.log.end(remaining, last)
            response = bytes(self._answer.response.encode())
            self.unstored = UnstoredRun(self.log, self._answer.make_turn(), remaining, response)

    async def _store_end(self, turn: StoredTurn, last: Sequence[bytes], deadline: float) -> None:
        remaining = self.log.join_remaining(last)
        while not self.log.is_lost:
            try:
                await self._runs.save(turn, self.log.fence, remaining)
            except Overtaken:
                raise
            except StoreFailed:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(END_RETRY_DELAY)
            else:
                self.log.end(remaining, last)
                return


class BackgroundRuns:
    """All background runs of this process, and the ended ones that could not be stored."""

    def __init__(
        self, store: Store, membership: Membership, metrics: Metrics, max_reply: int, keepalive: float = 0.0
    ) -> None:
        """`max_reply` bounds the bytes of each log, and of all unstored runs together.

        `keepalive` is the silence in seconds after which a stream gets a keepalive; 0 for never.
        """
        self.store = store
        self.membership = membership
        self.max_reply = max_reply
        self.keepalive = max(keepalive, EVENT_KEEPALIVE_AFTER) if keepalive else float("inf")
        self._metrics = metrics
        self._runs: dict[tuple[str, str], RunTask] = {}
        self._by_fence: dict[Fence, RunTask] = {}
        self._unstored: TenantCache[tuple[str, str], UnstoredRun] = TenantCache(max_reply)
        self.flusher = Flusher(store, metrics, self.lose, self.cancel)
        self.progress = ProgressCache(store)
        self._follower = Follower(store, metrics)

    @property
    def count(self) -> int:
        return len(self._by_fence)

    def start(self, run: RunTask, exchange: Coroutine[Any, Any, None]) -> None:
        """Start a run. Its exchange ends it in every case."""
        self._runs[run.log.owner, run.log.fence.id] = self._by_fence[run.log.fence] = run
        run.start(exchange, self._remove)

    def _remove(self, run: RunTask) -> None:
        key = run.log.owner, run.log.fence.id
        if self._by_fence.get(run.log.fence) is run:
            del self._by_fence[run.log.fence]
        if self._runs.get(key) is run:  # this process may have claimed the same run again
            del self._runs[key]
        if run.unstored is not None:
            self._unstored.put(run.log.owner, key, run.unstored, run.unstored.size)

    def get(self, owner: str, id: str) -> RunTask | None:
        return self._runs.get((owner, id))

    def get_unstored(self, owner: str, id: str) -> UnstoredRun | None:
        return self._unstored.get((owner, id))

    def forget(self, owner: str, id: str) -> bool:
        """Forget an unstored run; returns whether there was one."""
        is_known = self._unstored.get((owner, id)) is not None
        self._unstored.pop((owner, id))
        return is_known

    def find_log(self, owner: str, id: str) -> RunLog | None:
        """The log of a run that this process produces, or whose end it could not store."""
        found = self._runs.get((owner, id)) or self._unstored.get((owner, id))
        return found.log if found is not None and not found.log.is_lost else None

    def open_reader(self, owner: str, id: str, number: int) -> RunReader:
        """A reader of the events of a run from this number on, even if the run is in another process."""
        return RunReader(self._follower, lambda: self.find_log(owner, id), owner, id, number)

    async def save(self, turn: StoredTurn, fence: Fence, last: EventChunk) -> None:
        """Store the end of a run. Raises `StoreFailed`."""
        with self._metrics.time_store("save"):
            await self.store.save(turn.owner, turn.record, turn.given, turn.made, turn.effects, guard=fence, last=last)

    async def retry_unstored(self) -> None:
        """Try again to store each unstored run."""
        for key in tuple(self._unstored):
            unstored = self._unstored.get(key)
            if unstored is not None and unstored.log.is_settled:
                with suppress(StoreFailed):
                    await self._save_unstored(key, unstored, unstored.log.fence)

    async def store_claimed(self, claimed: ClaimedRun) -> bool:
        """Store a claimed run if it is an unstored one of this process; returns whether it is."""
        key = claimed.owner, claimed.record.id
        unstored = self._unstored.get(key)
        if unstored is None or unstored.remaining.first != claimed.next_event:
            return False
        await self._save_unstored(key, unstored, claimed.fence)
        return True

    async def _save_unstored(self, key: tuple[str, str], unstored: UnstoredRun, fence: Fence) -> None:
        with suppress(Overtaken):  # a process has claimed the run meanwhile
            await self.save(unstored.turn, fence, unstored.remaining)
        self._unstored.pop(key)

    def lose(self, fence: Fence) -> None:
        """Stop a run that another process owns, or that was deleted."""
        if fence in self._by_fence:
            self._by_fence[fence].lose()

    def lose_all(self) -> None:
        """Stop all runs: this process was presumed dead, so others may claim them."""
        for run in tuple(self._by_fence.values()):
            run.lose()

    def cancel(self, fence: Fence) -> None:
        """Stop a run that its client cancelled."""
        if fence in self._by_fence:
            self._by_fence[fence].cancel()

    async def close(self, seconds: float) -> None:
        """Wait for the runs to end, then stop the rest. Other processes repeat those that can be repeated."""
        await self._wait(seconds)
        for run in tuple(self._by_fence.values()):
            if run.can_be_repeated and self.store.outlives_process:
                run.lose()
            else:
                run.stop()
        await self._wait(None)

    async def _wait(self, seconds: float | None) -> None:
        tasks = [run.task for run in self._by_fence.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
