"""All rows of a SQLite store as they are at one moment, for another store, and those of another one, for this."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from toolwire.memory.sqlite.engine import Engine, Opened, Transaction
from toolwire.memory.sqlite.kept import size_of
from toolwire.memory.sqlite.schema import call_id_of
from toolwire.memory.store import AnyRow, EventRow, HolderRow, ItemRow, RunRow, ValueRow

T = TypeVar("T")

ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 8 * 1024 * 1024
"""Most rows and bytes that are read in one go, unless a single row has more."""

_TABLES: tuple[tuple[type[AnyRow], str, str, tuple[Any, ...], str], ...] = (
    (
        HolderRow,
        "holders",
        "id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body",
        ("",),
        "id",
    ),
    (ItemRow, "items", "holder, owner, made, place, id, item", ("", 0, -1), "holder, made, place"),
    (EventRow, "events", "holder, owner, first, count, frames", ("", -1), "holder, first"),
    (RunRow, "runs", "id, owner, epoch, is_over, is_started, is_cancelled, plan", ("",), "id"),
    (ValueRow, "kept", "owner, kind, key, value, used", ("", "", b""), "owner, kind, key"),
)
"""Each kind of row with its table, the columns of its fields, the key before the first, and the columns of its key."""

_OWNED = "WHERE EXISTS (SELECT 1 FROM holders WHERE id = ? AND owner = ?)"


class Copying(Engine):
    """The part of the store that is copied to others."""

    async def dump(self) -> AsyncIterator[AnyRow]:
        """Everything that is kept, as it is when this begins; holders come before what belongs to them."""
        thread = ThreadPoolExecutor(1, "toolwire-store-dump")
        opened: Opened | None = None
        try:
            opened = await self._snapshot(thread)
            for row, table, columns, start, key in _TABLES if opened is not None else ():
                width = len(start)
                query = f"SELECT {key}, {columns} FROM {table} WHERE ({key}) > ({_marks(width)}) ORDER BY {key}"
                after = start
                while found := await self._read_in(thread, _some, opened, query, after):
                    for values in found:
                        yield _made(row, values[width:])
                    after = found[-1][:width]
        finally:
            thread.submit(self._close, opened)
            thread.shutdown(wait=False)

    async def _snapshot(self, thread: Executor) -> Opened | None:
        """A connection of its own that sees one state; None while there is nothing to read."""
        if self._file is None:
            return await self._read(_copied)
        return await self._read_in(thread, self._begin_snapshot)

    def _begin_snapshot(self) -> Opened | None:
        opened = self._open_reader(self._file) if self._file is not None else None
        if opened is not None:
            opened.database.execute("BEGIN")
        return opened

    async def _read_in(self, thread: Executor, work: Callable[..., T], *given: Any) -> T:
        job = asyncio.get_running_loop().run_in_executor(thread, partial(work, *given))
        return await self._done("read", job)

    async def restore(self, rows: Sequence[AnyRow]) -> None:
        """Add rows of `dump` in their order; what is there already stays."""
        await self._write(self._restore, rows)

    def _restore(self, database: sqlite3.Connection, rows: Sequence[AnyRow]) -> None:
        with Transaction(database):
            for row in rows:
                _insert(database, row)


def _copied(database: sqlite3.Connection) -> Opened:
    """A copy of a database in memory: it has one connection."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.backup(copy)
    return Opened(copy, None)


def _some(opened: Opened, query: str, after: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    rows = opened.database.execute(f"{query} LIMIT {ROWS_AT_ONCE}", after)
    found: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        found.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if size > BYTES_AT_ONCE:
            rows.close()
            break
    return found


def _made(row: type[AnyRow], values: tuple[Any, ...]) -> AnyRow:
    if row is ItemRow:
        holder, owner, made, *rest = values
        return ItemRow(holder, owner, bool(made), *rest)
    if row is RunRow:
        id, owner, epoch, is_over, is_started, is_cancelled, plan = values
        return RunRow(id, owner, epoch, bool(is_over), bool(is_started), bool(is_cancelled), plan)
    return row(*values)


def _insert(database: sqlite3.Connection, row: AnyRow) -> None:
    match row:
        case HolderRow():
            values: tuple[Any, ...] = (row.id, row.owner, row.kind, row.created, row.used, row.size, row.status)
            values += (row.previous, row.conversation, row.continuation, row.fields, row.body)
            _put(database, _TABLES[0][1], _TABLES[0][2], values)
        case ItemRow():
            values = (row.holder, row.owner, int(row.made), row.place, row.id, row.item)
            call = call_id_of(row.item) if row.made else ""
            _put(database, "items", f"{_TABLES[1][2]}, call_id", (*values, call), (row.holder, row.owner))
        case EventRow():
            values = (row.holder, row.owner, row.first, row.count, row.frames)
            _put(database, "events", _TABLES[2][2], values, (row.holder, row.owner))
        case RunRow():
            values = (row.id, row.owner, row.epoch, row.is_over, row.is_started, row.is_cancelled, row.plan)
            _put(database, "runs", f"{_TABLES[3][2]}, member", (*values, ""), (row.id, row.owner))
        case ValueRow():
            values = (row.owner, row.kind, row.key, row.value, row.used, size_of(row.key, row.value))
            _put(database, "kept", f"{_TABLES[4][2]}, size", values)


def _put(
    database: sqlite3.Connection,
    table: str,
    columns: str,
    values: tuple[Any, ...],
    owned: tuple[str, str] | None = None,
) -> None:
    """Add a row that is not there yet; one that belongs to a holder only if that is there and the same owner's."""
    marks = _marks(len(values))
    condition = _OWNED if owned is not None else "WHERE 1"
    change = f"INSERT INTO {table} ({columns}) SELECT {marks} {condition} ON CONFLICT DO NOTHING"
    database.execute(change, (*values, *(owned or ())))


def _marks(count: int) -> str:
    return ", ".join("?" * count)
