"""Which processes use a SQLite file now, and who of them may do what one process may do at a time.

Time is that of the machine since it was started, the same for all its processes and never put back. A process that sees
another start or another time, as inside a sandbox, is a stranger: whether it beats is seen by watching it.

A member whose heartbeat is overdue is not alive, and is again with its next beat. It is dead when another one takes it
out of the table, which is done in the transaction that takes what it had.
"""

import sqlite3
from math import inf

from toolwire.memory.sqlite.engine import Engine, Transaction, Watched
from toolwire.memory.sqlite.guards import ALIVE, DEAD, JUDGE, STRANGERS
from toolwire.memory.store import Lease, Member

_LEASES = f"SELECT name, member, epoch, step FROM leases WHERE member IN (SELECT id FROM members WHERE {ALIVE})"
_HELD = f"{_LEASES} AND name = :name"
_TAKEN = "SELECT name, member, epoch, step FROM leases WHERE name = ? AND member IN (SELECT id FROM members)"


class Membership(Engine):
    """The part of the store that knows its processes."""

    async def join(self, member: Member) -> None:
        """Become a member until the heartbeat stops for longer than a lease lasts."""
        await self._write(self._join, member)

    async def beat(self, member: str) -> bool:
        """Stay a member, or be one again. False if this one was taken for dead: it must join anew, under another id."""
        return await self._write(self._beat, member)

    async def leave(self, member: str) -> None:
        """Stop being a member: its runs and leases are free at once."""
        await self._write(self._leave, member)

    async def member(self, id: str) -> Member | None:
        """A member that is alive."""
        return await self._read(self._member, id)

    async def members(self, most: int) -> list[Member]:
        """Members that are alive, by their ids."""
        return await self._read(self._members, most)

    async def leases(self, most: int) -> list[Lease]:
        """Leases that living members have, by their names."""
        return await self._read(self._leases, most)

    async def take_lease(self, name: str, member: str) -> Lease | None:
        """A new lease, or the one that this member has."""
        return await self._write(self._take_lease, name, member)

    async def holder(self, name: str) -> Lease | None:
        """The lease of this name, if a living member has it."""
        return await self._read(self._holder, name)

    async def advance(self, lease: Lease) -> Lease | None:
        """Move the lease on by one step, once; None if it is lost, or somebody has moved it on already."""
        return await self._write(self._advance, lease)

    async def drop_lease(self, lease: Lease) -> None:
        await self._write(self._drop_lease, lease)

    def _now(self) -> dict[str, object]:
        return {"boot": self._boot, "now": self._steady()}

    def _join(self, database: sqlite3.Connection, member: Member) -> None:
        now = self._steady()
        row = (member.id, member.host, member.socket, self._boot, now, self._lease, now)
        with Transaction(database):
            columns = "id, host, socket, boot, beat, lease, since"
            database.execute(f"INSERT OR REPLACE INTO members ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _beat(self, database: sqlite3.Connection, member: str) -> bool:
        change = (
            "UPDATE members SET beat = :now, since = CASE WHEN beat + lease / 2 < :now THEN :now ELSE since END "
            "WHERE id = :id AND boot = :boot AND beat <= :now"
        )
        with Transaction(database):
            return database.execute(change, {**self._now(), "id": member}).rowcount > 0

    def _leave(self, database: sqlite3.Connection, member: str) -> None:
        with Transaction(database):
            database.execute("DELETE FROM members WHERE id = ?", (member,))
            database.execute("DELETE FROM leases WHERE member = ?", (member,))

    def _bury(self, database: sqlite3.Connection, judge: str) -> None:
        """Take away members that are dead as far as this one can tell, with their leases; their runs are free then."""
        found = database.execute(JUDGE, {**self._now(), "id": judge}).fetchone()
        now = {**self._now(), "since": found[0] if found is not None else inf}
        dead = [id for (id,) in database.execute(f"SELECT id FROM members WHERE {DEAD}", now).fetchall()]
        if found is not None:
            dead += self._dead_strangers(database)
        for id in dead:
            database.execute("DELETE FROM members WHERE id = ?", (id,))
            database.execute("DELETE FROM leases WHERE member = ?", (id,))

    def _dead_strangers(self, database: sqlite3.Connection) -> list[str]:
        """Strangers that were watched for a lease, by this process, without a beat."""
        now = self._steady()
        watched: dict[str, Watched] = {}
        dead: list[str] = []
        for id, boot, beat, lease in database.execute(STRANGERS, self._now()).fetchall():
            before = self._watched.get(id)
            if before is None or (before.boot, before.beat) != (boot, beat):
                before = Watched(boot, beat, now)
            watched[id] = before
            if before.since + lease < now:
                dead.append(id)
        self._watched = watched
        return dead

    def _is_alive(self, database: sqlite3.Connection, member: str) -> bool:
        return self._member(database, member) is not None

    def _member(self, database: sqlite3.Connection, id: str) -> Member | None:
        query = f"SELECT id, host, socket FROM members WHERE id = :id AND {ALIVE}"
        row = database.execute(query, {**self._now(), "id": id}).fetchone()
        return Member(*row) if row is not None else None

    def _members(self, database: sqlite3.Connection, most: int) -> list[Member]:
        query = f"SELECT id, host, socket FROM members WHERE {ALIVE} ORDER BY id LIMIT :most"
        return [Member(*row) for row in database.execute(query, {**self._now(), "most": most})]

    def _leases(self, database: sqlite3.Connection, most: int) -> list[Lease]:
        query = f"{_LEASES} ORDER BY name LIMIT :most"
        return [Lease(*row) for row in database.execute(query, {**self._now(), "most": most})]

    def _take_lease(self, database: sqlite3.Connection, name: str, member: str) -> Lease | None:
        with Transaction(database):
            if not self._is_alive(database, member):
                return None
            self._bury(database, member)
            row = database.execute(_TAKEN, (name,)).fetchone()
            if row is not None:
                return Lease(*row) if row[1] == member else None
            lease = Lease(name, member, self._new_epoch(database))
            row = (lease.name, lease.member, lease.epoch, lease.step)
            database.execute("INSERT OR REPLACE INTO leases (name, member, epoch, step) VALUES (?, ?, ?, ?)", row)
        return lease

    def _new_epoch(self, database: sqlite3.Connection) -> int:
        """A number that no lease of any name has had."""
        return database.execute("UPDATE epochs SET latest = latest + 1 RETURNING latest").fetchall()[0][0]

    def _holder(self, database: sqlite3.Connection, name: str) -> Lease | None:
        row = database.execute(_HELD, {**self._now(), "name": name}).fetchone()
        return Lease(*row) if row is not None else None

    def _advance(self, database: sqlite3.Connection, lease: Lease) -> Lease | None:
        change = (
            "UPDATE leases SET step = step + 1 WHERE name = ? AND member = ? AND epoch = ? AND step = ? "
            "RETURNING name, member, epoch, step"
        )
        with Transaction(database):
            rows = database.execute(change, (lease.name, lease.member, lease.epoch, lease.step)).fetchall()
        return Lease(*rows[0]) if rows else None

    def _drop_lease(self, database: sqlite3.Connection, lease: Lease) -> None:
        with Transaction(database):
            which = "DELETE FROM leases WHERE name = ? AND member = ? AND epoch = ?"
            database.execute(which, (lease.name, lease.member, lease.epoch))
