"""Deletes expired and excess rows; runs in one process at a time, the holder of a lease.

Sizes are not counted as rows are written, because every save would wait for the same counter: they are summed from an
index when they are needed. If the store is too large, the owner with the most bytes loses its least recently used rows.
So no owner loses anything while it has no more than an equal share.
"""

import time
from collections import Counter
from contextlib import suppress
from operator import itemgetter

from toolwire.memory.sql.members import drop_abandoned_leases
from toolwire.memory.sql.operation import Row, Transaction, reading, transaction
from toolwire.memory.sql.responses import delete_holders
from toolwire.memory.sql.runs import Runs
from toolwire.memory.sql.values import KeyValues
from toolwire.memory.store import Lease, Overtaken

SWEEP = "sweep"
"""The name of the lease."""
ROWS_PER_TRANSACTION = 64
"""Maximum rows that are deleted in one transaction, so that writers do not wait long."""
MAX_BATCHES = 200
"""Maximum transactions of one kind in a sweep; the next sweep continues."""
REST_FACTOR, FREE_SECONDS = 20, 0.05
"""After a sum of all sizes that took t seconds, the next one waits REST_FACTOR * (t - FREE_SECONDS)."""


class Sweep(Runs, KeyValues):
    """Keeps the store within its bounds."""

    async def maintain(self, member: str) -> None:
        """Delete expired and excess rows, unless another process does so. Call this periodically."""
        lease = await self.find_lease(SWEEP) or await self.take_lease(SWEEP, member)
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
        shares = await self._sum_shares()
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
    async def _has_dead_members(self, tx: Transaction) -> bool:
        return await tx.fetch_one("has_dead_members") is not None

    @reading
    async def _has_expired(self, tx: Transaction) -> bool:
        return await tx.fetch_one("has_expired", max_age=self._max_age) is not None

    @reading
    async def _sum_shares(self, tx: Transaction) -> Counter[str]:
        """Bytes by owner."""
        return Counter({row[0]: row[1] for row in await tx.fetch("shares")})

    @transaction
    async def _forget_members(self, tx: Transaction, lease: Lease) -> None:
        await self._check_lease(tx, lease)
        await self._bury_dead(tx, lease.member)
        await drop_abandoned_leases(tx, "")

    @transaction
    async def _sweep_expired(self, tx: Transaction, lease: Lease) -> bool:
        """Delete some expired rows; returns whether there were any."""
        await self._check_lease(tx, lease)
        limits = {"max_age": self._max_age, "most": ROWS_PER_TRANSACTION}
        holders = await tx.fetch("expired_holders", **limits)
        values = await tx.fetch("expired_values", **limits)
        await _delete(tx, [row[0] for row in holders], values)
        return bool(holders or values)

    @transaction
    async def _sweep_share(self, tx: Transaction, lease: Lease, owner: str, excess: int) -> int:
        """Delete some of an owner's least recently used rows; returns their bytes."""
        await self._check_lease(tx, lease)
        holders = await tx.fetch("least_used_holders", owner=owner, most=ROWS_PER_TRANSACTION)
        values = await tx.fetch("least_used_values", owner=owner, most=ROWS_PER_TRANSACTION)
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
        await delete_holders(tx, holders)
    names = ("owner", "kind", "digest")
    await tx.execute_many("delete_value", [dict(zip(names, row, strict=True)) for row in values])
