"""The operations that SQLite has in a form of its own: the busiest ones, and what its clock and its file need.

A response that is over stays as it is, so a write whose outcome is unknown may be tried again.
"""

import sqlite3
from collections.abc import Sequence

import msgspec

from toolwire.memory.sql.operation import Row, Transaction, reading, transaction, urgent
from toolwire.memory.sql.responses import LINKS, PUT_ITEM, call_id_of
from toolwire.memory.sql.values import MAX_BYTES_PER_READ
from toolwire.memory.sqlite.engine import Engine, Stranger, begin
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
    OriginCheck,
    Overtaken,
    Record,
    RunLimits,
)

LOG_BYTES_TO_COPY = 4 * 1024 * 1024
"""Bytes of the log above which a sweep copies it into the file."""
PAGES_PER_STEP = 1_000
"""Free pages that are given back to the disk in one step."""
INCREMENTAL = 2
"""The mode of a file that can give its pages back like this."""

_STATE = "SELECT owner, status, (SELECT epoch FROM runs r WHERE r.id = h.id) FROM holders h WHERE h.id = :id"
_EPOCH = "SELECT epoch FROM runs WHERE id = :id"
_PUT_HOLDER = """
INSERT INTO holders (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
VALUES (:id, :owner, 'response', :created, now(), :size, :status, :previous, :conversation, :continuation, :fields,
    :response)
ON CONFLICT (id) DO UPDATE SET used = excluded.used, size = excluded.size, status = excluded.status,
    body = excluded.body
"""
_SIZE = """
SELECT (SELECT coalesce(sum(length(item)), 0) FROM items WHERE holder = :id)
    + (SELECT coalesce(sum(length(frames)), 0) FROM events WHERE holder = :id)
"""
_CHAIN = f"""
{LINKS}
SELECT id, previous, used < now() - :touch_after, (SELECT sum(length(item)) FROM items WHERE holder = chain.id)
FROM chain ORDER BY depth
"""
_CHAIN_ITEMS = f"{LINKS} SELECT item FROM chain JOIN items ON holder = chain.id ORDER BY depth DESC, made, place"
_BEFORE_CHAIN = """
SELECT %s FROM items JOIN holders h ON h.id = :oldest AND holder = h.conversation WHERE place < (
    SELECT min(place) FROM items WHERE holder = h.conversation AND id IN (SELECT id FROM items WHERE holder = :oldest))
ORDER BY place
"""
"""What stood in its conversation before the oldest response of a chain."""
_LINK = "UPDATE holders SET continuation = :continuation WHERE id = :id AND owner = :owner"
_PUT_EVENTS = """
INSERT INTO events (holder, first, owner, frames, count, epoch) VALUES (:id, :first, :owner, :frames, :count, :epoch)
ON CONFLICT DO NOTHING
"""
_PUT_RUN = """
INSERT INTO runs (id, owner, member, epoch, is_over, is_started, is_cancelled, plan)
VALUES (:id, :owner, :member, 1, 0, 0, 0, :plan)
"""
_END_RUN = "UPDATE runs SET is_over = 1, plan = x'' WHERE id = :id"
_UNFINISHED = "SELECT count(*), count(*) FILTER (WHERE owner = :owner) FROM runs WHERE is_over = 0"
_OWN_RUN = "SELECT epoch FROM runs WHERE id = :id AND owner = :owner AND member = :member AND is_over = 0"
_HELD = "SELECT is_cancelled FROM runs WHERE id = :id AND owner = :owner AND epoch = :epoch AND is_over = 0"
_COUNT_EPOCH = "UPDATE epochs SET latest = max(latest, :epoch)"
_STRANGERS = """
SELECT m.id, m.boot, m.beat, m.lease FROM members m JOIN members j ON {judge}
WHERE m.boot <> :boot OR m.beat > :uptime
"""
"""Members whose times cannot be compared: of an earlier start of the machine, or of a system that shares the file."""
_IS_RUNNING = "SELECT 1 FROM runs WHERE id = ? AND owner = ? AND is_over = 0"
_CHUNKS = """
SELECT first, count, frames FROM events WHERE holder = :id AND owner = :owner AND first >= coalesce(
    (SELECT max(first) FROM events WHERE holder = :id AND first <= :next), 0) AND first + count > :next
ORDER BY first
"""
"""The chunks of a run from the one that contains an event."""
_GET_VALUE = "SELECT value FROM kept WHERE owner = ? AND kind = ? AND key = ? AND used >= ?"

_fields = msgspec.structs.asdict


class SqliteOperations(Engine):
    """All operations of the SQLite store."""

    @transaction
    async def save(
        self,
        tx: Transaction,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = Effects(),  # noqa: B008 - frozen
        *,
        guard: OriginCheck | None = None,
        last: EventChunk | None = None,
    ) -> None:
        state = await tx.fetch_one(_STATE, id=record.id)
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
        await self._put_items(tx, owner, record, given or (), made)
        if isinstance(guard, Fence):
            if last is not None:
                await self._put_events(tx, owner, guard, last)
            if record.is_over:
                await tx.fetch(_END_RUN, id=record.id)
        await self._put_response(tx, owner, record, [*(given or ()), *made], effects, is_new=state is None)

    @transaction
    async def queue(  # noqa: PLR0913 - as the contract has it
        self,
        tx: Transaction,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        effects: Effects,
        *,
        plan: bytes,
        member: str,
        guard: OriginCheck | None = None,
        limits: RunLimits = RunLimits(),  # noqa: B008 - frozen
    ) -> Fence:
        run = {"id": record.id, "owner": owner, "member": member}
        if await tx.fetch_one(_STATE, id=record.id) is not None:  # this member has queued it before, or it is lost
            own = await tx.fetch_one(_OWN_RUN, **run)
            if own is None:
                raise Overtaken(Fence(record.id, 0))
            return Fence(record.id, own[0])
        if guard is not None:
            await self._check_guard(tx, guard)
        [[in_all, owned]] = await tx.fetch(_UNFINISHED, owner=owner)
        limits.check(in_all, owned)
        await self._put_items(tx, owner, record, given, ())
        await self._put_response(tx, owner, record, given, effects, is_new=True)
        await tx.fetch(_PUT_RUN, **run, plan=plan)
        return Fence(record.id, 1)

    async def _check_guard(self, tx: Transaction, guard: OriginCheck) -> None:
        """Raise `Overtaken` if another process has taken what the guard stands for."""
        if isinstance(guard, Lease):
            await self.check_lease(tx, guard)
        else:
            found = await tx.fetch_one(_EPOCH, id=guard.id)
            if found is None or found[0] != guard.epoch:
                raise Overtaken(guard)

    async def _put_items(
        self, tx: Transaction, owner: str, record: Record, given: Sequence[KeptItem], made: Sequence[KeptItem]
    ) -> None:
        rows: list[dict[str, object]] = []
        for side, items in enumerate((given, made)):
            for place, item in enumerate(items):
                call = call_id_of(bytes(item.raw)) if side and record.conversation else ""
                values = {"made": side, "place": place, "id": item.id, "item": item.raw, "call": call}
                rows.append({"holder": record.id, "owner": owner, **values})
        await tx.execute_many(PUT_ITEM, rows)

    async def _put_response(
        self,
        tx: Transaction,
        owner: str,
        record: Record,
        items: Sequence[KeptItem],
        effects: Effects,
        *,
        is_new: bool,
    ) -> None:
        """Write the row of a response whose items are written, and what it changes elsewhere."""
        if is_new:
            size = sum(len(item.raw) for item in items)
        else:
            [[size]] = await tx.fetch(_SIZE, id=record.id)
        size += len(record.fields) + len(record.response)
        await tx.fetch(_PUT_HOLDER, **_fields(record), owner=owner, size=size)
        if effects.link is not None:
            id, continuation = effects.link
            await tx.fetch(_LINK, id=id, continuation=continuation, owner=owner)
        if effects.conversation:
            await self._link_callers(tx, owner, record.id, effects)
            await self._extend(tx, owner, effects.conversation, items)

    @reading
    async def _read_chain(self, tx: Transaction, owner: str, id: str, most: int) -> Sequence[Row]:
        links = await tx.fetch(_CHAIN, id=id, owner=owner, touch_after=self._touch_after)
        if not links:
            return ()
        oldest, previous = links[-1][0], links[-1][1]
        before = await tx.fetch(_BEFORE_CHAIN % "length(item)", oldest=oldest)
        size = sum(row[0] for row in before) + sum(link[3] or 0 for link in links)
        items: list[Row] = [(None,)]
        if size <= most and not previous:
            items += await tx.fetch(_BEFORE_CHAIN % "item", oldest=oldest)
            items += await tx.fetch(_CHAIN_ITEMS, id=id, owner=owner)
        is_old = any(link[2] for link in links)
        return [(previous, size, item, is_old) for [item] in items]

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
        """Whether a run is to end; None if it is lost or over."""
        found = await tx.fetch_one(_HELD, id=fence.id, owner=owner, epoch=fence.epoch)
        return bool(found[0]) if found is not None else None

    async def _put_events(self, tx: Transaction, owner: str, fence: Fence, chunk: EventChunk) -> None:
        first, count, frames = chunk.first, chunk.count, chunk.frames
        run = {"id": fence.id, "epoch": fence.epoch, "owner": owner}
        await tx.fetch(_PUT_EVENTS, **run, first=first, count=count, frames=frames)

    async def follow(self, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        return await self.in_reader(_follow, wanted, most)

    async def get_values(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = MAX_BYTES_PER_READ
    ) -> list[bytes | None]:
        return await self.in_reader(self._get_values, owner, keys, most)

    def _get_values(
        self, database: sqlite3.Connection, owner: str, keys: Sequence[tuple[str, bytes]], most: int
    ) -> list[bytes | None]:
        oldest = self._clock() - self.age_limit
        found: list[bytes | None] = []
        for key in keys:
            row = database.execute(_GET_VALUE, (owner, *key, oldest)).fetchone() if most > 0 else None
            most -= len(row[0]) if row is not None else 0
            found.append(row[0] if row is not None else None)
        return found

    async def _count_epoch(self, tx: Transaction, epoch: int) -> None:
        await tx.fetch(_COUNT_EPOCH, epoch=epoch)

    async def _find_dead(self, tx: Transaction, judge: str) -> list[str]:
        """Also strangers whose heartbeat has not changed for a lease, by the clock of this process."""
        now = self._steady()
        dead = await super()._find_dead(tx, judge)
        strangers: dict[str, Stranger] = {}
        for id, boot, beat, lease in await tx.fetch(_STRANGERS, judge=judge):
            seen = self._strangers.get(id)
            if seen is None or (seen.boot, seen.beat) != (boot, beat):
                seen = Stranger(boot, beat, now)
            strangers[id] = seen
            if seen.since + lease < now:
                dead.append(id)
        self._strangers = strangers
        return dead

    async def _sweep(self, lease: Lease) -> None:
        await super()._sweep(lease)
        while await self.in_writer(_free_pages):
            pass
        if self._file is not None and self._file.log_size() > LOG_BYTES_TO_COPY:
            await self.in_writer(self._copy_log)


def _follow(database: sqlite3.Connection, wanted: Sequence[Follow], most: int) -> list[Followed]:
    answers: list[Followed] = []
    with begin(database, "DEFERRED"):
        for follow in wanted:
            chunks, is_all = _read_chunks(database, follow, most)
            most -= sum(len(chunk.frames) for chunk in chunks)
            is_running = database.execute(_IS_RUNNING, (follow.id, follow.owner)).fetchone() is not None
            answers.append(Followed(tuple(chunks), is_all and not is_running))
    return answers


def _read_chunks(database: sqlite3.Connection, follow: Follow, most: int) -> tuple[list[EventChunk], bool]:
    """Chunks for a follower, at least one if there is one, and whether these are all."""
    chunks: list[EventChunk] = []
    rows = database.execute(_CHUNKS, _fields(follow))
    for first, count, frames in rows:
        most -= len(frames)
        if chunks and most < 0:
            rows.close()
            return chunks, False
        chunks.append(EventChunk(first, count, frames))
    return chunks, True


def _free_pages(database: sqlite3.Connection) -> bool:
    """Give some free pages back to the disk; whether there are more."""
    free = _pragma(database, "freelist_count")
    if not free or _pragma(database, "auto_vacuum") != INCREMENTAL:
        return False
    database.execute(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})").fetchall()
    return 0 < _pragma(database, "freelist_count") < free


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return database.execute(f"PRAGMA {name}").fetchone()[0]
