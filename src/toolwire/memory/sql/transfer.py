"""Copies of a store: all rows as they are at one moment, and rows of another store added to this one."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeAlias

from toolwire.memory.sql.operation import Row, Transaction, transaction
from toolwire.memory.sql.responses import call_id_of, decode_id
from toolwire.memory.sql.sweep import SweepOperations
from toolwire.memory.store import AnyRow, EventRow, HolderRow, ItemRow, KeptItem, Raw, RunRow, ValueRow

ROWS_PER_READ, BYTES_PER_READ = 256, 8 * 1024 * 1024
"""Most rows and bytes that one query of a dump returns, unless a single row is larger."""

Read: TypeAlias = Callable[..., Awaitable[Sequence[Row]]]
"""Runs a statement that sees the state of a snapshot."""


class _Table(NamedTuple):
    """How the rows of a table are read in the order of their key, some at a time."""

    key: str
    start: tuple[Any, ...]
    """The key before the first row."""
    columns: str
    source: str
    size: str

    def query(self) -> str:
        after = ", ".join((":a", ":b", ":c")[: len(self.start)])
        return f"""
        SELECT * FROM (
            SELECT part.*, sum(part.size_) OVER (ORDER BY number_) - part.size_ AS before_ FROM (
                SELECT {self.key}, {self.columns}, {self.size} AS size_,
                    row_number() OVER (ORDER BY {self.key}) AS number_
                FROM {self.source} WHERE ({self.key}) > ({after}) ORDER BY {self.key} LIMIT {ROWS_PER_READ}
            ) part
        ) parts WHERE before_ < {BYTES_PER_READ} ORDER BY number_
        """

    async def rows(self, read: Read) -> AsyncIterator[Row]:
        query, after = self.query(), self.start
        while rows := await read(query, **dict(zip("abc", after, strict=False))):
            for row in rows:
                yield row
            after = tuple(rows[-1][: len(after)])


_HOLDERS = _Table(
    "id",
    ("",),
    "owner, kind, created, extract(epoch FROM used)::float8 AS used, size, status, previous, conversation, "
    "continuation, fields, body",
    "toolwire.holders",
    "length(fields) + length(body)",
)
_ITEMS = _Table(
    "i.holder, i.made, i.place",
    ("", 0, -1),
    "i.owner, i.id, {whole_id} AS whole_id, i.item",
    "toolwire.items i JOIN toolwire.holders h ON h.id = i.holder",
    "length(i.item)",
)
_EVENTS = _Table(
    "j.{response}, j.first",
    ("", -1),
    "h.owner, j.count, j.frames",
    "{journal} j JOIN toolwire.holders h ON h.id = j.{response}",
    "length(j.frames)",
)
_RUNS = _Table("id", ("",), "owner, epoch, is_over, is_started, is_cancelled, plan", "toolwire.runs", "length(plan)")
_VALUES = _Table(
    "owner, kind, {key_index}",
    ("", "", b""),
    "key AS key_, value, extract(epoch FROM used)::float8 AS used_",
    "toolwire.kept",
    "length(key) + length(value)",
)

_PUT_HOLDER = """
INSERT INTO toolwire.holders
    (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
VALUES (:id, :owner, :kind, :created, to_timestamp(:used), :size, :status, :previous, :conversation, :continuation,
    :fields, :body) ON CONFLICT DO NOTHING
"""
_PUT_RUN = """
INSERT INTO toolwire.runs (id, owner, member, epoch, is_over, is_started, is_cancelled, plan)
SELECT :id, :owner, '', :epoch, :is_over, :is_started, :is_cancelled, :plan
FROM toolwire.holders WHERE id = :id AND owner = :owner ON CONFLICT DO NOTHING
"""
_PUT_VALUE = """
INSERT INTO toolwire.kept (owner, kind, {key_columns}, value, size, used)
VALUES (:owner, :kind, {key_values}, :value, :size, to_timestamp(:used)) ON CONFLICT DO NOTHING
"""


class TransferOperations(SweepOperations):
    """Copies a store to another one."""

    @abstractmethod
    def snapshot(self) -> AbstractAsyncContextManager[Read]:
        """Read one state of the store, on a connection of its own."""

    async def dump(self) -> AsyncIterator[AnyRow]:
        async with self.snapshot() as read:
            async for row in _HOLDERS.rows(read):
                yield HolderRow(*row[:12])
            async for row in _ITEMS.rows(read):
                holder, made, place, owner, id, whole, item = row[:7]
                yield ItemRow(holder, owner, bool(made), place, decode_id(id, whole), item)
            async for row in _EVENTS.rows(read):
                response, first, owner, count, frames = row[:5]
                yield EventRow(response, owner, first, count, frames)
            async for row in _RUNS.rows(read):
                id, owner, epoch, is_over, is_started, is_cancelled, plan = row[:7]
                yield RunRow(id, owner, epoch, bool(is_over), bool(is_started), bool(is_cancelled), plan)
            async for row in _VALUES.rows(read):
                owner, kind, _, key, value, used = row[:6]
                yield ValueRow(owner, kind, key, value, used)

    @transaction
    async def restore(self, tx: Transaction, rows: Sequence[AnyRow]) -> None:
        for row in rows:
            fields: dict[str, object] = {name: getattr(row, name) for name in row.__struct_fields__}
            match row:
                case HolderRow():
                    keys = {
                        name: self.key(getattr(row, name))
                        for name in ("id", "previous", "conversation", "continuation")
                    }
                    await tx.fetch(_PUT_HOLDER, **fields | keys)
                case ItemRow():
                    call = call_id_of(row.item) if row.made else ""
                    item = KeptItem(row.id, Raw(row.item))
                    values = self.item_row(row.owner, self.key(row.holder), int(row.made), row.place, item, call)
                    await tx.fetch("{restore_item}", **values)
                case EventRow():
                    await tx.fetch("{restore_events}", **fields | {"holder": self.key(row.holder)})
                case RunRow():
                    await tx.fetch(_PUT_RUN, **fields | {"id": self.key(row.id)})
                case ValueRow():
                    values = self.value_row(row.owner, row.kind, row.key, row.value)
                    await tx.fetch(_PUT_VALUE, **values, used=row.used)
