"""Members and leases in PostgreSQL. The only clock is that of the database.

A member whose heartbeat is overdue is not alive, and is again with its next beat. It is dead when another one takes it
out of the table, which is done by the statement that takes what it had. Both lock its row, so one of the two comes
first, and the other one sees that.
"""

import secrets

from toolwire.memory.postgres.database import Database
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.values import ALIVE, DEAD, JUDGE, key_of
from toolwire.memory.store import Lease, Member

ATTEMPTS = 2
"""How often a lease is asked for that changes hands meanwhile."""

_JOIN = Statement(
    """
    INSERT INTO toolwire.members (id, host, socket, lasts, until)
    VALUES (:id, :host, :socket, :lasts, now() + :lasts * interval '1 second')
    ON CONFLICT (id) DO UPDATE
        SET host = excluded.host, socket = excluded.socket, lasts = excluded.lasts, until = excluded.until,
            since = excluded.since
    """
)

_BEAT = Statement(
    """
    UPDATE toolwire.members SET until = now() + lasts * interval '1 second',
        since = CASE WHEN until < now() + lasts / 2 * interval '1 second' THEN now() ELSE since END
    WHERE id = :member RETURNING 1
    """
)

_LEAVE = Statement(
    """
    WITH gone AS (DELETE FROM toolwire.members WHERE id = :member RETURNING 1)
    DELETE FROM toolwire.leases WHERE member = :member AND (SELECT count(*) FROM gone) >= 0
    """
)
"""Asks for what is gone, so that the member is locked before its leases, as in all statements that lock both."""

_MEMBER = Statement(f"SELECT id, host, socket FROM toolwire.members m WHERE id = :id AND {ALIVE}")

_MEMBERS = Statement(f"SELECT id, host, socket FROM toolwire.members m WHERE {ALIVE} ORDER BY id LIMIT :most")

_LEASES = Statement(
    f"""
    SELECT l.name, l.member, l.epoch, l.step FROM toolwire.leases l JOIN toolwire.members m ON m.id = l.member
    WHERE {ALIVE} ORDER BY l.name LIMIT :most
    """
)

TAKE_LEASE_TEXT = f"""
WITH seen AS (SELECT member, epoch FROM toolwire.leases WHERE name = :name),
asking AS (
    SELECT id FROM toolwire.members m WHERE id = :member AND {ALIVE} AND NOT EXISTS (
        SELECT 1 FROM seen JOIN toolwire.members m ON m.id = seen.member WHERE m.id <> :member AND {ALIVE})
),
dead AS (
    SELECT m.id FROM seen JOIN toolwire.members m ON m.id = seen.member JOIN toolwire.members j ON {JUDGE}
    WHERE {DEAD} FOR UPDATE OF m
),
gone AS (DELETE FROM toolwire.members WHERE id IN (SELECT id FROM dead) RETURNING id),
free AS (
    SELECT id FROM asking WHERE NOT EXISTS (
        SELECT 1 FROM seen JOIN toolwire.members m ON m.id = seen.member
        WHERE m.id <> :member AND m.id NOT IN (SELECT id FROM gone))
),
taken AS (
    INSERT INTO toolwire.leases AS l (name, member, epoch) SELECT :name, id, nextval('toolwire.epochs') FROM free
    ON CONFLICT (name) DO UPDATE SET
        member = excluded.member,
        epoch = CASE WHEN l.member = excluded.member THEN l.epoch ELSE excluded.epoch END,
        step = CASE WHEN l.member = excluded.member THEN l.step ELSE 0 END
    WHERE l.member = excluded.member OR l.epoch = (SELECT epoch FROM seen)
    RETURNING l.epoch, l.step
)
SELECT taken.epoch, taken.step FROM asking LEFT JOIN taken ON true
"""
"""No row if a living member has the lease, or the one that asks is not alive. A row without an epoch if the lease was
not taken although its holder is not alive: somebody else was faster, or it is too early to say that the holder is dead.

Members are as they were when the statement began. A holder that has joined since is not among them, so a lease is taken
from its holder only if its row still has the epoch of that time.

Epochs come from a sequence, so that none is granted twice, although leases that are dropped leave no row.
"""
TAKE_LEASE = Statement(TAKE_LEASE_TEXT)

_HOLDER = Statement(
    f"""
    SELECT l.member, l.epoch, l.step FROM toolwire.leases l JOIN toolwire.members m ON m.id = l.member
    WHERE l.name = :name AND {ALIVE}
    """
)

ADVANCE = Statement(
    """
    UPDATE toolwire.leases SET step = :step + 1, moved_by = :token
    WHERE name = :name AND member = :member AND epoch = :epoch
        AND (step = :step OR step = :step + 1 AND moved_by = :token) RETURNING step
    """
)
"""Made again, it knows by the token that it was itself that moved the lease."""

_DROP_LEASE = Statement("DELETE FROM toolwire.leases WHERE name = :name AND member = :member AND epoch = :epoch")


class PostgresMembers:
    """The part of the store for members and leases."""

    _database: Database
    _lease: float

    async def join(self, member: Member) -> None:
        await self._database.write(_JOIN, id=member.id, host=member.host, socket=member.socket, lasts=self._lease)

    async def beat(self, member: str) -> bool:
        return bool(await self._database.flush(_BEAT, member=member))

    async def leave(self, member: str) -> None:
        await self._database.write(_LEAVE, member=member)

    async def member(self, id: str) -> Member | None:
        rows = await self._database.read(_MEMBER, id=id)
        return Member(*rows[0]) if rows else None

    async def members(self, most: int) -> list[Member]:
        return [Member(*row) for row in await self._database.read(_MEMBERS, most=most)]

    async def leases(self, most: int) -> list[Lease]:
        """A long name is shown as the store knows it."""
        return [Lease(*row) for row in await self._database.read(_LEASES, most=most)]

    async def take_lease(self, name: str, member: str) -> Lease | None:
        for _ in range(ATTEMPTS):
            rows = await self._database.write(TAKE_LEASE, name=key_of(name), member=member)
            if not rows:
                break
            epoch, step = rows[0]
            if epoch is not None:
                return Lease(name, member, epoch, step)
        return None

    async def holder(self, name: str) -> Lease | None:
        rows = await self._database.read(_HOLDER, name=key_of(name))
        return Lease(name, *rows[0]) if rows else None

    async def advance(self, lease: Lease) -> Lease | None:
        rows = await self._database.write(
            ADVANCE,
            name=key_of(lease.name),
            member=lease.member,
            epoch=lease.epoch,
            step=lease.step,
            token=secrets.token_hex(8),
        )
        return Lease(lease.name, lease.member, lease.epoch, rows[0][0]) if rows else None

    async def drop_lease(self, lease: Lease) -> None:
        await self._database.write(_DROP_LEASE, name=key_of(lease.name), member=lease.member, epoch=lease.epoch)
