"""The operations that PostgreSQL has as one statement each, because they are the busiest.

All parts of a statement see the tables as they were when it began, whatever it had to wait for. So every decision is
taken from the row that is written or locked: the guard of the writer, whether the response is over, the next place in a
conversation. A row is written by one part at most; PostgreSQL would ignore what a second one does to it.

The function `count_runs` is the exception: a query in a volatile function sees what was committed before that query. So
runs are counted after waiting for the lock, and no other run is added until this statement is committed.

A statement that is sent again because its connection was lost finds its own token, and changes nothing.
"""

import secrets
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

from toolwire.memory.postgres.database import Engine
from toolwire.memory.sql.operation import Row, Transaction, urgent
from toolwire.memory.sql.responses import LINKS, call_id_of
from toolwire.memory.sql.values import MAX_BYTES_PER_READ
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

MAX_CHUNKS_PER_READ = 512
"""Most chunks that one follower gets at a time."""
MAX_KEY_BYTES = 500
"""Bytes of an id that is stored as it is; an index takes no more than some 2,700."""
_DIGEST = "#"
"""Marks the digest of an id; an id that begins with it is digested too, so that the two are never the same."""

GuardKind: TypeAlias = Literal["none", "fence", "lease"]

GUARDS: dict[GuardKind, str] = {
    "none": "SELECT 1 AS held WHERE true %(room)s",
    "fence": """
        UPDATE toolwire.runs SET is_over = :is_over, plan = CASE WHEN :is_over THEN '' ELSE plan END
        WHERE id = :guard AND epoch = :epoch AND NOT is_over %(room)s RETURNING 1 AS held
    """,
    "lease": """
        SELECT 1 AS held FROM toolwire.leases WHERE name = :guard AND member = :member AND epoch = :epoch %(room)s
        FOR SHARE
    """,
}
"""One row if the writer may write, and locked: a process that takes the guard waits for the writer, and vice versa."""

SAVE = """
WITH %(count)s guard AS (%(guard)s),
given AS (
    SELECT * FROM unnest(:made::smallint[], :place::bigint[], :item_id::text[], :whole_id::bytea[], :call::text[],
        :item::bytea[]) WITH ORDINALITY AS given (made, place, id, whole_id, call, item, number)
),
saved AS (
    INSERT INTO toolwire.holders AS h
        (id, owner, kind, created, size, status, previous, conversation, continuation, fields, body, written_by)
    SELECT :id, :owner, 'response', :created, :size::bigint%(journal_size)s,
        :status, :previous, :conversation, :continuation, :fields, :body, :token FROM guard
    ON CONFLICT (id) %(known)s
    RETURNING 1
),
kept AS (
    INSERT INTO toolwire.items (holder, made, place, id, whole_id, owner, call, item)
    SELECT :id, given.made, given.place, given.id, given.whole_id, :owner, given.call, given.item FROM given, saved
    ON CONFLICT (holder, made, place) DO UPDATE
        SET id = excluded.id, whole_id = excluded.whole_id, call = excluded.call, item = excluded.item
)
%(more)s
SELECT %(result)s
"""
_COUNT = "runs AS MATERIALIZED (SELECT in_all, owned FROM toolwire.count_runs(:owner)),"
_ROOM = "AND (SELECT in_all < :most_in_all AND owned < :most_owned FROM runs)"
"""A condition of the guard, so that its row is locked after the runs are counted."""
_UPDATE = """
DO UPDATE SET used = now(), status = excluded.status, body = excluded.body, written_by = excluded.written_by,
    size = h.size + excluded.size - length(h.fields) - length(h.body)
WHERE h.owner = excluded.owner AND h.kind = 'response' AND h.status = ANY (:unfinished::text[])
    AND h.written_by <> excluded.written_by
"""
_UNFENCED = "AND NOT EXISTS (SELECT 1 FROM toolwire.runs r WHERE r.id = h.id)"
"""A response with a run is written only with its fence."""
_JOURNAL_SIZE = """
    + (SELECT coalesce(sum(length(frames)), 0)::bigint FROM toolwire.journal WHERE response = :id)
"""
_LAST = """,
journaled AS (
    INSERT INTO toolwire.journal (response, first, count, epoch, frames)
    SELECT :id, :first, :count, :epoch, :frames FROM guard, saved ON CONFLICT DO NOTHING
)
"""
_RUN = """,
queued AS (
    INSERT INTO toolwire.runs (id, owner, member, epoch, plan) SELECT :id, :owner, :runner, 1, :plan FROM saved
)
"""
_CONVERSATION = """,
conversation AS (
    UPDATE toolwire.holders c SET used = now(), places = c.places + :places, size = c.size + (
        SELECT coalesce(sum(length(item)), 0) FROM given)
    FROM saved WHERE c.id = :into AND c.owner = :owner AND c.kind = 'conversation'
    RETURNING c.places - :places AS first
),
added AS (
    INSERT INTO toolwire.items (holder, made, place, id, whole_id, owner, item)
    SELECT :into, 0, first + number - 1, id, whole_id, :owner, item FROM given, conversation
)
"""
_LINKS = """,
callers AS (
    SELECT :link AS id, :link_to AS continuation FROM saved WHERE :link <> ''
    UNION ALL
    SELECT DISTINCT i.holder, :id FROM saved, toolwire.items i JOIN toolwire.holders h ON h.id = i.holder
    WHERE i.owner = :owner AND i.call = ANY (:answered::text[]) AND i.made = 1
        AND h.owner = :owner AND h.conversation = :into AND h.id <> :id
),
linked AS (
    UPDATE toolwire.holders h SET continuation = c.continuation
    FROM (SELECT id, max(continuation) AS continuation FROM callers GROUP BY id ORDER BY id) c
    WHERE h.id = c.id AND h.owner = :owner
)
"""
_STATE = """
SELECT h.owner = :owner AND h.status = ANY (:unfinished::text[]),
    (SELECT r.epoch FROM toolwire.runs r WHERE r.id = h.id)
FROM toolwire.holders h WHERE h.id = :id
"""
_OWN_RUN = "SELECT epoch FROM toolwire.runs WHERE id = :id AND owner = :owner AND member = :member AND NOT is_over"

APPEND = """
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
"""A run's row stays locked until its events are committed; a process that takes the run over waits for that.

An append that is made again finds its own chunk, which stays as it is. A run that is lost is not among `mine`.
"""

_CHAIN = f"""
{LINKS},
oldest AS (SELECT * FROM chain ORDER BY depth DESC LIMIT 1),
beginning AS (
    SELECT min(i.place) AS place FROM oldest
    JOIN toolwire.items own ON own.holder = oldest.id
    JOIN toolwire.items i ON i.holder = oldest.conversation AND i.id = own.id
),
said AS (
    SELECT 1000000 AS depth, 0 AS made, i.place, i.item FROM oldest, beginning, toolwire.items i
    WHERE i.holder = oldest.conversation AND i.made = 0 AND i.place < beginning.place
    UNION ALL
    SELECT depth, i.made, i.place, i.item FROM chain JOIN toolwire.items i ON i.holder = chain.id
),
weighed AS (SELECT *, sum(length(item)) OVER () AS total FROM said)
SELECT oldest.previous, w.total::bigint, CASE WHEN w.total <= :most AND oldest.previous = '' THEN w.item END,
    (SELECT min(used) < now() - :touch_after * interval '1 second' FROM chain)
FROM oldest LEFT JOIN weighed w ON true ORDER BY w.depth DESC, w.made, w.place
"""
"""What stood in its conversation before the oldest response comes first. At least one row if there is a response."""

_FOLLOW = """
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

_GET_VALUES = """
WITH found AS (
    SELECT given.number, k.value, coalesce(sum(length(k.value)) OVER (
        ORDER BY given.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM unnest(:kinds::text[], :digests::bytea[]) WITH ORDINALITY AS given (kind, digest, number)
    JOIN toolwire.kept k ON k.owner = :owner AND k.kind = given.kind AND k.digest = given.digest
        AND k.used >= now() - :max_age * interval '1 second'
)
SELECT number, value FROM found WHERE before < :most
"""

_CLEAR = """
WITH gone AS (
    SELECT holder FROM toolwire.dropped d WHERE NOT EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.id = d.holder)
    ORDER BY holder LIMIT 64 FOR UPDATE SKIP LOCKED
),
items AS (DELETE FROM toolwire.items WHERE holder IN (SELECT holder FROM gone)),
journal AS (DELETE FROM toolwire.journal WHERE response IN (SELECT holder FROM gone)),
done AS (DELETE FROM toolwire.dropped WHERE holder IN (SELECT holder FROM gone) RETURNING 1)
SELECT count(*) FROM done
"""
"""Deletes what responses left behind that processes of an earlier version deleted: those delete in two steps."""


@cache
def save_statement(guard: GuardKind, *, has_last: bool, is_over: bool, is_run: bool, into: bool, links: bool) -> str:
    """The statement of a save: only the parts that it needs."""
    parts = ((_LAST, has_last), (_RUN, is_run), (_CONVERSATION, into), (_LINKS, links))
    return SAVE % {
        "count": _COUNT if is_run else "",
        "guard": GUARDS[guard] % {"room": _ROOM if is_run else ""},
        "journal_size": _JOURNAL_SIZE if guard == "fence" and is_over else "",
        "known": "DO NOTHING" if is_run else _UPDATE + ("" if guard == "fence" else _UNFENCED),
        "more": "".join(part for part, is_needed in parts if is_needed),
        "result": "(SELECT count(*) FROM saved), in_all, owned FROM runs" if is_run else "count(*) FROM saved",
    }


class NewRun(NamedTuple):
    """A background run that a save begins."""

    member: str
    plan: bytes
    limits: RunLimits


class PostgresOperations(Engine):
    """All operations of the PostgreSQL store."""

    def key(self, id: str) -> str:
        """The id, or a digest: a text column cannot hold NUL or a lone surrogate, nor an index a very long id."""
        if len(id) <= MAX_KEY_BYTES // 4 and id.isascii() and "\0" not in id and not id.startswith(_DIGEST):
            return id
        encoded = id.encode("utf-8", "surrogatepass")
        is_fit = len(encoded) <= MAX_KEY_BYTES and b"\0" not in encoded and not id.startswith(_DIGEST)
        if is_fit and encoded == id.encode("utf-8", "replace"):
            return id
        return _DIGEST + blake2b(encoded, digest_size=32).hexdigest()

    def digest(self, key: bytes) -> bytes:
        return key if len(key) < 64 else blake2b(key, digest_size=64).digest()

    async def save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = Effects(),  # noqa: B008 - frozen
        *,
        guard: OriginCheck | None = None,
        last: EventChunk | None = None,
    ) -> None:
        [[is_saved]] = await self._save(owner, record, given or (), made, effects, guard, last=last)
        if not is_saved:
            await self._check_unsaved(owner, record.id, guard)

    async def queue(
        self,
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
        run = NewRun(member, plan, limits)
        [[is_saved, in_all, owned]] = await self._save(owner, record, given, (), effects, guard, run=run)
        if is_saved:
            return Fence(record.id, 1)
        rows = await self.query(_OWN_RUN, id=self.key(record.id), owner=owner, member=member)
        if not rows:
            limits.check(in_all, owned)
            raise Overtaken(guard or Fence(record.id, 0))
        return Fence(record.id, rows[0][0])

    async def _save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem],
        made: Sequence[KeptItem],
        effects: Effects,
        guard: OriginCheck | None,
        *,
        last: EventChunk | None = None,
        run: NewRun | None = None,
    ) -> Sequence[Row]:
        """Save a response with all that this changes, in one statement; the first number is 0 if nothing was saved."""
        has_calls = bool(record.conversation)
        rows = [self.item_row(owner, "", 0, place, item) for place, item in enumerate(given)]
        for place, item in enumerate(made):
            call = call_id_of(bytes(item.raw)) if has_calls else ""
            rows.append(self.item_row(owner, "", 1, place, item, call))
        size = sum(len(item.raw) for item in (*given, *made)) + len(record.fields) + len(record.response)
        link, link_to = effects.link or ("", "")
        statement = save_statement(
            "none" if guard is None else "fence" if isinstance(guard, Fence) else "lease",
            has_last=last is not None and isinstance(guard, Fence),
            is_over=record.is_over,
            is_run=run is not None,
            into=bool(effects.conversation and rows),
            links=bool(link or (effects.conversation and effects.answered)),
        )
        values: dict[str, object] = {
            "id": self.key(record.id),
            "owner": owner,
            "created": record.created,
            "status": record.status,
            "previous": self.key(record.previous),
            "conversation": self.key(record.conversation),
            "continuation": self.key(record.continuation),
            "fields": record.fields,
            "body": record.response,
            "size": size + (len(last.frames) if last is not None else 0),
            "token": secrets.token_hex(8),
            "unfinished": UNFINISHED,
            "is_over": record.is_over,
            "item_id": [row["id"] for row in rows],
            "into": self.key(effects.conversation),
            "places": len(rows),
            "answered": [self.key(call) for call in effects.answered],
            "link": self.key(link),
            "link_to": self.key(link_to),
        }
        values |= {name: [row[name] for row in rows] for name in ("made", "place", "whole_id", "call", "item")}
        match guard:
            case Fence(id, epoch):
                values |= {"guard": self.key(id), "epoch": epoch}
            case Lease(name, member, epoch):
                values |= {"guard": self.key(name), "member": member, "epoch": epoch}
            case None:
                pass
        if last is not None:
            values |= {"first": last.first, "count": last.count, "frames": last.frames}
        if run is not None:
            values |= {"runner": run.member, "plan": run.plan}
            values |= {"most_in_all": run.limits.in_all, "most_owned": run.limits.per_owner}
        return await self.change(statement, **values)

    async def _check_unsaved(self, owner: str, id: str, guard: OriginCheck | None) -> None:
        """Raise `Overtaken`, unless nothing had to be saved: an earlier attempt may have saved it."""
        rows = await self.query(_STATE, id=self.key(id), owner=owner, unfinished=UNFINISHED)
        is_unfinished, epoch = rows[0] if rows else (False, None)
        if isinstance(guard, Fence):
            if epoch != guard.epoch:
                raise Overtaken(guard)
        elif guard is not None and (is_unfinished or not rows):
            raise Overtaken(guard)
        elif is_unfinished and epoch is not None:
            raise Overtaken(Fence(id, 0))

    async def _read_chain(self, owner: str, id: str, most: int) -> Sequence[Row]:
        values = {"id": self.key(id), "owner": owner, "most": most, "touch_after": self._touch_after}
        return await self.query(_CHAIN, **values)

    @urgent
    async def append(self, tx: Transaction, appends: Sequence[Append]) -> Appended:
        rows = await tx.fetch(
            APPEND,
            ids=[self.key(each.fence.id) for each in appends],
            owners=[each.owner for each in appends],
            epochs=[each.fence.epoch for each in appends],
            firsts=[each.chunk.first for each in appends],
            counts=[each.chunk.count for each in appends],
            frames=[each.chunk.frames for each in appends],
        )
        mine = {(row[0], row[1]): row[2] for row in rows}
        found = [(each.fence, mine.get((self.key(each.fence.id), each.fence.epoch))) for each in appends]
        return Appended(
            frozenset(fence for fence, is_cancelled in found if is_cancelled is None),
            frozenset(fence for fence, is_cancelled in found if is_cancelled),
        )

    async def follow(self, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        rows = await self.query(
            _FOLLOW,
            ids=[self.key(each.id) for each in wanted],
            owners=[each.owner for each in wanted],
            nexts=[each.next for each in wanted],
            chunks=MAX_CHUNKS_PER_READ,
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

    async def get_values(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = MAX_BYTES_PER_READ
    ) -> list[bytes | None]:
        kinds, digests = [kind for kind, _ in keys], [self.digest(key) for _, key in keys]
        values = {"owner": owner, "kinds": kinds, "digests": digests, "max_age": self.age_limit, "most": most}
        found = {row[0]: row[1] for row in await self.query(_GET_VALUES, **values)}
        return [found.get(number) for number in range(1, len(keys) + 1)]

    async def _sweep(self, lease: Lease) -> None:
        await super()._sweep(lease)
        while (await self.change(_CLEAR))[0][0]:
            pass
