"""Deletes expired and excess rows; runs in one process at a time, the holder of a lease.

Sizes are not counted as rows are written, because every save would wait for the same counter: they are summed from an
index when they are needed. If the store is too large, the owner with the most bytes loses its least recently used rows.
So no owner loses anything while it has no more than an equal share.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from operator import itemgetter

from toolwire.memory.sql.members import drop_abandoned_leases
from toolwire.memory.sql.operation import Row, Transaction, reading, transaction
from toolwire.memory.sql.responses import delete_holders
from toolwire.memory.sql.runs import Runs
from toolwire.memory.sql.turns import Turns
from toolwire.memory.sql.values import KeyValues
from toolwire.memory.store import NO_BOUND, Lease, Overtaken, TurnBounds

SWEEP = "sweep"
"""The name of the lease."""
ROWS_PER_TRANSACTION = 64
"""Maximum rows that are deleted in one transaction, so that writers do not wait long."""
MAX_BATCHES = 200
"""Maximum transactions of one kind in a sweep; the next sweep continues."""
NO_BOUNDS = TurnBounds()
REST_FACTOR, FREE_SECONDS = 20, 0.05
"""After a sum of all sizes that took t seconds, the next one waits REST_FACTOR * (t - FREE_SECONDS)."""


class Sweep(Runs, KeyValues, Turns):
    """Keeps the store within its bounds."""

    async def maintain(self, member: str, turns: TurnBounds = NO_BOUNDS) -> None:
        """Delete expired and excess rows, unless another process does so. Call this periodically."""
        lease = await self.find_lease(SWEEP) or await self.take_lease(SWEEP, member)
        if lease is not None and lease.member == member:
            with suppress(Overtaken):  # the new holder of the lease goes on
                await self._sweep(lease, turns)

    async def _sweep(self, lease: Lease, turns: TurnBounds) -> None:
        if await self._has_dead_members():
            await self._forget_members(lease)
        ages = {"max_age": self.age_limit, "turns_age": self.age_of(turns)}
        for _ in range(MAX_BATCHES):
            if not (await self._has_expired(ages) and await self._sweep_expired(lease, ages)):
                break
        if time.monotonic() >= self._resting_until:
            began = time.monotonic()
            shares, turn_shares = await self._sum_shares("shares"), await self._sum_shares("turn_shares")
            took = time.monotonic() - began
            self._resting_until = began + took + REST_FACTOR * max(0.0, took - FREE_SECONDS)
            await self._sweep_excess(lease, shares, self._max_size or NO_BOUND, self._sweep_share)
            await self._sweep_excess(lease, turn_shares, turns.max_size, self._sweep_turns)

    async def _sweep_excess(
        self, lease: Lease, shares: Counter[str], limit: int, sweep: Callable[[Lease, str, int], Awaitable[int]]
    ) -> None:
        for _ in range(MAX_BATCHES):
            excess = shares.total() - limit
            if excess <= 0:
                break
            largest = max(shares, key=shares.__getitem__)
            deleted = await sweep(lease, largest, excess)
            if not deleted:
                break
            shares[largest] -= deleted

    @reading
    async def _has_dead_members(self, tx: Transaction) -> bool:
        return await tx.fetch_one("has_dead_members") is not None

    @reading
    async def _has_expired(self, tx: Transaction, ages: Mapping[str, float]) -> bool:
        return await tx.fetch_one("has_expired", **ages) is not None

    @reading
    async def _sum_shares(self, tx: Transaction, statement: str) -> Counter[str]:
        """Bytes by owner."""
        return Counter({row[0]: row[1] for row in await tx.fetch(statement)})

    @transaction
    async def _forget_members(self, tx: Transaction, lease: Lease) -> None:
        await self._check_lease(tx, lease)
        await self._bury_dead(tx, lease.member)
        await drop_abandoned_leases(tx, "")

    @transaction
    async def _sweep_expired(self, tx: Transaction, lease: Lease, ages: Mapping[str, float]) -> bool:
        """Delete some expired rows; returns whether there were any."""
        await self._check_lease(tx, lease)
        holders = await tx.fetch("expired_holders", **ages, most=ROWS_PER_TRANSACTION)
        values = await tx.fetch("expired_values", **ages, most=ROWS_PER_TRANSACTION)
        turns = await tx.fetch("delete_expired_turns", **ages, most=ROWS_PER_TRANSACTION)
        await _delete(tx, [row[0] for row in holders], values)
        return bool(holders or values or turns)

    @transaction
    async def _sweep_turns(self, tx: Transaction, lease: Lease, owner: str, excess: int) -> int:
        """Delete some of an owner's oldest turns; returns their bytes."""
        await self._check_lease(tx, lease)
        ids, deleted = list[str](), 0
        for id, size in await tx.fetch("oldest_turns", owner=owner, most=ROWS_PER_TRANSACTION):
            if deleted < excess:
                ids.append(id)
                deleted += size
        await tx.fetch("delete_turns", ids=ids)
        return deleted

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
