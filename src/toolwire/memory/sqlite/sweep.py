"""What is too old or too much is let go, by the process that has the lease, some rows in each transaction.

Nothing counts along with the writes: how much there is is added up from an index when it is asked for. Who keeps most
gives way first: nobody loses anything while he has no more than his equal part of the room.
"""

import sqlite3
import time
from collections import Counter
from contextlib import suppress

from toolwire.memory.sqlite.engine import Transaction
from toolwire.memory.sqlite.guards import ALIVE, check_guard
from toolwire.memory.sqlite.members import Membership
from toolwire.memory.sqlite.writing import forget
from toolwire.memory.store import Lease, Overtaken, StoreStats

SWEEP = "sweep"
"""The lease of the process that lets go, and copies the log into the file."""
AT_ONCE = 64
"""Rows that are let go in one transaction, so that writers need not wait long."""
LOG_COPIED = 4 * 1024 * 1024
"""Bytes of the log from which on it is copied."""
PAGES = 1_000
"""Free pages that are given back in one go."""
INCREMENTAL = 2
"""The mode of a file that can give its pages back like this."""
REST = 20
"""How much longer than adding up took, beyond a little, it is not done again."""
LITTLE = 0.05
"""Seconds of work that are no reason to rest."""

_RUNNING = "SELECT id FROM runs WHERE is_over = 0"
_OLD = f"""
SELECT id FROM holders WHERE used < :oldest AND id NOT IN ({_RUNNING})
UNION ALL SELECT id FROM kept WHERE used < :oldest LIMIT {AT_ONCE}
"""
_LEAST_USED = f"""
SELECT id, size, used FROM holders WHERE owner = :owner AND id != :latest AND id NOT IN ({_RUNNING})
UNION ALL SELECT id, size, used FROM kept WHERE owner = :owner ORDER BY used LIMIT {AT_ONCE}
"""
"""The ids of holders are texts and those of kept rows are numbers, so each is known by its id alone."""
_SHARES = "SELECT owner, SUM(size) FROM {} GROUP BY owner"
_STATS = "SELECT kind, COUNT(*), SUM(size) FROM holders INDEXED BY holders_shares GROUP BY kind"


class Sweeping(Membership):
    """The part of the store that keeps it within its bounds. Other writes of the process come in between."""

    _rested = 0.0

    async def maintain(self, member: str) -> None:
        """Let go of what is too old or too much, if no other process does. Called again and again."""
        lease = await self._read(self._holder, SWEEP) or await self.take_lease(SWEEP, member)
        if lease is not None and lease.member == member:
            with suppress(Overtaken):  # whoever has the lease now goes on
                await self._maintain(lease)

    async def _maintain(self, lease: Lease) -> None:
        await self._write(self._forget_members, lease)
        while self._max_age and await self._write(self._sweep_old, lease):
            pass
        if self._max_size and time.monotonic() >= self._rested:
            await self._sweep_large(lease)
        while await self._write(self._give_back):
            pass
        if self._file is not None and self._file.log_size() > LOG_COPIED:
            await self._write(self._copy_log)

    async def stats(self) -> StoreStats:
        return await self._read(self._stats)

    async def _sweep_large(self, lease: Lease) -> None:
        """Let go of the least used of whoever has most; the latest of all stays."""
        shares, latest, took = await self._read(_shares)
        self._rested = time.monotonic() + REST * max(0.0, took - LITTLE)
        while (beyond := shares.total() - self._max_size) > 0:
            largest = max(shares, key=shares.__getitem__)
            gone = await self._write(self._sweep_some, lease, largest, latest, beyond)
            if not gone:
                break
            shares[largest] -= gone

    # In the thread that writes

    def _forget_members(self, database: sqlite3.Connection, lease: Lease) -> None:
        """Members that are gone, and what they had a lease on."""
        if database.execute(f"SELECT 1 FROM members WHERE NOT ({ALIVE})", self._now()).fetchone() is None:
            return
        with Transaction(database):
            check_guard(database, lease)
            self._bury(database, lease.member)

    def _sweep_old(self, database: sqlite3.Connection, lease: Lease) -> bool:
        """Let go of some that nobody used for too long; whether there were any."""
        given = {"oldest": self._oldest()}
        if not database.execute(_OLD, given).fetchone():
            return False
        with Transaction(database):
            check_guard(database, lease)
            _forget(database, [row[0] for row in database.execute(_OLD, given).fetchall()])
        return True

    def _sweep_some(self, database: sqlite3.Connection, lease: Lease, owner: str, latest: str, beyond: int) -> int:
        """Let go of so many bytes of an owner, or of some of them; returns how many."""
        gone: dict[str | int, int] = {}
        with Transaction(database):
            check_guard(database, lease)
            for id, size, _ in database.execute(_LEAST_USED, {"owner": owner, "latest": latest}).fetchall():
                if sum(gone.values()) < beyond:
                    gone[id] = size
            _forget(database, list(gone))
        return sum(gone.values())

    def _give_back(self, database: sqlite3.Connection) -> bool:
        """Give some free pages back to the disk; whether there are more."""
        free = _pragma(database, "freelist_count")
        if not free or _pragma(database, "auto_vacuum") != INCREMENTAL:
            return False
        database.execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()
        return 0 < _pragma(database, "freelist_count") < free

    # In the thread that reads

    def _stats(self, database: sqlite3.Connection) -> StoreStats:
        kinds = {kind: (count, size) for kind, count, size in database.execute(_STATS)}
        kept = database.execute("SELECT COALESCE(SUM(size), 0) FROM kept").fetchone()[0]
        runs = database.execute("SELECT COUNT(*) FROM runs WHERE is_over = 0").fetchone()[0]
        members = database.execute(f"SELECT COUNT(*) FROM members WHERE {ALIVE}", self._now()).fetchone()[0]
        size = kept + sum(size for _, size in kinds.values())
        responses, conversations = (kinds.get(kind, (0, 0))[0] for kind in ("response", "conversation"))
        return StoreStats(size, responses, conversations, runs, members)


def _shares(database: sqlite3.Connection) -> tuple[Counter[str], str, float]:
    """Bytes by owner, what was used last, and the seconds of work that it took to find out."""
    began = time.thread_time()
    shares: Counter[str] = Counter()
    for table in ("holders", "kept"):
        for owner, size in database.execute(_SHARES.format(table)):
            shares[owner] += size
    latest = database.execute("SELECT id FROM holders ORDER BY used DESC LIMIT 1").fetchone()
    return shares, latest[0] if latest is not None else "", time.thread_time() - began


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def _forget(database: sqlite3.Connection, ids: list[str | int]) -> None:
    forget(database, [id for id in ids if isinstance(id, str)])
    database.executemany("DELETE FROM kept WHERE id = ?", [(id,) for id in ids if isinstance(id, int)])
