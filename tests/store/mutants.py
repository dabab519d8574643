"""Stores with a fault each, to see that the tests find it. `KINDS` has what a worker process can be asked for."""

import sqlite3
import time
from collections import Counter
from typing import Any

from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import Append, Appended, EventChunk, Fence, Follow, Followed, Overtaken, WriteGuard

PATIENCE = 10.0
"""Seconds for which a stopped writer waits at most for somebody who takes over."""
LATE = 0.05
"""Seconds after that until it goes on."""


def is_held(database: sqlite3.Connection, guard: WriteGuard) -> bool:
    if isinstance(guard, Fence):
        query, values = "SELECT 1 FROM runs WHERE id = ? AND epoch = ?", (guard.id, guard.epoch)
    else:
        query = "SELECT 1 FROM leases WHERE name = ? AND member = ? AND epoch = ?"
        values = (guard.name, guard.member, guard.epoch)
    return database.execute(query, values).fetchone() is not None


def stop(database: sqlite3.Connection, guard: WriteGuard) -> None:
    """Be like a process that is stopped before it writes, and goes on when its guard is lost.

    One who has a run stops when its member is gone: whoever is alive is not overtaken.
    """
    if isinstance(guard, Fence):
        alive = "SELECT 1 FROM members JOIN runs ON members.id = member WHERE runs.id = ?"
        if database.execute(alive, (guard.id,)).fetchone() is not None:
            return
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and is_held(database, guard):
        time.sleep(0.001)
    time.sleep(LATE)


class Stopped(SqliteStore):
    """A store without a fault whose writers are stopped until they are overtaken."""

    async def save(self, *given: Any, guard: WriteGuard | None = None, **named: Any) -> None:
        if guard is not None:
            await self.in_writer(stop, guard)
        await super().save(*given, guard=guard, **named)

    async def append(self, appends: Any) -> Appended:
        for append in appends:
            await self.in_writer(stop, append.fence)
        return await super().append(appends)


class NoFence(SqliteStore):
    """Whoever comes may write."""

    async def _check_guard(self, tx: Any, guard: WriteGuard) -> None:
        pass

    async def _is_cancelled(self, tx: Any, owner: str, fence: Fence) -> bool | None:
        return False


class StoppedNoFence(Stopped, NoFence):
    """Whoever comes may write, however late."""


class CheckThenWrite(StoppedNoFence):
    """Guards are checked, and then something is written."""

    async def save(self, *given: Any, guard: WriteGuard | None = None, **named: Any) -> None:
        if guard is not None and not await self.in_writer(is_held, guard):
            raise Overtaken(guard)
        await super().save(*given, guard=guard, **named)

    async def append(self, appends: Any) -> Appended:
        lost = {each.fence for each in appends if not await self.in_writer(is_held, each.fence)}
        await super().append([each for each in appends if each.fence not in lost])
        return Appended(frozenset(lost))


class ReusedEpochOfRun(SqliteStore):
    """A run that is taken over keeps its epoch."""

    async def _take_orphan(self, tx: Any, member: str, id: str, epoch: int) -> int | None:
        await super()._take_orphan(tx, member, id, epoch)
        await tx.fetch("UPDATE runs SET epoch = :epoch WHERE id = :id", epoch=epoch, id=id)
        return epoch


class ReusedEpochOfLease(SqliteStore):
    """A lease that was dropped is granted anew with the same epoch."""

    async def _use_epoch(self, tx: Any, epoch: int) -> None:
        pass


class SecondCounter(SqliteStore):
    """Events are numbered by a counter of the process, not by whoever sends them."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._counts: Counter[str] = Counter()

    async def _put_events(self, tx: Any, owner: str, fence: Fence, chunk: EventChunk) -> None:
        first = self._counts[fence.id]
        self._counts[fence.id] += chunk.count
        await super()._put_events(tx, owner, fence, EventChunk(first, chunk.count, chunk.frames))


class ShownBeforeCommit(SqliteStore):
    """Followers in the same process see events before they are committed, and whether or not."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._shown: list[Append] = []

    async def append(self, appends: Any) -> Appended:
        self._shown += appends
        return await super().append(appends)

    async def follow(self, wanted: Any, most: int = 2**63 - 1) -> list[Followed]:
        return [
            Followed(self._with_shown(follow, answer), answer.is_over)
            for follow, answer in zip(wanted, await super().follow(wanted, most), strict=True)
        ]

    def _with_shown(self, follow: Follow, answer: Followed) -> tuple[EventChunk, ...]:
        own = [each.chunk for each in self._shown if each.fence.id == follow.id and each.chunk.first >= follow.next]
        numbers = {chunk.first for chunk in answer.chunks}
        return (*answer.chunks, *(chunk for chunk in own if chunk.first not in numbers))


KINDS: dict[str, Any] = {
    "sqlite": SqliteStore,
    "stopped": Stopped,
    "no-fence": StoppedNoFence,
    "check-then-write": CheckThenWrite,
}
