"""Reads the events of runs as they are committed, for all readers of this process together.

A run of this process hands its events over when they are committed. For those of other processes the store is asked
once in a while, in one query for everybody who waits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from toolwire.core import sse
from toolwire.core.notes import Figures
from toolwire.gateway.exchange import Shared
from toolwire.gateway.http import slices
from toolwire.gateway.metrics import Metrics
from toolwire.gateway.responses.event_log import RunLog, count_events, cut, event_bytes
from toolwire.memory.store import EventChunk, Follow, Followed, Store, StoreFailed

TICK = 0.05
"""Seconds between two queries."""
AT_ONCE = 4 * 1024 * 1024
"""Bytes of events that one query is answered with."""
MUCH = 32 * 1024
"""Bytes after which more may be there already: the next query is made at once."""
PAUSE = 0.5
"""Seconds between two queries while the store fails."""


class Follower:
    """One task that asks the store for all that is waited for."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._waiting: dict[Follow, list[asyncio.Future[Followed]]] = {}
        self._is_urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def follow(self, wanted: Follow, *, at_once: bool) -> Followed:
        """Wait for events, or for the end of the run. A store that fails is waited for."""
        answer: asyncio.Future[Followed] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wanted, []).append(answer)
        if at_once:
            self._is_urgent.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll())
        try:
            return await answer
        finally:
            self._forget(wanted, answer)

    def _forget(self, wanted: Follow, answer: "asyncio.Future[Followed]") -> None:
        answers = self._waiting.get(wanted, [])
        if answer in answers:
            answers.remove(answer)
            if not answers:
                del self._waiting[wanted]

    async def _poll(self) -> None:
        try:
            while self._waiting:
                self._is_urgent.clear()
                try:
                    await self._ask()
                    pause = TICK
                except StoreFailed:
                    pause = PAUSE
                try:
                    async with asyncio.timeout(pause):
                        await self._is_urgent.wait()
                except TimeoutError:
                    pass
        finally:
            self._task = None

    async def _ask(self) -> None:
        wanted = list(self._waiting)
        with self._metrics.using_store("follow"):
            found = await self._store.follow(wanted, AT_ONCE)
        for each, followed in zip(wanted, found, strict=True):
            if followed.chunks or followed.is_over:
                for answer in self._waiting.pop(each, ()):
                    if not answer.done():
                        answer.set_result(followed)


class RunReader:
    """One reader's way through the events of a run, whichever process produces it."""

    def __init__(
        self, follower: Follower, here: "Callable[[], RunLog | None]", owner: str, id: str, number: int
    ) -> None:
        """`here` gives the log of the run, if this process produces it; `number` is that of the first event."""
        self._follower = follower
        self._here = here
        self._log: RunLog | None = None
        self._owner = owner
        self._id = id
        self._number = number
        self._is_behind = True
        self._is_over = False
        self.comment = b""
        """The telemetry that closes the stream, where it is known."""

    async def read(self) -> Sequence[EventChunk] | None:
        """The next events, once there are some; None at the end."""
        while not self._is_over:
            if self._log is None or self._log.is_lost:
                self._log = self._here()
            log = self._log
            chunks = log.after(self._number) if log is not None else None
            if chunks:
                return self._passed(chunks)
            if chunks is None:
                followed = await self._follower.follow(
                    Follow(self._owner, self._id, self._number), at_once=self._is_behind
                )
                self._is_over = followed.is_over and log is None
                if followed.chunks:
                    return self._passed(followed.chunks)
            elif log is not None and log.is_over:
                self._is_over, self.comment = True, log.comment
            elif log is not None:
                await log.changed()
        return None

    def _passed(self, chunks: Sequence[EventChunk]) -> Sequence[EventChunk]:
        chunks = [cut(chunk, self._number) for chunk in chunks]
        self._is_behind = sum(len(chunk.frames) for chunk in chunks) > MUCH
        self._number = chunks[-1].first + chunks[-1].count
        return chunks


async def live_stream(
    reader: RunReader, shared: Shared, figures: Callable[[], Awaitable[Figures | None]]
) -> AsyncIterator[bytes]:
    """The bytes of a stream with all that a reader reads, and signs of life in between.

    `figures` are those of the turn, asked for at the end unless the run has told them.
    """
    shared.metrics.follows += 1
    try:
        while True:
            try:
                async with asyncio.timeout(shared.pace.keepalive or None):
                    chunks = await reader.read()
            except TimeoutError:
                yield sse.write_comment(b"keepalive")
                continue
            if chunks is None:
                break
            for piece in slices(chunk.frames for chunk in chunks):
                yield piece
        comment = reader.comment
        if not comment and (found := await figures()) is not None:
            comment = sse.write_comment(found.comment())
        yield comment + sse.DONE
    finally:
        shared.metrics.follows -= 1


async def replayed_stream(pieces: Sequence[bytes], figures: Figures, number: int) -> AsyncIterator[bytes]:
    """The bytes of a stream that is over, from the event of this number on."""
    events = event_bytes(pieces)
    whole = EventChunk(0, count_events(events), events)
    for piece in slices((cut(whole, min(number, whole.count)).frames,)):
        yield piece
    yield sse.write_comment(figures.comment()) + sse.DONE
