"""All rows of a PostgreSQL store as they are at one moment, for another store, and those of another one, for this."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from toolwire.memory.postgres.database import Database, Row
from toolwire.memory.postgres.kept import KEPT_ROW
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.values import call_of, digest_of, id_of, key_of, whole_of
from toolwire.memory.store import AnyRow, EventRow, HolderRow, ItemRow, RunRow, ValueRow

ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 8 * 1024 * 1024
"""Most rows and bytes that are read in one go, unless a single row has more."""


class _Table(NamedTuple):
    """How the rows of a table are read: those behind a key, some at a time."""

    columns: str
    source: str
    key: tuple[str, ...]
    start: tuple[Any, ...]
    size: str

    def statement(self) -> Statement:
        after = ", ".join(f":after_{'abc'[number]}" for number in range(len(self.key)))
        key = ", ".join(self.key)
        return Statement(
            f"""
            WITH part AS (
                SELECT {key}, {self.columns}, sum({self.size}) OVER (ORDER BY {key}) - ({self.size}) AS before_it
                FROM {self.source} AND ({key}) > ({after}) ORDER BY {key} LIMIT {ROWS_AT_ONCE}
            )
            SELECT * FROM part WHERE before_it < {BYTES_AT_ONCE} ORDER BY {", ".join(self.names)}
            """
        )

    @property
    def names(self) -> list[str]:
        return [name.rpartition(".")[2] for name in self.key]


_HOLDERS = _Table(
    "owner, kind, created, extract(epoch FROM used)::float8 AS used, size, status, previous, conversation, "
    "continuation, fields, body",
    "toolwire.holders WHERE true",
    ("id",),
    ("",),
    "length(fields) + length(body)",
)
_ITEMS = _Table(
    "i.owner, i.id, i.whole_id, i.item",
    "toolwire.items i JOIN toolwire.holders h ON h.id = i.holder WHERE true",
    ("i.holder", "i.made", "i.place"),
    ("", 0, -1),
    "length(i.item)",
)
_EVENTS = _Table(
    "h.owner, j.count, j.frames",
    "toolwire.journal j JOIN toolwire.holders h ON h.id = j.response WHERE true",
    ("j.response", "j.first"),
    ("", -1),
    "length(j.frames)",
)
_RUNS = _Table(
    "owner, epoch, is_over, is_started, is_cancelled, plan", "toolwire.runs WHERE true", ("id",), ("",), "length(plan)"
)
_KEPT = _Table(
    "key, value, extract(epoch FROM used)::float8 AS used",
    "toolwire.kept WHERE true",
    ("owner", "kind", "digest"),
    ("", "", b""),
    "length(key) + length(value)",
)

_PUT_HOLDERS = Statement(
    """
    INSERT INTO toolwire.holders
        (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
    VALUES (:id, :owner, :kind, :created, to_timestamp(:used), :size, :status, :previous, :conversation, :continuation,
        :fields, :body) ON CONFLICT DO NOTHING
    """
)
_PUT_ITEM = Statement(
    """
    WITH holder AS (
        UPDATE toolwire.holders SET places = greatest(places, :place::bigint + 1)
        WHERE id = :holder AND owner = :owner RETURNING 1
    )
    INSERT INTO toolwire.items (holder, owner, made, place, id, whole_id, call, item)
    SELECT :holder, :owner, :made, :place, :id, :whole_id, :call, :item FROM holder ON CONFLICT DO NOTHING
    """
)
_PUT_EVENT = Statement(
    """
    INSERT INTO toolwire.journal (response, first, count, epoch, frames)
    SELECT :holder, :first, :count, 0, :frames FROM toolwire.holders WHERE id = :holder AND owner = :owner
    ON CONFLICT DO NOTHING
    """
)
_PUT_RUN = Statement(
    """
    INSERT INTO toolwire.runs (id, owner, member, epoch, is_over, is_started, is_cancelled, plan)
    SELECT :id, :owner, '', :epoch, :is_over, :is_started, :is_cancelled, :plan
    FROM toolwire.holders WHERE id = :id AND owner = :owner ON CONFLICT DO NOTHING
    """
)
_PUT_VALUE = Statement(
    """
    INSERT INTO toolwire.kept (owner, kind, digest, key, value, size, used)
    VALUES (:owner, :kind, :digest, :key, :value, :size, to_timestamp(:used)) ON CONFLICT DO NOTHING
    """
)


class PostgresCopying:
    """The part of the store that is copied to others."""

    _database: Database

    async def dump(self) -> AsyncIterator[AnyRow]:
        async with self._database.snapshot() as read:
            async for row in _rows(read, _HOLDERS):
                yield HolderRow(*row[:12])
            async for row in _rows(read, _ITEMS):
                holder, made, place, owner, id, whole, item = row[:7]
                yield ItemRow(holder, owner, bool(made), place, id_of(id, whole), item)
            async for row in _rows(read, _EVENTS):
                response, first, owner, count, frames = row[:5]
                yield EventRow(response, owner, first, count, frames)
            async for row in _rows(read, _RUNS):
                yield RunRow(*row[:7])
            async for row in _rows(read, _KEPT):
                owner, kind, _, key, value, used = row[:6]
                yield ValueRow(owner, kind, key, value, used)

    async def restore(self, rows: Sequence[AnyRow]) -> None:
        for row in rows:
            statement, values = _restored(row)
            await self._database.write(statement, **values)


async def _rows(read: Callable[..., Awaitable[list[Row]]], table: _Table) -> AsyncIterator[Row]:
    statement, after = table.statement(), table.start
    while True:
        rows = await read(statement, **{f"after_{'abc'[number]}": value for number, value in enumerate(after)})
        for row in rows:
            yield row
        if not rows:
            break
        after = tuple(rows[-1][: len(after)])


def _restored(row: AnyRow) -> tuple[Statement, dict[str, object]]:
    """How a row is put."""
    match row:
        case HolderRow():
            keys = {name: key_of(getattr(row, name)) for name in ("id", "previous", "conversation", "continuation")}
            return _PUT_HOLDERS, {**_fields(row), **keys}
        case ItemRow():
            key = key_of(row.id)
            call = call_of(row.item) if row.made else None
            changed = {"holder": key_of(row.holder), "made": int(row.made), "id": key}
            return _PUT_ITEM, {**_fields(row), **changed, "whole_id": whole_of(row.id, key), "call": call}
        case EventRow():
            return _PUT_EVENT, {**_fields(row), "holder": key_of(row.holder)}
        case RunRow():
            return _PUT_RUN, {**_fields(row), "id": key_of(row.id)}
        case ValueRow():
            size = len(row.key) + len(row.value) + KEPT_ROW
            return _PUT_VALUE, {**_fields(row), "digest": digest_of(row.key), "size": size}


def _fields(row: AnyRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
