"""Background runs and their events in SQLite.

A run is kept after it is over, with its last epoch, so that whoever ended it can be told from who lost it.
"""

import sqlite3
from collections.abc import Sequence

from toolwire.memory.sqlite.engine import Snapshot, Transaction
from toolwire.memory.sqlite.guards import ALIVE
from toolwire.memory.sqlite.members import Membership
from toolwire.memory.sqlite.reading import RECORD
from toolwire.memory.sqlite.writing import Writing
from toolwire.memory.store import (
    NO_BOUND,
    Append,
    Appended,
    ClaimedRun,
    Effects,
    EventChunk,
    Fence,
    Follow,
    Followed,
    Guard,
    KeptItem,
    Overtaken,
    Record,
    RunLimits,
)

_UNSEEN = f"SELECT 1 FROM runs WHERE is_over = 0 AND member NOT IN (SELECT id FROM members WHERE {ALIVE}) LIMIT 1"
"""Whether there are runs whose process is gone, or may be."""
_ORPHANS = """
SELECT id, owner FROM runs WHERE is_over = 0 AND member NOT IN (SELECT id FROM members) ORDER BY id LIMIT ?
"""
_INSERT_RUN = """
INSERT INTO runs (id, owner, member, epoch, is_over, is_started, is_cancelled, plan) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_UNFINISHED = "SELECT count(*), count(*) FILTER (WHERE owner = ?) FROM runs WHERE is_over = 0"
NO_LIMITS = RunLimits()
_NEXT_EVENT = "SELECT first + count FROM events WHERE holder = ? ORDER BY first DESC LIMIT 1"
_CHUNKS = """
SELECT first, count, frames FROM events WHERE holder = :id AND owner = :owner AND first >= COALESCE(
    (SELECT MAX(first) FROM events WHERE holder = :id AND first <= :next), 0) AND first + count > :next
ORDER BY first
"""
"""The chunks of a run from the one on that an event is in."""


class BackgroundRuns(Writing, Membership):
    """The part of the store that knows what runs in the background."""

    async def queue(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        *,
        plan: bytes,
        member: str,
        guard: Guard | None = None,
        limits: RunLimits = NO_LIMITS,
    ) -> Fence:
        """Keep a response whose turn has yet to run, and its run, which this member has claimed."""
        return await self._write(self._queue, owner, record, given, effects, (member, plan), guard, limits)

    async def append(self, appends: Sequence[Append]) -> Appended:
        """Commit new events of many runs together. The same append again changes nothing."""
        return await self._write(self._append, appends)

    async def start(self, fence: Fence) -> bool:
        """Commit that something begins which must not be done twice; False if the run is somebody else's by now."""
        return await self._write(self._start, fence)

    async def claim(self, member: str, limit: int) -> list[ClaimedRun]:
        """Take over runs whose process is dead, each with a higher epoch."""
        if not await self._read(self._has_unseen):
            return []
        return await self._write(self._claim, member, limit)

    async def cancel(self, owner: str, id: str) -> bool:
        """Want a run to end; whether there is one that is not over."""
        return await self._write(self._cancel, owner, id)

    async def cancelled(self, member: str) -> list[Fence]:
        """The runs of a member that somebody wants to end."""
        return await self._read(self._cancelled, member)

    async def follow(self, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        """The committed events that followers wait for, an answer for each."""
        return await self._read(self._follow, wanted, most)

    async def events(self, owner: str, id: str, number: int) -> EventChunk | None:
        """The event of this number with those behind it in its chunk, or the last chunk; None if no events are kept."""
        return await self._read(self._events, owner, id, number)

    # In the thread that writes

    def _queue(
        self,
        database: sqlite3.Connection,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        run: tuple[str, bytes],
        guard: Guard | None,
        limits: RunLimits,
    ) -> Fence:
        member, plan = run
        with Transaction(database):
            if database.execute("SELECT 1 FROM holders WHERE id = ?", (record.id,)).fetchone() is not None:
                return _queued_before(database, owner, record.id, member)
            if guard is not None:
                self._check(database, guard)
            limits.check(*database.execute(_UNFINISHED, (owner,)).fetchone())
            fence = Fence(record.id, 1)
            self._put_items(database, owner, record, given, ())
            self._put_holder(database, owner, record, self._size_of(database, record, given, (), is_new=True))
            self._apply(database, owner, record.id, effects, given)
            row = (record.id, owner, member, fence.epoch, 0, 0, 0, plan)
            database.execute(_INSERT_RUN, row)
        return fence

    def _append(self, database: sqlite3.Connection, appends: Sequence[Append]) -> Appended:
        lost: set[Fence] = set()
        cancelled: set[Fence] = set()
        with Transaction(database):
            for append in appends:
                held = self._held(database, append.owner, append.fence)
                if held is None:
                    lost.add(append.fence)
                    continue
                if held:
                    cancelled.add(append.fence)
                self._put_events(database, append.owner, append.fence, append.chunk)
        return Appended(frozenset(lost), frozenset(cancelled))

    def _held(self, database: sqlite3.Connection, owner: str, fence: Fence) -> bool | None:
        """None if the run is lost, or over; else whether somebody wants it to end."""
        query = "SELECT is_cancelled FROM runs WHERE id = ? AND owner = ? AND epoch = ? AND is_over = 0"
        row = database.execute(query, (fence.id, owner, fence.epoch)).fetchone()
        return bool(row[0]) if row is not None else None

    def _start(self, database: sqlite3.Connection, fence: Fence) -> bool:
        change = "UPDATE runs SET is_started = 1 WHERE id = ? AND epoch = ? AND is_over = 0"
        with Transaction(database):
            return database.execute(change, (fence.id, fence.epoch)).rowcount > 0

    def _claim(self, database: sqlite3.Connection, member: str, limit: int) -> list[ClaimedRun]:
        with Transaction(database):
            if not self._is_alive(database, member):
                return []
            self._bury(database, member)
            orphans = database.execute(_ORPHANS, (limit,)).fetchall()
            return [self._take(database, member, id, owner) for id, owner in orphans]

    def _take(self, database: sqlite3.Connection, member: str, id: str, owner: str) -> ClaimedRun:
        change = (
            "UPDATE runs SET member = ?, epoch = epoch + 1 WHERE id = ? RETURNING epoch, plan, is_started, is_cancelled"
        )
        ((epoch, plan, is_started, is_cancelled),) = database.execute(change, (member, id)).fetchall()
        record = Record(*database.execute(f"SELECT {RECORD} FROM holders WHERE id = ?", (id,)).fetchone())
        events = database.execute(_NEXT_EVENT, (id,)).fetchone()
        next_event = events[0] if events is not None else 0
        return ClaimedRun(owner, Fence(id, epoch), record, plan, next_event, bool(is_started), bool(is_cancelled))

    def _cancel(self, database: sqlite3.Connection, owner: str, id: str) -> bool:
        change = "UPDATE runs SET is_cancelled = 1 WHERE id = ? AND owner = ? AND is_over = 0"
        with Transaction(database):
            return database.execute(change, (id, owner)).rowcount > 0

    # In the thread that reads

    def _has_unseen(self, database: sqlite3.Connection) -> bool:
        return database.execute(_UNSEEN, self._now()).fetchone() is not None

    def _cancelled(self, database: sqlite3.Connection, member: str) -> list[Fence]:
        query = "SELECT id, epoch FROM runs WHERE member = ? AND is_cancelled = 1 AND is_over = 0"
        return [Fence(*row) for row in database.execute(query, (member,))]

    def _follow(self, database: sqlite3.Connection, wanted: Sequence[Follow], most: int) -> list[Followed]:
        answers: list[Followed] = []
        with Snapshot(database):
            for follow in wanted:
                chunks, is_all = _chunks(database, follow, most)
                most -= sum(len(chunk.frames) for chunk in chunks)
                answers.append(Followed(tuple(chunks), is_all and not _runs(database, follow)))
        return answers

    def _events(self, database: sqlite3.Connection, owner: str, id: str, number: int) -> EventChunk | None:
        query = (
            "SELECT first, count, frames FROM events WHERE holder = ? AND owner = ? AND first <= ? "
            "ORDER BY first DESC LIMIT 1"
        )
        row = database.execute(query, (id, owner, number)).fetchone()
        return EventChunk(*row) if row is not None else None


def _queued_before(database: sqlite3.Connection, owner: str, id: str, member: str) -> Fence:
    """The fence of a run that this member has queued already."""
    query = "SELECT epoch FROM runs WHERE id = ? AND owner = ? AND member = ? AND is_over = 0"
    row = database.execute(query, (id, owner, member)).fetchone()
    if row is None:
        raise Overtaken(Fence(id, 0))
    return Fence(id, row[0])


def _runs(database: sqlite3.Connection, follow: Follow) -> bool:
    query = "SELECT 1 FROM runs WHERE id = ? AND owner = ? AND is_over = 0"
    return database.execute(query, (follow.id, follow.owner)).fetchone() is not None


def _chunks(database: sqlite3.Connection, follow: Follow, most: int) -> tuple[list[EventChunk], bool]:
    """Chunks that a follower waits for, at least one if there is one, and whether these are all."""
    chunks: list[EventChunk] = []
    rows = database.execute(_CHUNKS, {"id": follow.id, "owner": follow.owner, "next": follow.next})
    for first, count, frames in rows:
        most -= len(frames)
        if chunks and most < 0:
            rows.close()
            return chunks, False
        chunks.append(EventChunk(first, count, frames))
    return chunks, True
