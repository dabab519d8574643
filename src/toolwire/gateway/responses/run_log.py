"""The events of background runs: appended by the process that owns a run, flushed to the store, followed by readers.

No reader sees an event before it is committed in the store. Every process can read committed events there, so only
uncommitted events and a short tail of committed ones are held in memory.

A `Flusher` commits the new events of all runs of this process, in one statement per tick. A chunk that the store has
not confirmed is sent again unchanged, before any later one. A `Follower` polls the store for runs of other processes,
in one query for all readers.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from toolwire.gateway.metrics import Metrics
from toolwire.memory.sql.store import Store
from toolwire.memory.store import Append, EventChunk, Fence, Follow, Followed, StoreFailed

MAX_CHUNK_BYTES = 256 * 1024
"""Maximum bytes of one chunk in the store, unless a single read of the backend returns more."""
TAIL_BYTES = 256 * 1024
"""Bytes of committed events that are held for readers close behind."""
FLUSH_INTERVAL = 0.05
"""Seconds between two flushes, and so the longest wait of an event."""
MAX_FLUSH_BYTES = 8 * 1024 * 1024
"""Bytes of events after which a flush ends. The next one sends the rest."""
MAX_UNCOMMITTED_BYTES = 1024 * 1024
"""Maximum uncommitted bytes of one run. The backend is not read while there are more."""
COMMIT_TIMEOUT = 60.0
"""Seconds for which a run waits for a failing store before it fails."""
MAX_FLUSH_DELAY = 1.0
"""Maximum seconds between two flushes while the store is failing."""
POLL_INTERVAL = 0.05
"""Seconds between two polls."""
POLL_RETRY_DELAY = 0.5
"""Seconds between two polls while the store is failing."""
MAX_POLL_BYTES = 4 * 1024 * 1024
"""Maximum bytes of events that one poll returns."""
LARGE_POLL_BYTES = 32 * 1024
"""A reader that got more bytes than this polls again at once: there are probably more events."""


class RunLog:
    """The log of a run that this process produces. The number of an event is its position in the log."""

    def __init__(self, owner: str, fence: Fence, committed: int = 0) -> None:
        self.owner = owner
        self.fence = fence
        self.committed = committed
        """The number of committed events."""
        self.next = committed
        """The number of the next event."""
        self.size = 0
        """Bytes of all events that were appended here."""
        self.comment = b""
        """The telemetry comment that closes the stream."""
        self.is_over = False
        """Whether no event follows the committed ones."""
        self.is_lost = False
        """Whether another process owns the run: readers continue with the store."""
        self.in_flight_since = 0.0
        """When the oldest event in flight was appended."""
        self._pending_since = 0.0
        self._pending: deque[bytes] = deque()  # events that were not sent to the store
        self._pending_size = 0
        self._in_flight: EventChunk | None = None  # sent to the store, which has not confirmed it
        self._is_sealed = False
        self._first_output: int | None = None  # the number of the first event with output
        self._tail: deque[EventChunk] = deque()
        self._tail_size = 0
        self._changed = asyncio.Event()

    @property
    def uncommitted(self) -> int:
        """Bytes of uncommitted events."""
        return self._pending_size + (len(self._in_flight.frames) if self._in_flight is not None else 0)

    @property
    def has_shown_output(self) -> bool:
        """Whether output of the turn is committed: more than the opening events and keepalives."""
        return self._first_output is not None and self.committed > self._first_output

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of every chunk that was sent is known."""
        return self._in_flight is None

    def append(self, pieces: Sequence[bytes], *, is_output: bool = True) -> None:
        """Append the events among the pieces of a stream. Comments and the end of the stream have no number.

        `is_output` is false for opening events and keepalives, which show nothing of the turn.
        """
        if not self._pending:
            self._pending_since = time.monotonic()
        events = select_events(pieces)
        if events:
            if is_output and self._first_output is None:
                self._first_output = self.next
            self.size += len(events)
            self.next += count_events(events)
            self._pending_size += len(events)
            self._pending.append(events)

    def next_chunk(self) -> EventChunk | None:
        """The chunk to commit next: the same one until its outcome is known."""
        if self._in_flight is None and self._pending and not self._is_sealed:
            frames = [self._pending.popleft()]
            size = len(frames[0])
            while self._pending and size + len(self._pending[0]) <= MAX_CHUNK_BYTES:
                frames.append(self._pending.popleft())
                size += len(frames[-1])
            self._pending_size -= size
            self._in_flight, self.in_flight_since = make_chunk(self.committed, frames), self._pending_since
        return self._in_flight

    def confirm(self) -> None:
        """Show the chunk in flight, which is committed, to readers."""
        chunk, self._in_flight = self._in_flight, None
        if chunk is not None and not self.is_over:
            self._show(chunk)

    def seal(self) -> None:
        """Send no further chunk: the remaining events are committed together with the end of the run."""
        self._is_sealed = True
        self._wake()

    def join_remaining(self, last: Sequence[bytes]) -> EventChunk:
        """One chunk with the events that were not sent and the last ones."""
        first = self.committed if self._in_flight is None else self._in_flight.first + self._in_flight.count
        return make_chunk(first, [*self._pending, select_events(last)])

    def end(self, remaining: EventChunk, last: Sequence[bytes]) -> None:
        """Show the remaining events and the end. They are committed, or the last event states that they are not."""
        if self._in_flight is not None:
            self._show(self._in_flight)
        self._drop_pending()
        self.comment = next((piece for piece in last if piece.startswith(b": ")), self.comment)
        self.is_over = True
        self._show(remaining)

    def lose(self) -> None:
        """Drop what is not committed: another process owns the run."""
        self.is_lost = True
        self._drop_pending()
        self._in_flight = None
        self._wake()

    def follow(self, number: int) -> Sequence[EventChunk] | None:
        """The committed events from this number on; None if they are no longer held and must be read from the store."""
        if number < self.committed and (not self._tail or number < self._tail[0].first):
            return None
        return [chunk for chunk in self._tail if chunk.first + chunk.count > number]

    async def wait_changed(self) -> None:
        """Wait until more events are committed, or the log is over or lost."""
        await self._changed.wait()

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._pending_size = 0

    def _show(self, chunk: EventChunk) -> None:
        self.committed = chunk.first + chunk.count
        if chunk.count:
            self._tail.append(chunk)
            self._tail_size += len(chunk.frames)
        while len(self._tail) > 1 and self._tail_size > TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft().frames)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def make_chunk(first: int, frames: Sequence[bytes]) -> EventChunk:
    """A chunk of events, the first of which has this number."""
    joined = b"".join(frames)
    return EventChunk(first, count_events(joined), joined)


def select_events(pieces: Sequence[bytes]) -> bytes:
    """The events among the pieces of a stream."""
    return b"".join([piece for piece in pieces if piece.startswith(b"event: ")])


def count_events(events: bytes) -> int:
    return events.count(b"\n\n")


def cut_chunk(chunk: EventChunk, number: int) -> EventChunk:
    """The events of a chunk from this number on."""
    if number <= chunk.first:
        return chunk
    events = chunk.frames.split(b"\n\n", number - chunk.first)
    return EventChunk(number, chunk.first + chunk.count - number, events[-1])


class Flusher:
    """Commits the logs of this process, in one task.

    `on_lost` is called with the fence of a run that another process owns, `on_cancelled` with that of a cancelled run.
    """

    def __init__(
        self, store: Store, metrics: Metrics, on_lost: Callable[[Fence], None], on_cancelled: Callable[[Fence], None]
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._logs: dict[Fence, RunLog] = {}  # with something to send
        self._task: asyncio.Task[None] | None = None
        self._failure: StoreFailed | None = None
        self._attempted = asyncio.Event()

    def flush(self, log: RunLog) -> None:
        """Commit the log's new events with the next tick."""
        self._logs[log.fence] = log
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_for_room(self, log: RunLog) -> None:
        """Wait while a run has too many uncommitted events. Raises `StoreFailed` after a timeout."""
        deadline = time.monotonic() + COMMIT_TIMEOUT
        while log.uncommitted > MAX_UNCOMMITTED_BYTES and not log.is_lost:
            await self._wait_for_attempt(deadline)

    async def settle(self, log: RunLog, deadline: float) -> None:
        """Seal a log, and wait until the outcome of everything sent is known. Raises `StoreFailed`."""
        log.seal()
        while not log.is_settled and not log.is_lost:
            await self._wait_for_attempt(deadline)

    async def _wait_for_attempt(self, deadline: float) -> None:
        attempted = self._attempted
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await attempted.wait()
        except TimeoutError:
            raise self._failure or StoreFailed("busy", "the events of a run could not be committed in time") from None

    async def _run(self) -> None:
        loop, delay = asyncio.get_running_loop(), FLUSH_INTERVAL
        try:
            while self._logs:
                await asyncio.sleep(delay)
                chunks = self._next_chunks()
                if not chunks:
                    continue
                try:
                    await self._commit(chunks)
                    self._failure, delay = None, FLUSH_INTERVAL
                except StoreFailed as error:
                    self._failure, delay = error, min(2 * delay, MAX_FLUSH_DELAY)
                except Exception as error:  # noqa: BLE001 - other runs need the flusher; a chunk is sent again
                    loop.call_exception_handler({"message": "a flush failed", "exception": error})
                    delay = min(2 * delay, MAX_FLUSH_DELAY)
                self._attempted.set()
                self._attempted = asyncio.Event()
        finally:
            self._task = None

    def _next_chunks(self) -> list[tuple[RunLog, EventChunk]]:
        """The chunks to send now. Logs with nothing to send are removed from the table."""
        chunks: list[tuple[RunLog, EventChunk]] = []
        size = 0
        for fence, log in tuple(self._logs.items()):
            if size > MAX_FLUSH_BYTES:
                break
            chunk = None if log.is_lost else log.next_chunk()
            if chunk is None:
                del self._logs[fence]
            else:
                chunks.append((log, chunk))
                size += len(chunk.frames)
        return chunks

    async def _commit(self, chunks: Sequence[tuple[RunLog, EventChunk]]) -> None:
        with self._metrics.time_store("append"):
            done = await self._store.append([Append(log.owner, log.fence, chunk) for log, chunk in chunks])
        now = time.monotonic()
        for log, _ in chunks:
            if log.is_lost:
                continue
            if log.fence in done.lost:
                log.lose()
                self._on_lost(log.fence)
                continue
            self._metrics.record_flush(now - log.in_flight_since)
            log.confirm()
            if log.fence in done.cancelled:
                self._on_cancelled(log.fence)


class Follower:
    """Polls the store for the events of runs that other processes produce, in one task."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._waiting: dict[Follow, list[asyncio.Future[Followed]]] = {}
        self._is_urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def follow(self, wanted: Follow, *, at_once: bool) -> Followed:
        """Wait for events or the end of the run, also while the store is failing. `at_once` polls immediately.

        Raises any error of the poll but `StoreFailed`.
        """
        answer: asyncio.Future[Followed] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wanted, []).append(answer)
        if at_once:
            self._is_urgent.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            return await answer
        finally:
            answers = self._waiting.get(wanted, [])
            if answer in answers:
                answers.remove(answer)
                if not answers:
                    del self._waiting[wanted]

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._is_urgent.clear()
                try:
                    await self._poll()
                    delay = POLL_INTERVAL
                except StoreFailed:
                    delay = POLL_RETRY_DELAY
                try:
                    async with asyncio.timeout(delay):
                        await self._is_urgent.wait()
                except TimeoutError:
                    pass
        finally:
            self._task = None

    async def _poll(self) -> None:
        wanted = list(self._waiting)
        try:
            with self._metrics.time_store("follow"):
                found = await self._store.follow(wanted, MAX_POLL_BYTES)
        except StoreFailed:
            raise
        except Exception as error:  # noqa: BLE001 - reported where the answer is awaited; other readers are served
            for answer in (answer for each in wanted for answer in self._waiting.pop(each, ())):
                if not answer.done():
                    answer.set_exception(error)
            return
        for each, followed in zip(wanted, found, strict=True):
            if followed.chunks or followed.is_over:
                for answer in self._waiting.pop(each, ()):
                    if not answer.done():
                        answer.set_result(followed)


class RunReader:
    """Reads the events of a run in order, from its log if the run is in this process, else from the store."""

    def __init__(
        self, follower: Follower, find_log: Callable[[], RunLog | None], owner: str, id: str, number: int
    ) -> None:
        """`find_log` returns the log while this process has it; `number` is the first event to read."""
        self._follower = follower
        self._find_log = find_log
        self._log: RunLog | None = None
        self._owner = owner
        self._id = id
        self._number = number
        self._is_behind = True
        self._is_over = False
        self.comment = b""
        """The telemetry comment that closes the stream, where this process knows it."""

    async def read(self) -> Sequence[EventChunk] | None:
        """Wait for the next events; None at the end."""
        while not self._is_over:
            if self._log is None or self._log.is_lost:
                self._log = self._find_log()
            log = self._log
            chunks = log.follow(self._number) if log is not None else None
            if chunks is None:
                wanted = Follow(self._owner, self._id, self._number)
                followed = await self._follower.follow(wanted, at_once=self._is_behind)
                self._is_over = followed.is_over and log is None
                chunks = followed.chunks
            elif not chunks and log is not None:
                if log.is_over:
                    self._is_over, self.comment = True, log.comment
                else:
                    await log.wait_changed()
            if chunks:
                chunks = [cut_chunk(chunk, self._number) for chunk in chunks]
                self._is_behind = sum(len(chunk.frames) for chunk in chunks) > LARGE_POLL_BYTES
                self._number = chunks[-1].first + chunks[-1].count
                return chunks
        return None
