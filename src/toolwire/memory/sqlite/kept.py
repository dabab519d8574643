"""Small values that are kept between turns, by owner, kind and key."""

import sqlite3
from collections.abc import Sequence

from toolwire.memory.sqlite.engine import Engine, Transaction
from toolwire.memory.store import KeyValue

KEPT_ROW = 128
"""Bytes that a row counts beside its own."""
KEPT_AT_ONCE = 64 * 1024 * 1024
"""Most bytes of values that one question is answered with."""

_PUT = """
INSERT INTO kept (owner, kind, key, value, size, used) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, kind, key) DO UPDATE SET value = excluded.value, size = excluded.size, used = excluded.used
"""


class KeptValues(Engine):
    """The part of the store that keeps values."""

    async def put_values(self, rows: Sequence[KeyValue]) -> None:
        """Keep values between turns, in one transaction."""
        await self._write(self._put_kept, rows)

    async def get_values(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = KEPT_AT_ONCE
    ) -> list[bytes | None]:
        """The values with these kinds and keys, as long as there are not too many bytes of them."""
        return await self._read(self._get_kept, owner, keys, most)

    def _put_kept(self, database: sqlite3.Connection, rows: Sequence[KeyValue]) -> None:
        now = self._clock()
        with Transaction(database):
            database.executemany(
                _PUT, [(row.owner, row.kind, row.key, row.value, size_of(row.key, row.value), now) for row in rows]
            )

    def _get_kept(
        self, database: sqlite3.Connection, owner: str, keys: Sequence[tuple[str, bytes]], most: int
    ) -> list[bytes | None]:
        query = "SELECT value FROM kept WHERE owner = ? AND kind = ? AND key = ? AND used >= ?"
        oldest = self._oldest()
        found: list[bytes | None] = []
        for key in keys:
            row = database.execute(query, (owner, *key, oldest)).fetchone() if most > 0 else None
            most -= len(row[0]) if row is not None else 0
            found.append(row[0] if row is not None else None)
        return found


def size_of(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + KEPT_ROW
