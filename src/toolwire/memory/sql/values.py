"""Small values that outlive a turn, by owner, kind and key. Each engine reads them in its own way, as it is often."""

from collections.abc import Sequence

from toolwire.memory.sql.operation import SqlStore, Transaction, writing
from toolwire.memory.store import KeyValue

ROW_OVERHEAD = 128
"""Bytes that a value counts beside its own and those of its key."""
MAX_BYTES_PER_READ = 64 * 1024 * 1024
"""Most bytes of values that one read returns."""

_PUT = """
INSERT INTO toolwire.kept (owner, kind, {key_columns}, value, size, used)
VALUES (:owner, :kind, {key_values}, :value, :size, now())
ON CONFLICT (owner, kind, {key_index}) DO UPDATE SET value = excluded.value, size = excluded.size, used = now()
"""


class ValueOperations(SqlStore):
    """Small values that outlive a turn."""

    @writing
    async def put_values(self, tx: Transaction, rows: Sequence[KeyValue]) -> None:
        ordered = sorted(rows, key=lambda row: (row.owner, row.kind, row.key))  # so that writers lock them in one order
        await tx.execute_many(_PUT, [self.value_row(row.owner, row.kind, row.key, row.value) for row in ordered])

    def value_row(self, owner: str, kind: str, key: bytes, value: bytes) -> dict[str, object]:
        size = len(key) + len(value) + ROW_OVERHEAD
        index = self.digest(key)
        return {"owner": owner, "kind": kind, "digest": index, "key": key, "value": value, "size": size}

    def digest(self, key: bytes) -> bytes:
        """What a key is known by in the index."""
        return key
