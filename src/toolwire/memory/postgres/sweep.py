"""What is too old or too much is let go, by the process that has the lease, a few rows at a time.

Nothing counts along with the writes: a row that every save changes would hold up all of them. How much there is is
added up from an index when it is asked for. Who keeps most gives way first: nobody loses anything while he has no more
than his equal part of the room.
"""

import time
from collections import Counter

from toolwire.memory.postgres.members import PostgresMembers
from toolwire.memory.postgres.responses import CLEAR
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.values import ALIVE, DEAD, JUDGE
from toolwire.memory.store import Lease, StoreStats

SWEEP = "sweep"
"""The lease of the process that lets go."""
AT_ONCE = 64
"""Rows that are let go in one statement."""
MOST_BATCHES = 200
"""Statements that one sweep makes of a kind; the next one goes on."""
REST = 20
"""How many times as long as adding up took, beyond a little, it is not done again."""
LITTLE = 0.05
"""Seconds of work that are no reason to rest."""

_HELD = "held AS (SELECT 1 FROM toolwire.leases WHERE name = :sweep AND member = :member AND epoch = :epoch FOR SHARE)"

_NOT_RUNNING = "NOT EXISTS (SELECT 1 FROM toolwire.runs r WHERE r.id = h.id AND NOT r.is_over)"

_FORGET = """
runs AS (DELETE FROM toolwire.runs WHERE id IN (SELECT id FROM old)),
gone AS (DELETE FROM toolwire.holders WHERE id IN (SELECT id FROM old) RETURNING id, size),
dropped AS (
    INSERT INTO toolwire.dropped (holder, dropped_by) SELECT id, '' FROM gone ON CONFLICT (holder) DO NOTHING
)
"""

_OLD_HOLDERS = Statement(
    f"""
    WITH {_HELD},
    old AS (
        SELECT h.id FROM toolwire.holders h, held
        WHERE h.used < now() - :max_age * interval '1 second' AND {_NOT_RUNNING}
        ORDER BY h.used LIMIT :at_once FOR UPDATE OF h SKIP LOCKED
    ),
    {_FORGET}
    SELECT count(*) FROM gone
    """
)

_OLD_KEPT = Statement(
    f"""
    WITH {_HELD},
    old AS (
        SELECT k.ctid FROM toolwire.kept k, held WHERE k.used < now() - :max_age * interval '1 second'
        ORDER BY k.used LIMIT :at_once FOR UPDATE OF k SKIP LOCKED
    ),
    gone AS (DELETE FROM toolwire.kept WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING 1)
    SELECT count(*) FROM gone
    """
)

_SHARES = Statement(
    """
    SELECT owner, sum(size)::bigint FROM (
        SELECT owner, sum(size) AS size FROM toolwire.holders GROUP BY owner
        UNION ALL SELECT owner, sum(size) FROM toolwire.kept GROUP BY owner
    ) both_tables GROUP BY owner
    """
)

_LEAST_USED = Statement(
    f"""
    WITH {_HELD},
    latest AS (SELECT id FROM toolwire.holders ORDER BY used DESC, id DESC LIMIT 1),
    holders AS (
        SELECT h.id, h.size, h.used FROM toolwire.holders h
        WHERE h.owner = :owner AND {_NOT_RUNNING} AND h.id NOT IN (SELECT id FROM latest) ORDER BY h.used LIMIT :at_once
    ),
    kept AS (SELECT kind, digest, size, used FROM toolwire.kept WHERE owner = :owner ORDER BY used LIMIT :at_once),
    candidates AS (
        SELECT id, NULL AS kind, NULL::bytea AS digest, size, used FROM holders
        UNION ALL SELECT NULL, kind, digest, size, used FROM kept
    ),
    chosen AS (
        SELECT * FROM (
            SELECT *, sum(size) OVER (ORDER BY used, id, kind, digest) - size AS before FROM candidates
            ORDER BY used, id, kind, digest LIMIT :at_once
        ) summed, held WHERE before < :beyond
    ),
    old AS (
        SELECT h.id FROM toolwire.holders h WHERE id IN (SELECT id FROM chosen) ORDER BY h.id FOR UPDATE SKIP LOCKED
    ),
    {_FORGET},
    values_gone AS (
        DELETE FROM toolwire.kept k USING chosen c
        WHERE k.owner = :owner AND k.kind = c.kind AND k.digest = c.digest RETURNING k.size
    )
    SELECT coalesce(sum(size), 0)::bigint, count(*) FROM (
        SELECT size FROM gone UNION ALL SELECT size FROM values_gone
    ) both_tables
    """
)

_BURY = Statement(
    f"""
    WITH dead AS (
        SELECT m.id FROM toolwire.members m JOIN toolwire.members j ON {JUDGE} WHERE {DEAD}
        ORDER BY m.id FOR UPDATE OF m
    ),
    gone AS (DELETE FROM toolwire.members WHERE id IN (SELECT id FROM dead) RETURNING id),
    free AS (
        SELECT l.name, l.epoch FROM toolwire.leases l WHERE l.member IN (SELECT id FROM gone)
            OR NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = l.member)
    )
    DELETE FROM toolwire.leases l USING free WHERE l.name = free.name AND l.epoch = free.epoch
    """
)
"""Members that are dead, and their leases. One that was taken over since the statement began has another epoch."""

_STATS = Statement(
    f"""
    SELECT
        (SELECT coalesce(sum(size), 0)::bigint FROM toolwire.holders)
            + (SELECT coalesce(sum(size), 0)::bigint FROM toolwire.kept),
        (SELECT count(*) FROM toolwire.holders WHERE kind = 'response'),
        (SELECT count(*) FROM toolwire.holders WHERE kind = 'conversation'),
        (SELECT count(*) FROM toolwire.runs WHERE NOT is_over),
        (SELECT count(*) FROM toolwire.members m WHERE {ALIVE})
    """
)


class PostgresSweep(PostgresMembers):
    """The part of the store that keeps it within its bounds."""

    _max_age: float
    _max_size: int
    _rested = 0.0

    async def maintain(self, member: str) -> None:
        lease = await self.holder(SWEEP) or await self.take_lease(SWEEP, member)
        if lease is None or lease.member != member:
            return
        await self._database.write(_BURY, member=member)
        if self._max_age:
            await self._sweep(_OLD_HOLDERS, lease, max_age=self._max_age)
            await self._sweep(_OLD_KEPT, lease, max_age=self._max_age)
        if self._max_size and time.monotonic() >= self._rested:
            await self._sweep_large(lease)
        await self._sweep(CLEAR, lease, id=None)

    async def stats(self) -> StoreStats:
        [row] = await self._database.read(_STATS)
        return StoreStats(*row)

    async def _sweep(self, statement: Statement, lease: Lease, **values: object) -> None:
        """Make a statement that takes away some rows until there are none left for it."""
        for _ in range(MOST_BATCHES):
            [[count]] = await self._database.write(statement, at_once=AT_ONCE, **_guard(lease), **values)
            if not count:
                break

    async def _sweep_large(self, lease: Lease) -> None:
        began = time.monotonic()
        rows = await self._database.read(_SHARES)
        shares: Counter[str] = Counter({owner: size for owner, size in rows})  # noqa: C416 - a row is no tuple
        self._rested = time.monotonic() + REST * max(0.0, time.monotonic() - began - LITTLE)
        for _ in range(MOST_BATCHES):
            beyond = shares.total() - self._max_size
            if beyond <= 0:
                break
            largest = max(shares, key=shares.__getitem__)
            values = {**_guard(lease), "owner": largest, "beyond": beyond, "at_once": AT_ONCE}
            [[size, count]] = await self._database.write(_LEAST_USED, **values)
            if not count:
                break
            shares[largest] -= size


def _guard(lease: Lease) -> dict[str, object]:
    return {"sweep": lease.name, "member": lease.member, "epoch": lease.epoch}
