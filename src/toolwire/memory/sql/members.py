"""Members and leases.

A member whose heartbeat is overdue is not alive, and is alive again with its next heartbeat. It is dead once another
member has deleted it, which happens in the transaction that takes what it had. Both the heartbeat and the deletion lock
the member's row, so one of them comes first and the other one sees that. Only a member that has itself sent every
heartbeat in time for a whole lease may declare others dead: otherwise the store may just have been unreachable.

PostgreSQL counts time by the database's clock, SQLite by the time since the machine was started.
"""

from collections.abc import Sequence

from toolwire.memory.sql.operation import SqlStore, Transaction, reading, transaction, urgent, writing
from toolwire.memory.store import Lease, Member, Overtaken

_MEMBER = "SELECT id, host FROM toolwire.members m WHERE id = :id AND {alive}"
_MEMBERS = "SELECT id, host FROM toolwire.members m WHERE {alive} ORDER BY id LIMIT :most"
_DEAD = """
SELECT m.id FROM toolwire.members m JOIN toolwire.members j ON {judge} WHERE {dead} ORDER BY m.id FOR UPDATE OF m
"""
_DELETE_MEMBERS = "DELETE FROM toolwire.members WHERE id = ANY (:ids::text[])"
_DELETE_LEASES = "DELETE FROM toolwire.leases WHERE member = ANY (:ids::text[])"

_LEASES = """
SELECT l.name, l.member, l.epoch FROM toolwire.leases l JOIN toolwire.members m ON m.id = l.member
WHERE {alive} ORDER BY l.name LIMIT :most
"""
_HOLDER = """
SELECT l.member, l.epoch FROM toolwire.leases l JOIN toolwire.members m ON m.id = l.member
WHERE l.name = :name AND {alive}
"""
_GRANT = """
INSERT INTO toolwire.leases AS l (name, member, epoch, step)
SELECT :name, m.id, {next_epoch}, 0 FROM toolwire.members m WHERE m.id = :member AND {alive}
ON CONFLICT (name) DO UPDATE SET member = l.member WHERE l.member = excluded.member
RETURNING epoch
"""
"""No row if another member has the lease, whether alive or not, or if the member that asks is not alive."""
_ABANDONED = """
SELECT l.name, l.epoch FROM toolwire.leases l
WHERE (l.name = :name OR :name = '') AND NOT EXISTS (SELECT 1 FROM toolwire.members m WHERE m.id = l.member)
"""
"""Leases of members that were deleted: one of them by name, or all."""
_DROP = "DELETE FROM toolwire.leases WHERE name = :name AND epoch = :epoch"
"""By its epoch: a lease that another process has taken meanwhile has another one."""
_HELD = "SELECT 1 FROM toolwire.leases WHERE name = :name AND member = :member AND epoch = :epoch FOR SHARE"


class MemberOperations(SqlStore):
    """Which processes are alive, and what one process may do at a time."""

    @writing
    async def join(self, tx: Transaction, member: Member) -> None:
        await tx.fetch("{join}", id=member.id, host=member.host, lease=self._lease)

    @urgent
    async def beat(self, tx: Transaction, member: str) -> bool:
        return await tx.fetch_one("{beat}", member=member) is not None

    @transaction
    async def leave(self, tx: Transaction, member: str) -> None:
        await _delete_members(tx, [member])

    @reading
    async def member(self, tx: Transaction, id: str) -> Member | None:
        return await self._living_member(tx, id)

    async def _living_member(self, tx: Transaction, id: str) -> Member | None:
        row = await tx.fetch_one(_MEMBER, id=id)
        return Member(*row) if row is not None else None

    @reading
    async def members(self, tx: Transaction, most: int) -> list[Member]:
        return [Member(*row) for row in await tx.fetch(_MEMBERS, most=most)]

    @reading
    async def leases(self, tx: Transaction, most: int) -> list[Lease]:
        """Leases of living members. PostgreSQL shows a digest in place of a very long name."""
        return [Lease(*row) for row in await tx.fetch(_LEASES, most=most)]

    @reading
    async def holder(self, tx: Transaction, name: str) -> Lease | None:
        row = await tx.fetch_one(_HOLDER, name=self.key(name))
        return Lease(name, *row) if row is not None else None

    async def take_lease(self, name: str, member: str) -> Lease | None:
        lease = await self._grant_lease(name, member)
        if lease is None and await self.holder(name) is None:
            return await self._take_over_lease(name, member)
        return lease

    @writing
    async def _grant_lease(self, tx: Transaction, name: str, member: str) -> Lease | None:
        return await self._grant(tx, name, member)

    @transaction
    async def _take_over_lease(self, tx: Transaction, name: str, member: str) -> Lease | None:
        """Take a lease whose holder is not alive, unless it is too early to say that it is dead."""
        if await self._living_member(tx, member) is None:
            return None
        await self._bury_dead(tx, member)
        for key, epoch in await tx.fetch(_ABANDONED, name=self.key(name)):
            await tx.fetch(_DROP, name=key, epoch=epoch)
        return await self._grant(tx, name, member)

    async def _grant(self, tx: Transaction, name: str, member: str) -> Lease | None:
        row = await tx.fetch_one(_GRANT, name=self.key(name), member=member)
        if row is None:
            return None
        await self._count_epoch(tx, row[0])
        return Lease(name, member, *row)

    async def _count_epoch(self, tx: Transaction, epoch: int) -> None:
        """Make sure that this epoch is never granted again, if `{next_epoch}` does not do that by itself."""

    @writing
    async def drop_lease(self, tx: Transaction, lease: Lease) -> None:
        await tx.fetch(_DROP, name=self.key(lease.name), epoch=lease.epoch)

    async def check_lease(self, tx: Transaction, lease: Lease) -> None:
        """Raise `Overtaken` if the lease is lost; else it stays until this transaction ends."""
        if await tx.fetch_one(_HELD, name=self.key(lease.name), member=lease.member, epoch=lease.epoch) is None:
            raise Overtaken(lease)

    async def _bury_dead(self, tx: Transaction, judge: str) -> None:
        """Delete the members that are dead as far as this one can tell, with their leases; their runs are free then."""
        dead = await self._find_dead(tx, judge)
        if dead:
            await _delete_members(tx, dead)

    async def _find_dead(self, tx: Transaction, judge: str) -> list[str]:
        return [row[0] for row in await tx.fetch(_DEAD, judge=judge)]

    async def _drop_abandoned_leases(self, tx: Transaction) -> None:
        for key, epoch in await tx.fetch(_ABANDONED, name=""):
            await tx.fetch(_DROP, name=key, epoch=epoch)


async def _delete_members(tx: Transaction, ids: Sequence[str]) -> None:
    """Delete members before their leases, so that all transactions lock them in this order."""
    await tx.fetch(_DELETE_MEMBERS, ids=ids)
    await tx.fetch(_DELETE_LEASES, ids=ids)
