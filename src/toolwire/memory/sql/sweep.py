"""Deletes expired and excess rows; runs in one process at a time, the holder of a lease.

Sizes are not counted while rows are written, because a counter that every save changes would hold up all of them: they
are added up from an index when they are needed. If the store is too large, the owner with the most bytes loses the rows
it used longest ago. So no owner loses anything while it has no more than an equal share.
"""

import time
from collections import Counter
from contextlib import suppress
from operator import itemgetter

from toolwire.memory.sql.operation import Row, Transaction, reading, transaction
from toolwire.memory.sql.responses import forget
from toolwire.memory.sql.runs import RunOperations
from toolwire.memory.sql.values import ValueOperations
from toolwire.memory.store import Lease, Overtaken, StoreStats

SWEEP = "sweep"
"""The name of the lease."""
ROWS_PER_TRANSACTION = 64
"""Rows that are deleted in one transaction, so that writers need not wait long."""
MAX_BATCHES = 200
"""Transactions of one kind in a sweep; the next sweep continues."""
REST_FACTOR, FREE_SECONDS = 20, 0.05
"""Adding up all sizes is not repeated for this many times as long as it took, beyond the free seconds."""

_UNALIVE = "SELECT 1 FROM toolwire.members m WHERE NOT ({alive}) LIMIT 1"
_ABANDONED = """
SELECT 1 FROM toolwire.leases l
WHERE NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = l.member) LIMIT 1
"""
_NOT_RUNNING = "NOT EXISTS (SELECT 1 FROM toolwire.runs r WHERE r.id = h.id AND r.is_over = false)"
_EXPIRED = "used < now() - :max_age * interval '1 second'"
_HAS_EXPIRED = f"""
SELECT 1 WHERE EXISTS (SELECT 1 FROM toolwire.holders h WHERE h.{_EXPIRED} AND {_NOT_RUNNING})
    OR EXISTS (SELECT 1 FROM toolwire.kept k WHERE k.{_EXPIRED})
"""
_EXPIRED_HOLDERS = f"""
SELECT h.id FROM toolwire.holders h WHERE h.{_EXPIRED} AND {_NOT_RUNNING}
ORDER BY h.used LIMIT :most FOR UPDATE OF h SKIP LOCKED
"""
_EXPIRED_VALUES = f"""
SELECT owner, kind, {{key_index}} FROM toolwire.kept WHERE {_EXPIRED} ORDER BY used LIMIT :most FOR UPDATE SKIP LOCKED
"""
_LEAST_USED_HOLDERS = f"""
SELECT h.used, h.size, h.id FROM toolwire.holders h WHERE h.owner = :owner AND {_NOT_RUNNING}
    AND h.id <> (SELECT l.id FROM toolwire.holders l ORDER BY l.used DESC, l.id DESC LIMIT 1)
ORDER BY h.used LIMIT :most FOR UPDATE OF h SKIP LOCKED
"""
"""The row used last in the whole store stays, however large it is."""
_LEAST_USED_VALUES = """
SELECT used, size, kind, {key_index} FROM toolwire.kept WHERE owner = :owner ORDER BY used LIMIT :most
FOR UPDATE SKIP LOCKED
"""
_DELETE_VALUE = "DELETE FROM toolwire.kept WHERE owner = :owner AND kind = :kind AND {key_index} = :digest"
_SHARES = """
SELECT owner, sum(size)::bigint FROM (
    SELECT owner, sum(size) AS size FROM toolwire.holders GROUP BY owner
    UNION ALL SELECT owner, sum(size) FROM toolwire.kept GROUP BY owner
) both_tables GROUP BY owner
"""
_STATS = """
SELECT (SELECT coalesce(sum(size), 0)::bigint FROM toolwire.holders{by_share})
        + (SELECT coalesce(sum(size), 0)::bigint FROM toolwire.kept),
    (SELECT count(*) FROM toolwire.holders{by_share} WHERE kind = 'response'),
    (SELECT count(*) FROM toolwire.holders{by_share} WHERE kind = 'conversation'),
    (SELECT count(*) FROM toolwire.runs WHERE is_over = false),
    (SELECT count(*) FROM toolwire.members m WHERE {alive})
"""


class SweepOperations(RunOperations, ValueOperations):
    """Keeps the store within its bounds."""

    async def maintain(self, member: str) -> None:
        lease = await self.holder(SWEEP) or await self.take_lease(SWEEP, member)
        if lease is not None and lease.member == member:
            with suppress(Overtaken):  # the new holder of the lease goes on
                await self._sweep(lease)

    async def _sweep(self, lease: Lease) -> None:
        if await self._has_dead_members():
            await self._forget_members(lease)
        if self._max_age:
            for _ in range(MAX_BATCHES):
                if not (await self._has_expired() and await self._sweep_expired(lease)):
                    break
        if self._max_size and time.monotonic() >= self._resting_until:
            await self._sweep_excess(lease)

    async def _sweep_excess(self, lease: Lease) -> None:
        began = time.monotonic()
        shares = await self._add_up_shares()
        took = time.monotonic() - began
        self._resting_until = began + took + REST_FACTOR * max(0.0, took - FREE_SECONDS)
        for _ in range(MAX_BATCHES):
            excess = shares.total() - self._max_size
            if excess <= 0:
                break
            largest = max(shares, key=shares.__getitem__)
            deleted = await self._sweep_share(lease, largest, excess)
            if not deleted:
                break
            shares[largest] -= deleted

    @reading
    async def stats(self, tx: Transaction) -> StoreStats:
        [row] = await tx.fetch(_STATS)
        return StoreStats(*row)

    @reading
    async def _has_dead_members(self, tx: Transaction) -> bool:
        return await tx.fetch_one(_UNALIVE) is not None or await tx.fetch_one(_ABANDONED) is not None

    @reading
    async def _has_expired(self, tx: Transaction) -> bool:
        return await tx.fetch_one(_HAS_EXPIRED, max_age=self._max_age) is not None

    @reading
    async def _add_up_shares(self, tx: Transaction) -> Counter[str]:
        """Bytes by owner."""
        return Counter({row[0]: row[1] for row in await tx.fetch(_SHARES)})

    @transaction
    async def _forget_members(self, tx: Transaction, lease: Lease) -> None:
        await self.check_lease(tx, lease)
        await self._bury_dead(tx, lease.member)
        await self._drop_abandoned_leases(tx)

    @transaction
    async def _sweep_expired(self, tx: Transaction, lease: Lease) -> bool:
        """Delete some rows that were not used for too long; whether there were any."""
        await self.check_lease(tx, lease)
        limits = {"max_age": self._max_age, "most": ROWS_PER_TRANSACTION}
        holders = await tx.fetch(_EXPIRED_HOLDERS, **limits)
        values = await tx.fetch(_EXPIRED_VALUES, **limits)
        await _delete(tx, [row[0] for row in holders], values)
        return bool(holders or values)

    @transaction
    async def _sweep_share(self, tx: Transaction, lease: Lease, owner: str, excess: int) -> int:
        """Delete the least used rows of an owner until the excess is gone, or some of them; returns their bytes."""
        await self.check_lease(tx, lease)
        holders = await tx.fetch(_LEAST_USED_HOLDERS, owner=owner, most=ROWS_PER_TRANSACTION)
        values = await tx.fetch(_LEAST_USED_VALUES, owner=owner, most=ROWS_PER_TRANSACTION)
        deleted, rows = 0, list[Row]()
        for row in sorted([*holders, *values], key=itemgetter(0))[:ROWS_PER_TRANSACTION]:
            if deleted >= excess:
                break
            deleted += row[1]
            rows.append(row)
        ids = [row[2] for row in rows if len(row) == 3]
        await _delete(tx, ids, [(owner, *row[2:]) for row in rows if len(row) == 4])
        return deleted


async def _delete(tx: Transaction, holders: list[str], values: "list[Row] | Row") -> None:
    """Delete holders by id, and values by owner, kind and key."""
    if holders:
        await forget(tx, holders)
    names = ("owner", "kind", "digest")
    await tx.execute_many(_DELETE_VALUE, [dict(zip(names, row, strict=True)) for row in values])
