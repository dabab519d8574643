"""SQLite's own versions of operations: the busiest ones, and those that depend on its clock or its file.

A finished response never changes, so a write whose outcome is unknown may be retried.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing

import msgspec

from toolwire.memory.sql.operation import Transaction, reading, transaction, urgent
from toolwire.memory.sql.responses import NO_EFFECTS
from toolwire.memory.sql.runs import NO_LIMITS
from toolwire.memory.sql.values import MAX_BYTES_PER_READ
from toolwire.memory.sqlite.engine import Engine, SqliteTransaction, Stranger
from toolwire.memory.store import (
    NO_BOUND,
    UNFINISHED,
    Append,
    Appended,
    Effects,
    EventChunk,
    Fence,
    Follow,
    Followed,
    KeptItem,
    Lease,
    Overtaken,
    Record,
    RunLimits,
    TurnBounds,
    WriteGuard,
)

LOG_BYTES_TO_COPY = 4 * 1024 * 1024
"""Bytes of the log above which a sweep copies it into the file."""
PAGES_PER_STEP = 1_000
"""Free pages that are returned to the disk in one step."""
INCREMENTAL = 2
"""The `auto_vacuum` mode of a file that can return its pages like this."""


class SqliteStore(Engine):
    """A store in one file, or in memory: `url` is `sqlite:PATH` or `memory:`."""

    @transaction
    async def save(
        self,
        tx: Transaction,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = NO_EFFECTS,
        *,
        guard: WriteGuard | None = None,
        last: EventChunk | None = None,
    ) -> None:
        state = await tx.fetch_one("state", id=record.id)
        if state is not None and state[0] != owner:
            return
        if isinstance(guard, Fence):
            await self._check_guard(tx, guard)
        if state is not None and state[1] not in UNFINISHED:
            return
        if not isinstance(guard, Fence):
            if guard is not None:
                await self._check_guard(tx, guard)
            if state is not None and state[2] is not None:  # a response with a run is written only with its fence
                raise Overtaken(Fence(record.id, 0))
        if isinstance(guard, Fence):
            if last is not None:
                await self._put_events(tx, owner, guard, last)
            if record.is_over:
                await tx.fetch("end_run", id=record.id)
        await self._put_response(tx, owner, record, given or (), made, effects, is_new=state is None)

    @transaction
    async def queue(  # noqa: PLR0913 - the contract requires it
        self,
        tx: Transaction,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        *,
        plan: bytes,
        member: str,
        guard: WriteGuard | None = None,
        limits: RunLimits = NO_LIMITS,
    ) -> Fence:
        run = {"id": record.id, "owner": owner, "member": member}
        if await tx.fetch_one("state", id=record.id) is not None:  # queued by this member before, or lost
            own = await tx.fetch_one("own_run", **run)
            if own is None:
                raise Overtaken(Fence(record.id, 0))
            return Fence(record.id, own[0])
        if guard is not None:
            await self._check_guard(tx, guard)
        [[in_all, owned]] = await tx.fetch("count_runs", owner=owner)
        limits.check(in_all, owned)
        await self._put_response(tx, owner, record, given, (), effects, is_new=True)
        await tx.fetch("put_run", **run, plan=plan)
        return Fence(record.id, 1)

    async def _check_guard(self, tx: Transaction, guard: WriteGuard) -> None:
        """Raise `Overtaken` if another process has taken over the run or lease."""
        if isinstance(guard, Lease):
            await self._check_lease(tx, guard)
        else:
            found = await tx.fetch_one("epoch_of_run", id=guard.id)
            if found is None or found[0] != guard.epoch:
                raise Overtaken(guard)

    async def _put_response(
        self,
        tx: Transaction,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        made: Sequence[KeptItem],
        effects: Effects,
        *,
        is_new: bool,
    ) -> None:
        """Write a response with its items and its effects."""
        await tx.execute_many("put_item", self._make_item_rows(owner, record, given, made))
        items = [*given, *made]
        if is_new:
            size = sum(len(item.raw) for item in items)
        else:
            [[size]] = await tx.fetch("size_of_response", id=record.id)
        size += len(record.fields) + len(record.response)
        await tx.fetch("put_response", **msgspec.structs.asdict(record), owner=owner, size=size)
        if effects.link is not None:
            id, continuation = effects.link
            await tx.fetch("link_response", id=id, continuation=continuation, owner=owner)
        if effects.conversation:
            await self._link_callers(tx, owner, record.id, effects)
            await self._extend_conversation(tx, owner, effects.conversation, items)

    @urgent
    async def append(self, tx: Transaction, appends: Sequence[Append]) -> Appended:
        lost: set[Fence] = set()
        cancelled: set[Fence] = set()
        for append in appends:
            is_cancelled = await self._is_cancelled(tx, append.owner, append.fence)
            if is_cancelled is None:
                lost.add(append.fence)
                continue
            if is_cancelled:
                cancelled.add(append.fence)
            await self._put_events(tx, append.owner, append.fence, append.chunk)
        return Appended(frozenset(lost), frozenset(cancelled))

    async def _is_cancelled(self, tx: Transaction, owner: str, fence: Fence) -> bool | None:
        """Whether the cancellation of a run was requested; None if the run is lost or over."""
        found = await tx.fetch_one("hold_run", id=fence.id, owner=owner, epoch=fence.epoch)
        return bool(found[0]) if found is not None else None

    async def _put_events(self, tx: Transaction, owner: str, fence: Fence, chunk: EventChunk) -> None:
        first, count, frames = chunk.first, chunk.count, chunk.frames
        run = {"id": fence.id, "epoch": fence.epoch, "owner": owner}
        await tx.fetch("put_events", **run, first=first, count=count, frames=frames)

    @reading
    async def follow(self, tx: SqliteTransaction, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        answers: list[Followed] = []
        for follow in wanted:
            run = {"id": follow.id, "owner": follow.owner}
            chunks: list[EventChunk] = []
            with closing(tx.stream("chunks", **run, number=follow.next)) as rows:
                for row in rows:
                    chunk = EventChunk(*row)
                    if chunks and len(chunk.frames) > most:
                        goes_on = True
                        break
                    chunks.append(chunk)
                    most -= len(chunk.frames)
                else:
                    goes_on = await tx.fetch_one("is_running", **run) is not None
            answers.append(Followed(tuple(chunks), is_over=not goes_on))
        return answers

    @reading
    async def get_values(
        self, tx: Transaction, owner: str, keys: Sequence[tuple[str, bytes]], most: int = MAX_BYTES_PER_READ
    ) -> list[bytes | None]:
        found: list[bytes | None] = []
        given = {"owner": owner, "max_age": self.age_limit}
        for kind, key in keys:
            row = await tx.fetch_one("value", **given, kind=kind, key=key) if most > 0 else None
            most -= len(row[0]) if row is not None else 0
            found.append(row[0] if row is not None else None)
        return found

    async def _use_epoch(self, tx: Transaction, epoch: int) -> None:
        await tx.fetch("use_epoch", epoch=epoch)

    async def _find_dead(self, tx: Transaction, judge: str) -> list[str]:
        """Also members with another clock whose heartbeat has not changed for a lease, by the clock of this process."""
        now = self._steady()
        dead = await super()._find_dead(tx, judge)
        strangers: dict[str, Stranger] = {}
        for id, boot, beat, lease in await tx.fetch("strangers", judge=judge):
            seen = self._strangers.get(id)
            if seen is None or (seen.boot, seen.beat) != (boot, beat):
                seen = Stranger(boot, beat, now)
            strangers[id] = seen
            if seen.since + lease < now:
                dead.append(id)
        self._strangers = strangers
        return dead

    async def _sweep(self, lease: Lease, turns: TurnBounds) -> None:
        await super()._sweep(lease, turns)
        while await self.in_writer(_free_pages):
            pass
        if self._file is not None and self._file.measure_log() > LOG_BYTES_TO_COPY:
            await self.in_writer(self._copy_log)


def _free_pages(database: sqlite3.Connection) -> bool:
    """Return some free pages to the disk; returns whether there are more."""
    free = _read_pragma(database, "freelist_count")
    if not free or _read_pragma(database, "auto_vacuum") != INCREMENTAL:
        return False
    database.execute(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})").fetchall()
    return 0 < _read_pragma(database, "freelist_count") < free


def _read_pragma(database: sqlite3.Connection, name: str) -> int:
    return database.execute(f"PRAGMA {name}").fetchone()[0]
