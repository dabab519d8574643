"""Members and leases.

A member whose heartbeat is overdue is not alive until its next heartbeat. It is dead once another member has deleted
it, in the transaction that takes its runs or leases. Both the heartbeat and the deletion lock the member's row, so the
later one sees the earlier. Only a member that has itself sent every heartbeat in time for a whole lease may declare
others dead: otherwise the store may just have been unreachable.

PostgreSQL uses the database's clock, SQLite the time since the start of the machine.
"""

from collections.abc import Sequence

from toolwire.memory.sql.operation import SqlStore, Transaction, reading, transaction, urgent, writing
from toolwire.memory.store import Lease, Member, Overtaken


class Members(SqlStore):
    """Which processes are alive, and leases for work that one process may do at a time."""

    @writing
    async def join(self, tx: Transaction, member: Member) -> None:
        """Become a member, until no heartbeat arrives for longer than a lease."""
        await tx.fetch("join", id=member.id, host=member.host, lease=self._lease)

    @urgent
    async def beat(self, tx: Transaction, member: str) -> bool:
        """Send a heartbeat; returns False if the member was presumed dead and must join again under a new id."""
        return await tx.fetch_one("beat", member=member) is not None

    @transaction
    async def leave(self, tx: Transaction, member: str) -> None:
        """Stop being a member. Others may claim its runs and leases at once."""
        await _delete_members(tx, [member])

    @reading
    async def list_members(self, tx: Transaction, most: int) -> list[Member]:
        """Living members, ordered by id."""
        return [Member(*row) for row in await tx.fetch("members", most=most)]

    @reading
    async def list_leases(self, tx: Transaction, most: int) -> list[Lease]:
        """Leases of living members, ordered by name. PostgreSQL shows a digest in place of a very long name."""
        return [Lease(*row) for row in await tx.fetch("leases", most=most)]

    @reading
    async def find_lease(self, tx: Transaction, name: str) -> Lease | None:
        """The lease of this name, if a living member has it."""
        row = await tx.fetch_one("holder_of_lease", name=self.key(name))
        return Lease(name, *row) if row is not None else None

    async def take_lease(self, name: str, member: str) -> Lease | None:
        """Grant the lease of this name, or return it if this member has it already.

        Returns None if another member that is not dead has it, or if this member is not alive.
        """
        lease = await self._grant_free_lease(name, member)
        if lease is None and await self.find_lease(name) is None:
            return await self._take_over_lease(name, member)
        return lease

    @writing
    async def _grant_free_lease(self, tx: Transaction, name: str, member: str) -> Lease | None:
        return await self._grant_lease(tx, name, member)

    @transaction
    async def _take_over_lease(self, tx: Transaction, name: str, member: str) -> Lease | None:
        """Take a lease whose holder is not alive, unless it is too early to declare the holder dead."""
        if await find_living_member(tx, member) is None:
            return None
        await self._bury_dead(tx, member)
        await drop_abandoned_leases(tx, self.key(name))
        return await self._grant_lease(tx, name, member)

    async def _grant_lease(self, tx: Transaction, name: str, member: str) -> Lease | None:
        row = await tx.fetch_one("grant_lease", name=self.key(name), member=member)
        if row is None:
            return None
        await self._use_epoch(tx, row[0])
        return Lease(name, member, *row)

    async def _use_epoch(self, tx: Transaction, epoch: int) -> None:
        """Ensure that this epoch is never granted again. An engine whose counter ensures that does nothing."""

    @writing
    async def drop_lease(self, tx: Transaction, lease: Lease) -> None:
        """Give a lease back; has no effect if it is lost."""
        await tx.fetch("drop_lease", name=self.key(lease.name), epoch=lease.epoch)

    async def _check_lease(self, tx: Transaction, lease: Lease) -> None:
        """Raise `Overtaken` if the lease is lost; otherwise no process can take it until this transaction ends."""
        if await tx.fetch_one("hold_lease", name=self.key(lease.name), member=lease.member, epoch=lease.epoch) is None:
            raise Overtaken(lease)

    async def _bury_dead(self, tx: Transaction, judge: str) -> None:
        """Delete the members that this one may declare dead, and their leases. Their runs can then be claimed."""
        dead = await self._find_dead(tx, judge)
        if dead:
            await _delete_members(tx, dead)

    async def _find_dead(self, tx: Transaction, judge: str) -> list[str]:
        return [row[0] for row in await tx.fetch("dead_members", judge=judge)]


async def find_living_member(tx: Transaction, id: str) -> Member | None:
    row = await tx.fetch_one("member", id=id)
    return Member(*row) if row is not None else None


async def drop_abandoned_leases(tx: Transaction, name: str) -> None:
    """Drop the lease of this name if its holder was deleted, or all such leases if the name is empty."""
    for key, epoch in await tx.fetch("abandoned_leases", name=name):
        await tx.fetch("drop_lease", name=key, epoch=epoch)


async def _delete_members(tx: Transaction, ids: Sequence[str]) -> None:
    """Delete members before their leases, so that all transactions lock them in this order."""
    await tx.fetch("delete_members", ids=ids)
    await tx.fetch("delete_leases_of_members", ids=ids)
