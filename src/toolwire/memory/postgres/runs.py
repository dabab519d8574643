"""Background runs and their events in PostgreSQL.

A run's row is locked by whoever writes its events until they are committed, and who takes the run over waits for that.
Every statement that locks several runs does so in the order of their ids.
"""

import asyncio
import secrets
from collections.abc import Sequence

from toolwire.memory.postgres.database import Row
from toolwire.memory.postgres.responses import PostgresResponses
from toolwire.memory.postgres.saving import NewRun, Save
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.values import ALIVE, DEAD, JUDGE, RECORD, key_of, record_of
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

CHUNKS_AT_ONCE = 512
"""Most chunks that one follower gets at a time."""

APPEND_TEXT = """
WITH given AS (
    SELECT * FROM unnest(:ids::text[], :owners::text[], :epochs::bigint[], :firsts::bigint[], :counts::bigint[],
        :frames::bytea[]) AS given (id, owner, epoch, first, count, frames)
),
mine AS (
    SELECT r.id, r.epoch, r.is_cancelled FROM toolwire.runs r
    WHERE (r.id, r.owner, r.epoch) IN (SELECT id, owner, epoch FROM given) AND NOT r.is_over
    ORDER BY r.id FOR SHARE OF r
),
added AS (
    INSERT INTO toolwire.journal (response, first, count, epoch, frames)
    SELECT given.id, given.first, given.count, given.epoch, given.frames FROM given JOIN mine USING (id, epoch)
    ON CONFLICT DO NOTHING
)
SELECT id, epoch, is_cancelled FROM mine
"""
"""An append that is made again finds its own chunk, which stays as it is. A run that is lost is not among `mine`."""
APPEND = Statement(APPEND_TEXT)

_QUEUED = Statement(
    "SELECT epoch FROM toolwire.runs WHERE id = :id AND owner = :owner AND member = :member AND NOT is_over"
)

NO_LIMITS = RunLimits()

START = Statement(
    """
    UPDATE toolwire.runs SET is_started = true WHERE id = :id AND epoch = :epoch AND NOT is_over RETURNING 1
    """
)

CLAIM = Statement(
    f"""
    WITH dead AS (
        SELECT m.id FROM toolwire.members m JOIN toolwire.members j ON {JUDGE} WHERE {DEAD}
        ORDER BY m.id FOR UPDATE OF m
    ),
    gone AS (DELETE FROM toolwire.members WHERE id IN (SELECT id FROM dead) RETURNING id),
    free AS (
        SELECT r.id, r.epoch FROM toolwire.runs r WHERE NOT r.is_over
            AND EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = :member AND {ALIVE}) AND (
            r.member IN (SELECT id FROM gone)
            OR NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = r.member)
        ) ORDER BY r.id LIMIT :limit
    ),
    locked AS (
        SELECT r.id, r.epoch FROM toolwire.runs r JOIN free USING (id, epoch) ORDER BY r.id FOR UPDATE OF r
    )
    UPDATE toolwire.runs r SET member = :member, epoch = r.epoch + 1, claimed = :token
    FROM locked WHERE r.id = locked.id RETURNING r.id
    """
)
"""A member that is dead is taken away with the first claim, and its runs become free with it."""

CLAIMED = Statement(
    f"""
    SELECT r.owner, r.epoch, r.plan, r.is_started, r.is_cancelled,
        coalesce((SELECT max(first + count) FROM toolwire.journal WHERE response = r.id), 0)::bigint, {RECORD}
    FROM toolwire.runs r JOIN toolwire.holders h ON h.id = r.id
    WHERE r.member = :member AND r.claimed = :token AND NOT r.is_over ORDER BY r.id
    """
)
"""What was claimed, as a later statement sees it: with all that was committed before the claim."""

_CANCEL = Statement(
    """
    UPDATE toolwire.runs SET is_cancelled = true WHERE id = :id AND owner = :owner AND NOT is_over RETURNING 1
    """
)
_CANCELLED = Statement(
    "SELECT id, epoch FROM toolwire.runs WHERE member = :member AND is_cancelled AND NOT is_over ORDER BY id"
)

_FOLLOW = Statement(
    """
    WITH wanted AS (
        SELECT * FROM unnest(:ids::text[], :owners::text[], :nexts::bigint[])
            WITH ORDINALITY AS wanted (id, owner, next, number)
    ),
    runs AS (
        SELECT w.number, w.id, w.next, h.id IS NOT NULL AS is_there, r.id IS NULL AS is_over
        FROM wanted w
        LEFT JOIN toolwire.holders h ON h.id = w.id AND h.owner = w.owner
        LEFT JOIN toolwire.runs r ON r.id = h.id AND NOT r.is_over
    ),
    found AS (
        SELECT runs.number, c.first, c.count, c.frames,
            row_number() OVER (PARTITION BY runs.number ORDER BY c.first) AS place,
            sum(length(c.frames)) OVER (ORDER BY runs.number, c.first) AS total
        FROM runs CROSS JOIN LATERAL (
            SELECT j.first, j.count, j.frames FROM toolwire.journal j
            WHERE j.response = runs.id AND runs.is_there AND j.first + j.count > runs.next AND j.first >= coalesce(
                (SELECT max(b.first) FROM toolwire.journal b WHERE b.response = runs.id AND b.first <= runs.next), 0)
            ORDER BY j.first LIMIT :chunks
        ) c
    ),
    ends AS (
        SELECT number, is_over AND NOT EXISTS (
            SELECT 1 FROM toolwire.journal j WHERE j.response = runs.id AND runs.is_there AND j.first >= greatest(
                runs.next, (SELECT max(f.first + f.count) FROM found f WHERE f.number = runs.number
                    AND (f.place = 1 OR f.total <= :most)))
        ) AS is_over FROM runs
    )
    SELECT e.number, e.is_over, f.first, f.count, f.frames FROM ends e
    LEFT JOIN found f ON f.number = e.number AND (f.place = 1 OR f.total <= :most)
    WHERE f.number IS NOT NULL OR e.is_over ORDER BY e.number, f.first
    """
)

_EVENTS = Statement(
    """
    SELECT j.first, j.count, j.frames FROM toolwire.journal j JOIN toolwire.holders h ON h.id = j.response
    WHERE j.response = :id AND h.owner = :owner AND j.first <= :number ORDER BY j.first DESC LIMIT 1
    """
)


class PostgresRuns(PostgresResponses):
    """The part of the store for background runs."""

    _claim_token: str
    _claiming: asyncio.Lock

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
        save = Save(owner, record, given, (), effects, guard, run=NewRun(member, plan, limits))
        [[is_saved, in_all, owned]] = await self._database.write(save.statement, **save.values)
        if is_saved:
            return Fence(record.id, 1)
        rows = await self._database.read(_QUEUED, id=key_of(record.id), owner=owner, member=member)
        if not rows:
            limits.check(in_all, owned)
            raise Overtaken(guard or Fence(record.id, 0))
        return Fence(record.id, rows[0][0])

    async def append(self, appends: Sequence[Append]) -> Appended:
        rows = await self._database.flush(
            APPEND,
            ids=[key_of(each.fence.id) for each in appends],
            owners=[each.owner for each in appends],
            epochs=[each.fence.epoch for each in appends],
            firsts=[each.chunk.first for each in appends],
            counts=[each.chunk.count for each in appends],
            frames=[each.chunk.frames for each in appends],
        )
        mine = {(row[0], row[1]): row[2] for row in rows}
        found = [(each.fence, mine.get((key_of(each.fence.id), each.fence.epoch))) for each in appends]
        return Appended(
            frozenset(fence for fence, is_cancelled in found if is_cancelled is None),
            frozenset(fence for fence, is_cancelled in found if is_cancelled),
        )

    async def start(self, fence: Fence) -> bool:
        return bool(await self._database.write(START, id=key_of(fence.id), epoch=fence.epoch))

    async def claim(self, member: str, limit: int) -> list[ClaimedRun]:
        # The token stays until what was claimed by it is known here: otherwise a claim whose answer was lost would
        # leave runs with a process that knows nothing of them. One claim at a time uses it: two would find the same.
        async with self._claiming:
            token = self._claim_token
            await self._database.write(CLAIM, member=member, limit=limit, token=token)
            rows = await self._database.read(CLAIMED, member=member, token=token)
            self._claim_token = secrets.token_hex(8)
        return [_claimed(row) for row in rows]

    async def cancel(self, owner: str, id: str) -> bool:
        return bool(await self._database.write(_CANCEL, id=key_of(id), owner=owner))

    async def cancelled(self, member: str) -> list[Fence]:
        return [Fence(*row) for row in await self._database.read(_CANCELLED, member=member)]

    async def follow(self, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        rows = await self._database.read(
            _FOLLOW,
            ids=[key_of(each.id) for each in wanted],
            owners=[each.owner for each in wanted],
            nexts=[each.next for each in wanted],
            chunks=CHUNKS_AT_ONCE,
            most=most,
        )
        chunks: dict[int, list[EventChunk]] = {}
        over: dict[int, bool] = {}
        for number, is_over, *chunk in rows:
            over[number] = is_over
            if chunk[0] is not None:
                chunks.setdefault(number, []).append(EventChunk(*chunk))
        return [
            Followed(tuple(chunks.get(number, ())), over.get(number, False)) for number in range(1, len(wanted) + 1)
        ]

    async def events(self, owner: str, id: str, number: int) -> EventChunk | None:
        rows = await self._database.read(_EVENTS, id=key_of(id), owner=owner, number=number)
        return EventChunk(*rows[0]) if rows else None


def _claimed(row: Row) -> ClaimedRun:
    owner, epoch, plan, is_started, is_cancelled, next_event, *columns = row
    record = record_of(columns)
    return ClaimedRun(owner, Fence(record.id, epoch), record, plan, next_event, is_started, is_cancelled)
