"""Stores with a fault each, to see that the tests find it. `KINDS` has what a worker process can be asked for."""

import sqlite3
import time
from collections import Counter
from typing import Any

from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.sqlite.guards import check_guard
from toolwire.memory.store import Append, Appended, EventChunk, Fence, Follow, Followed, Guard, Overtaken

PATIENCE = 10.0
"""Seconds for which a stopped writer waits at most for somebody who takes over."""
LATE = 0.05
"""Seconds after that until it goes on."""


def stop(database: sqlite3.Connection, guard: Guard) -> None:
    """Be like a process that is stopped before it writes, and goes on when its guard is lost.

    One who has a run stops when its member is gone: whoever is alive is not overtaken.
    """
    if isinstance(guard, Fence):
        alive = "SELECT 1 FROM members JOIN runs ON members.id = member WHERE runs.id = ?"
        if database.execute(alive, (guard.id,)).fetchone() is not None:
            return
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            check_guard(database, guard)
        except Overtaken:
            break
        time.sleep(0.001)
    time.sleep(LATE)


class Stopped(SqliteStore):
    """A store without a fault whose writers are stopped until they are overtaken."""

    def _save(self, database: sqlite3.Connection, *given: Any) -> None:
        if given[5] is not None:
            stop(database, given[5])
        super()._save(database, *given)

    def _append(self, database: sqlite3.Connection, appends: Any) -> Appended:
        for append in appends:
            stop(database, append.fence)
        return super()._append(database, appends)


class NoFence(SqliteStore):
    """Whoever comes may write."""

    def _check(self, database: sqlite3.Connection, guard: Guard) -> None:
        pass

    def _held(self, database: sqlite3.Connection, owner: str, fence: Fence) -> bool | None:
        return False


class StoppedNoFence(Stopped, NoFence):
    """Whoever comes may write, however late."""


class CheckThenWrite(StoppedNoFence):
    """Guards are checked, and then something is written."""

    def _save(self, database: sqlite3.Connection, *given: Any) -> None:
        if given[5] is not None:
            check_guard(database, given[5])
        super()._save(database, *given)

    def _append(self, database: sqlite3.Connection, appends: Any) -> Appended:
        lost = {each.fence for each in appends if SqliteStore._held(self, database, each.owner, each.fence) is None}
        super()._append(database, [each for each in appends if each.fence not in lost])
        return Appended(frozenset(lost))


class ReusedEpochOfRun(SqliteStore):
    """A run that is taken over keeps its epoch."""

    def _take(self, database: sqlite3.Connection, member: str, id: str, owner: str) -> Any:
        claimed = super()._take(database, member, id, owner)
        database.execute("UPDATE runs SET epoch = epoch - 1 WHERE id = ?", (id,))
        fence = Fence(id, claimed.fence.epoch - 1)
        return type(claimed)(owner, fence, claimed.record, claimed.plan, claimed.next_event, False, False)


class ReusedEpochOfLease(SqliteStore):
    """A lease that was dropped is granted anew with the same epoch."""

    def _new_epoch(self, database: sqlite3.Connection) -> int:
        return database.execute("SELECT COALESCE(MAX(epoch), 0) + 1 FROM leases").fetchone()[0]


class SecondCounter(SqliteStore):
    """Events are numbered by a counter of the process, not by whoever sends them."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._counts: Counter[str] = Counter()

    def _put_events(self, database: sqlite3.Connection, owner: str, fence: Fence, chunk: EventChunk) -> None:
        first = self._counts[fence.id]
        self._counts[fence.id] += chunk.count
        super()._put_events(database, owner, fence, EventChunk(first, chunk.count, chunk.frames))


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
