"""The whole store: all its operations, opening and closing, dump and restore."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from toolwire.memory.sql.issued_keys import IssuedKeys
from toolwire.memory.sql.operation import Row, Transaction, reading, transaction
from toolwire.memory.sql.responses import call_id_of, decode_id
from toolwire.memory.sql.sweep import Sweep
from toolwire.memory.sql.usage import UsageLedger
from toolwire.memory.store import (
    AnyRow,
    EventRow,
    HolderRow,
    ItemRow,
    KeptItem,
    KeyRow,
    Raw,
    RunRow,
    StoreStats,
    ValueRow,
)

ROWS_PER_READ, BYTES_PER_READ = 256, 8 * 1024 * 1024
"""Maximum rows that one query of a dump returns, and the bytes after which it ends."""

Read: TypeAlias = Callable[..., Awaitable[Sequence[Row]]]
"""Runs a statement on a snapshot."""


class Store(Sweep, IssuedKeys, UsageLedger):
    """What outlives a turn. Every operation may raise `StoreFailed`."""

    @property
    @abstractmethod
    def outlives_process(self) -> bool:
        """Whether the data survives the end of this process."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the schema that this program creates."""

    @abstractmethod
    async def inspect(self) -> int:
        """The version of the existing schema, 0 if there is none. Changes nothing."""

    @abstractmethod
    def check(self) -> None:
        """Raise the error that the first use would raise. Leaves nothing open, so that the process may be forked."""

    @abstractmethod
    async def open(self) -> None:
        """Prepare the store. If it cannot be reached now, the first use tries again."""

    @abstractmethod
    async def probe(self) -> bool:
        """Whether the store works. A failing store is tried again at intervals."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def snapshot(self) -> AbstractAsyncContextManager[Read]:
        """Read one state of the store, on a connection of its own."""

    @reading
    async def stats(self, tx: Transaction) -> StoreStats:
        """Numbers for operators."""
        [row] = await tx.fetch("stats")
        return StoreStats(*row)

    async def dump(self) -> AsyncIterator[AnyRow]:
        """All rows as of the start of the dump, the same for every engine; holders come before their items."""
        async with self.snapshot() as read:
            async for row in _read_table(read, "dump_holders", ("",)):
                yield HolderRow(*row[:12])
            async for row in _read_table(read, "dump_items", ("", 0, -1)):
                holder, made, place, owner, id, whole, item = row[:7]
                yield ItemRow(holder, owner, bool(made), place, decode_id(id, whole), item)
            async for row in _read_table(read, "dump_events", ("", -1)):
                response, first, owner, count, frames = row[:5]
                yield EventRow(response, owner, first, count, frames)
            async for row in _read_table(read, "dump_runs", ("",)):
                id, owner, epoch, is_over, is_started, is_cancelled, plan = row[:7]
                yield RunRow(id, owner, epoch, bool(is_over), bool(is_started), bool(is_cancelled), plan)
            async for row in _read_table(read, "dump_values", ("", "", b"")):
                owner, kind, _, key, value, used = row[:6]
                yield ValueRow(owner, kind, key, value, used)
            async for row in _read_table(read, "dump_keys", ("",)):
                yield KeyRow(*row[:2])

    @transaction
    async def restore(self, tx: Transaction, rows: Sequence[AnyRow]) -> None:
        """Add rows of `dump`, in its order; existing rows are not changed."""
        for row in rows:
            fields: dict[str, object] = {name: getattr(row, name) for name in row.__struct_fields__}
            match row:
                case HolderRow():
                    keys = {
                        name: self.key(getattr(row, name))
                        for name in ("id", "previous", "conversation", "continuation")
                    }
                    await tx.fetch("restore_holder", **fields | keys)
                case ItemRow():
                    call = call_id_of(row.item) if row.made else ""
                    item = KeptItem(row.id, Raw(row.item))
                    values = self._make_item_row(row.owner, self.key(row.holder), int(row.made), row.place, item, call)
                    await tx.fetch("restore_item", **values)
                case EventRow():
                    await tx.fetch("restore_events", **fields | {"holder": self.key(row.holder)})
                case RunRow():
                    await tx.fetch("restore_run", **fields | {"id": self.key(row.id)})
                case ValueRow():
                    values = self._make_value_row(row.owner, row.kind, row.key, row.value)
                    await tx.fetch("restore_value", **values, used=row.used)
                case KeyRow():
                    [[change]] = await tx.fetch("next_key_change")
                    await tx.fetch("restore_key", **fields, change=change)


async def _read_table(read: Read, statement: str, after: tuple[Any, ...]) -> AsyncIterator[Row]:
    """The rows of a table in the order of their key, after the key `after`."""
    while rows := await read(
        statement, **dict(zip("abc", after, strict=False)), rows=ROWS_PER_READ, bytes=BYTES_PER_READ
    ):
        for row in rows:
            yield row
        after = tuple(rows[-1][: len(after)])
