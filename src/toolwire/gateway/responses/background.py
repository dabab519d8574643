"""Runs that the application owns: they go on when the client is gone, and can be polled, followed and cancelled.

Each is in the store, and this process has its fence. Whoever loses that stops at once: the run is somebody else's.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from toolwire.core.errors import Failure, ReplyTooLarge
from toolwire.core.events import TurnFailed
from toolwire.core.shares import Shares
from toolwire.dialects.responses.encode import EVENT_KEEPALIVE_AFTER
from toolwire.gateway.answer import Answer
from toolwire.gateway.flight import Claim
from toolwire.gateway.metrics import Metrics
from toolwire.gateway.responses.answer import ResponsesAnswer
from toolwire.gateway.responses.doubtful import DoubtfulRuns
from toolwire.gateway.responses.event_log import RunLog, count_events
from toolwire.gateway.responses.flusher import UNCOMMITTED, Flusher
from toolwire.gateway.responses.follower import Follower, RunReader
from toolwire.gateway.responses.history import KeptTurn
from toolwire.gateway.responses.unfinished import CANCELLED, OWNER_LOST, Polled
from toolwire.gateway.sinks import SHUTTING_DOWN, upstream_request_id
from toolwire.memory.store import ClaimedRun, EventChunk, Fence, Overtaken, Store, StoreFailed
from toolwire.turns.source import TurnSource
from toolwire.turns.trace import TurnTrace

END_PATIENCE = 4.0
"""Seconds for which a run that has come to its end waits for a store that fails."""
PAUSE = 0.2
"""Seconds between two attempts to keep it."""
OPENING = 3
"""Events that every run begins with. Who has seen no others has seen nothing of the turn."""

PING = 2.0
"""Seconds of silence before a `ping`, where a client asked for extended events."""

EndEarly = Callable[[Failure], Coroutine[Any, Any, None]]
"""Ends a run of which there is no answer yet."""


class LogSink:
    """Takes a turn to the log of its run, whoever reads that."""

    def __init__(self, runs: "Background", log: RunLog, claim: Claim, max_reply: int) -> None:
        self._runs = runs
        self.log = log
        self._claim = claim
        self._max = max_reply
        self._held = 0  # bytes of the log that are claimed
        self.answer: ResponsesAnswer | None = None
        """What the events are made by, once it is there."""
        self.end_early: EndEarly | None = None
        """What ends the run before that."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.trace: TurnTrace | None = None
        self.status = 200
        self.upstream_id = ""
        self.committed = True
        self.is_ending = False
        self.is_cancelled = False
        self.unkept: UnkeptRun | None = None
        """The turn is over and could not be kept: what is known of it is here."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the application's log says of it."""
        lost = "lost" if self.log.is_lost else ""
        return {"status": self.status, "outcome": lost or (self.answer.response.status if self.answer else "failed")}

    @property
    def interruption(self) -> Failure:
        return CANCELLED if self.is_cancelled else SHUTTING_DOWN

    async def plain(self, run: TurnSource, answer: Answer, hold: Callable[[int], None]) -> None:
        """The same as a stream: a reader may ask for either."""
        await self.stream(run, answer)

    async def stream(self, run: TurnSource, answer: Answer) -> None:
        """Write the turn's events into the log as they come, and while none come, signs of life for its readers."""
        assert self.answer is not None
        encoder = self.answer.encoder(run)
        opening = encoder.begin()
        if not self.log.next:
            await self._add(opening, shows=False)
        elif sum(map(count_events, opening)) > self.log.next:
            await self._end_early(OWNER_LOST)  # a process of another version has begun it in another way
            return
        else:
            encoder.go_on(self.log.next)
        loop = asyncio.get_running_loop()
        pause = PING if encoder.extended else self._runs.keepalive
        spoke = loop.time()
        due = spoke + pause
        while not run.finished:
            events = await run.read(due)
            self.upstream_id = self.upstream_id or upstream_request_id(run.headers)
            feed = self.answer.encoder(run).feed
            pieces: Sequence[bytes] = [piece for event in events for piece in feed(event)]
            if self.trace is not None and not self.trace.first:
                self.trace.look(events)
            if run.finished:
                await self._end_with(pieces)
                return
            now = loop.time()
            shows = bool(pieces)
            if shows:
                spoke = now
            elif now >= due:
                pieces = encoder.keepalive(now - spoke)
            if pieces:
                due = now + pause
                await self._add(pieces, shows=shows)
            self.answer.check()

    async def _add(self, pieces: Sequence[bytes], *, shows: bool) -> None:
        """Have events committed. The more of them wait for that, the longer the backend is not read."""
        if self.trace is not None:
            self.trace.wrote(pieces)
        self.log.add(pieces, shows=shows)
        self._hold(self.log.uncommitted)
        if self.log.size > self._max:
            raise ReplyTooLarge(self._max)
        self._runs.flusher.flush(self.log)
        if self.log.uncommitted > UNCOMMITTED:
            await self._runs.flusher.room(self.log)

    def _hold(self, size: int) -> None:
        if size > self._held:
            self._claim.grow(size - self._held)
        else:
            self._claim.shrink(self._held - size)
        self._held = size

    async def fail(self, failure: Failure, run: TurnSource | None) -> None:
        """End the response as failed, or as cancelled if that is why."""
        if self.is_ending or self.log.is_lost:
            return
        failure = CANCELLED if self.is_cancelled else failure
        if self.answer is None:
            await self._end_early(failure)
            return
        encoder = self.answer.encoder(run)
        pieces = encoder.feed(TurnFailed(failure))
        if self.is_cancelled:
            encoder.cancel()
        await self._end_with(pieces)

    async def _end_early(self, failure: Failure) -> None:
        """End a run that cannot be continued; its readers find the end in the store."""
        assert self.end_early is not None
        self.is_ending = True
        await self.end_early(failure)
        self.log.lose()

    async def give_up(self) -> None:
        """Not even the failure could be encoded."""
        if not self.log.is_lost and self.answer is not None:
            await self._end_with(self.answer.encoder(None).break_off())

    async def _end_with(self, last: Sequence[bytes]) -> None:
        """Keep the turn with its last events, then show them."""
        self.is_ending = True
        if self.trace is not None:
            self.trace.wrote(last)
        try:
            await self._keep(last)
        except Overtaken:
            self._runs.lose(self.log.fence)
        except StoreFailed as error:
            self._leave_unkept(last, error)

    async def _keep(self, last: Sequence[bytes]) -> None:
        assert self.answer is not None
        until = time.monotonic() + END_PATIENCE
        await self._runs.flusher.settle(self.log, until)
        await self.answer.settle_memory()
        turn, rest = self.answer.turn(), self.log.rest(last)
        while not self.log.is_lost:
            try:
                await self._runs.keep(turn, self.log.fence, rest)
            except Overtaken:
                raise
            except StoreFailed:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                self.log.end(rest, last)
                return

    def _leave_unkept(self, last: Sequence[bytes], error: StoreFailed) -> None:
        """Show the end of a turn that cannot be kept now; it says so itself."""
        assert self.answer is not None
        last = self.answer.unstored(last, error)
        if self.is_cancelled:
            self.answer.encoder(None).cancel()
        rest = self.log.rest(last)
        self.log.end(rest, last)
        response = bytes(self.answer.response.encoded())
        self.unkept = UnkeptRun(self.log, self.answer.turn(), rest, response)


class BackgroundRun:
    """One response being produced, whoever listens."""

    def __init__(self, id: str, sink: LogSink, *, needs_key: bool = False) -> None:
        self.id = id
        self.sink = sink
        self.log = sink.log
        self.task: asyncio.Task[None] | None = None
        self.has_started = False
        """Something was begun that must not be done twice."""
        self._needs_key = needs_key
        self._is_stopped = False

    @property
    def can_be_repeated(self) -> bool:
        """Whether another process may produce it anew: nobody has seen anything of it, and nothing would be missing."""
        is_unseen = not (self.log.is_seen or self.has_started)
        return is_unseen and not (self._needs_key or self.sink.is_ending or self.sink.is_cancelled)

    async def cancel(self) -> None:
        """Stop the run and wait until it is kept as cancelled."""
        if not self._is_stopped:
            self.sink.is_cancelled = True
        await self.stop()

    async def stop(self) -> None:
        """Stop the run, unless it is about to end by itself, and wait for its end."""
        self.break_off()
        assert self.task is not None
        await asyncio.wait((self.task,))

    def lose(self) -> None:
        """Stop the run: it is somebody else's."""
        self.log.lose()
        self.break_off()

    def break_off(self) -> None:
        """Break the task off, once, and not before it has begun: what it does then would not be done."""
        if not self._is_stopped:
            self._is_stopped = True
            asyncio.get_running_loop().call_soon(self._cancel_task)

    def _cancel_task(self) -> None:
        if self.task is not None and not self.sink.is_ending:
            self.task.cancel()


class UnkeptRun:
    """A run that has ended and could not be kept. That is tried again as long as it is remembered."""

    def __init__(self, log: RunLog, turn: KeptTurn, rest: EventChunk, response: bytes) -> None:
        self.log = log
        self.turn = turn
        self.rest = rest
        self.response = response

    @property
    def size(self) -> int:
        return len(self.rest.frames) + 2 * len(self.response)


class Background:
    """All background runs of this process; those that could not be kept in at most so many bytes."""

    def __init__(self, store: Store, metrics: Metrics, most_unkept: int, keepalive: float = 0.0) -> None:
        """`keepalive` are the seconds of silence after which a stream gets a sign of life; 0: never."""
        self.keepalive = max(keepalive, EVENT_KEEPALIVE_AFTER) if keepalive else float("inf")
        """Seconds of silence after which a run gets an event that says that it goes on."""
        self._store = store
        self._metrics = metrics
        self._runs: dict[tuple[str, str], BackgroundRun] = {}
        self._by_fence: dict[Fence, BackgroundRun] = {}
        self._unkept: Shares[tuple[str, str], UnkeptRun] = Shares(most_unkept)
        self._unkept_keys: dict[tuple[str, str], UnkeptRun] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self.flusher = Flusher(store, metrics, self.lose, self.cancel)
        self.follower = Follower(store, metrics)
        self.polled = Polled(store)
        self.doubtful = DoubtfulRuns(store)

    @property
    def count(self) -> int:
        return len(self._by_fence)

    def start(self, run: BackgroundRun, exchange: Coroutine[Any, Any, None]) -> None:
        """Begin a run, whose exchange ends it whatever happens."""
        self._runs[run.log.owner, run.id] = self._by_fence[run.log.fence] = run
        run.task = asyncio.create_task(exchange)
        run.task.add_done_callback(lambda _: self._end(run))

    def _end(self, run: BackgroundRun) -> None:
        key = run.log.owner, run.id
        if self._by_fence.get(run.log.fence) is run:
            del self._by_fence[run.log.fence]
        if self._runs.get(key) is run:  # the same run may have come back to this process by a later claim
            del self._runs[key]
        unkept = run.sink.unkept
        if unkept is not None:
            self._unkept.put(run.log.owner, key, unkept, unkept.size)
            self._unkept_keys[key] = unkept

    def has(self, fence: Fence) -> bool:
        """Whether the run of this fence is produced here."""
        run = self._by_fence.get(fence)
        return run is not None and not run.log.is_lost

    def get(self, owner: str, id: str) -> BackgroundRun | None:
        return self._runs.get((owner, id))

    def unkept(self, owner: str, id: str) -> UnkeptRun | None:
        return self._unkept.get((owner, id))

    def forget(self, owner: str, id: str) -> bool:
        """Forget a run that could not be kept; whether there was one."""
        is_known = self._unkept.get((owner, id)) is not None
        self._unkept.pop((owner, id))
        return is_known

    def log(self, owner: str, id: str) -> RunLog | None:
        """The log of a run that this process produces, or knows the end of."""
        found = self._runs.get((owner, id)) or self._unkept.get((owner, id))
        return found.log if found is not None and not found.log.is_lost else None

    def reader(self, owner: str, id: str, number: int) -> RunReader:
        """A way to read the events of a run from this number on."""
        return RunReader(self.follower, lambda: self.log(owner, id), owner, id, number)

    async def note_start(self, fence: Fence) -> None:
        """Commit that a run begins something that must not be done twice."""
        run = self._by_fence.get(fence)
        if run is not None:
            run.has_started = True
        if not await self._store.start(fence):
            self.lose(fence)
            raise Overtaken(fence)

    async def keep(self, turn: KeptTurn, fence: Fence, rest: EventChunk) -> None:
        """Keep the end of a run."""
        with self._metrics.using_store("save"):
            await self._store.save(turn.owner, turn.record, turn.given, turn.made, turn.effects, guard=fence, last=rest)

    async def keep_rest(self) -> None:
        """Try once more to keep what could not be kept. What fails again waits; the others do not wait for it."""
        for key, unkept in tuple(self._unkept_keys.items()):
            if self._unkept.get(key) is unkept and unkept.log.is_settled:
                with suppress(StoreFailed):
                    await self._keep_late(key, unkept)
            if self._unkept.get(key) is not unkept:
                self._unkept_keys.pop(key, None)

    async def _keep_late(self, key: tuple[str, str], unkept: UnkeptRun) -> None:
        with suppress(Overtaken):  # then another process, or this one, has claimed the run
            await self.keep(unkept.turn, unkept.log.fence, unkept.rest)
        self._unkept.pop(key)

    async def keep_claimed(self, claimed: ClaimedRun) -> bool:
        """Keep a run that this process claimed, if it is one that had ended here and could not be kept."""
        key = claimed.owner, claimed.record.id
        unkept = self._unkept.get(key)
        if unkept is None or unkept.rest.first != claimed.next_event:
            return False
        with suppress(Overtaken):
            await self.keep(unkept.turn, claimed.fence, unkept.rest)
        self._unkept.pop(key)
        return True

    def lose(self, fence: Fence) -> None:
        """This run is somebody else's by now, or was deleted."""
        run = self._by_fence.get(fence)
        if run is not None:
            run.lose()

    def lose_all(self) -> None:
        """This process was taken for dead: all its runs are free to take."""
        for run in tuple(self._by_fence.values()):
            run.lose()

    def cancel(self, fence: Fence) -> None:
        """Somebody wants this run to end."""
        run = self._by_fence.get(fence)
        if run is not None and not run.sink.is_cancelled:
            task = asyncio.create_task(run.cancel())
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def close(self, patience: float) -> None:
        """Let the runs end by themselves for a while, then stop them: those that can be repeated are left to others."""
        await self._ended(patience)
        for run in tuple(self._by_fence.values()):
            if run.can_be_repeated and self._store.outlives_process:
                run.lose()
            else:
                run.break_off()
        await self._ended(None)

    async def _ended(self, patience: float | None) -> None:
        tasks = [run.task for run in self._by_fence.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
