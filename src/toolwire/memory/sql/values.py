"""Small values that outlive a turn, by owner, kind and key."""

from abc import abstractmethod
from collections.abc import Sequence

from toolwire.memory.sql.operation import SqlStore, Transaction, writing
from toolwire.memory.store import KeyValue

ROW_OVERHEAD = 128
"""Bytes counted for a row besides its key and value."""
MAX_BYTES_PER_READ = 64 * 1024 * 1024
"""Maximum bytes of values that one read returns."""


class KeyValues(SqlStore):
    """Small values that outlive a turn."""

    @writing
    async def put_values(self, tx: Transaction, rows: Sequence[KeyValue]) -> None:
        """Save values, replacing those of the same kind and key."""
        ordered = sorted(rows, key=lambda row: (row.owner, row.kind, row.key))  # all writers lock rows in one order
        values = [self._make_value_row(row.owner, row.kind, row.key, row.value) for row in ordered]
        await tx.execute_many("put_value", values)

    @abstractmethod
    async def get_values(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = MAX_BYTES_PER_READ
    ) -> list[bytes | None]:
        """The values of these kinds and keys; None for each that is missing, or comes after `most` bytes."""

    def _make_value_row(self, owner: str, kind: str, key: bytes, value: bytes) -> dict[str, object]:
        size = len(key) + len(value) + ROW_OVERHEAD
        index = self._digest(key)
        return {"owner": owner, "kind": kind, "digest": index, "key": key, "value": value, "size": size}

    def _digest(self, key: bytes) -> bytes:
        """The form of a key in the index."""
        return key
