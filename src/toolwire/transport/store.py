"""Where responses and conversations are kept: one SQLite file, or the same in memory.

A response is a row with its request's fields and its final object; its items are rows of their own, so that a chain, a
page of items and a reference to one item are each one query. Everything belongs to an owner, and nobody else sees it.

All work is done in one thread of its own, one transaction at a time. What was committed survives the process.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

Raw = msgspec.Raw
T = TypeVar("T")
Kind: TypeAlias = Literal["response", "conversation"]


class KeptItem(msgspec.Struct, frozen=True):
    """An item with the id it is known by."""

    id: str
    raw: Raw


class Record(msgspec.Struct, frozen=True):
    """A response as it is kept. `response` has no output: that is in the items."""

    id: str
    created: float
    status: str
    fields: bytes
    """What was asked, as JSON, but for the items."""
    response: bytes
    previous: str = ""
    conversation: str = ""
    continuation: str = ""
    """The response that its tool outputs led to, once they were submitted."""
    frames: bytes = b""
    """The events of a background run, for clients that come back for the rest."""


class Page(msgspec.Struct, frozen=True):
    items: list[KeptItem]
    has_more: bool


class Conversation(msgspec.Struct, frozen=True):
    id: str
    created: float
    metadata: bytes


class Store(Protocol):
    """What the gateway needs of a store. Every call is about one owner's things."""

    async def save(
        self, owner: str, record: Record, given: Sequence[KeptItem] | None, made: Sequence[KeptItem]
    ) -> None: ...

    async def load(self, owner: str, id: str) -> Record | None: ...

    async def input(self, owner: str, holder: str) -> list[Raw]: ...

    async def output(self, owner: str, id: str) -> list[Raw]: ...

    async def chain(self, owner: str, id: str) -> list[Raw] | None: ...

    async def missing_link(self, owner: str, id: str) -> str: ...

    async def link(self, owner: str, id: str, continuation: str) -> None: ...

    async def link_callers(self, owner: str, conversation: str, calls: Sequence[str], continuation: str) -> None: ...

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool: ...

    async def page(self, owner: str, holder: str, after: str, limit: int, order: str) -> Page | None: ...

    async def find(self, owner: str, ids: Sequence[str]) -> dict[str, Raw]: ...

    async def fail_unfinished(self, as_failed: Callable[[Record], Record]) -> None: ...

    async def put_conversation(self, owner: str, conversation: Conversation) -> None: ...

    async def conversation(self, owner: str, id: str) -> Conversation | None: ...

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None: ...

    async def delete_item(self, owner: str, holder: str, id: str) -> bool: ...

    async def close(self) -> None: ...


GIVEN, MADE = 0, 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS holders (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    size INTEGER NOT NULL, status TEXT NOT NULL, previous TEXT NOT NULL, conversation TEXT NOT NULL,
    continuation TEXT NOT NULL, fields BLOB NOT NULL, body BLOB NOT NULL, frames BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holders_by_use ON holders (used);
CREATE TABLE IF NOT EXISTS items (
    holder TEXT NOT NULL, place INTEGER NOT NULL, made INTEGER NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
    item BLOB NOT NULL, PRIMARY KEY (holder, made, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_id ON items (owner, id);
"""

_CHAIN = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 0 FROM holders WHERE id = ? AND owner = ? AND kind = 'response'
    UNION ALL
    SELECT h.id, h.previous, depth + 1 FROM chain JOIN holders h
    ON h.id = chain.previous AND h.owner = ? AND h.kind = 'response' WHERE depth < 100000
)
"""
"""A response and all it continues; three values: its id, and its owner twice."""

_BEFORE = """
SELECT item FROM items JOIN holders h ON h.id = :id AND holder = h.conversation
WHERE place < (SELECT MIN(place) FROM items WHERE holder = h.conversation AND id IN
    (SELECT id FROM items WHERE holder = :id)) ORDER BY place
"""
"""What stood in the conversation of a response before it."""

_RECORD = "id, created, status, fields, body, previous, conversation, continuation, frames"
_UNFINISHED = ("queued", "in_progress")


class SqliteStore:
    """A store in one file, or in memory. The file is made when there is something to keep."""

    def __init__(self, url: str, max_age: float, max_size: int, clock: Callable[[], float] = time.time) -> None:
        scheme, _, path = url.partition(":")
        self._path = ":memory:" if scheme == "memory" else path
        self._max_age = max_age
        self._max_size = max_size
        self._clock = clock
        self._size = 0
        self._swept = 0.0
        self._thread = ThreadPoolExecutor(1, "toolwire-store")
        self._database: sqlite3.Connection | None = None

    @property
    def exists(self) -> bool:
        return self._path != ":memory:" and Path(self._path).exists()

    def check(self) -> None:
        """Raise what would go wrong at the first use."""
        if self._path == ":memory:":
            return
        if self.exists:
            self._thread.submit(self._connection).result()
            return
        folder = Path(self._path).absolute().parent
        if not folder.is_dir():
            raise sqlite3.OperationalError(f"there is no directory {folder}")
        try:
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise sqlite3.OperationalError(f"nothing can be written in {folder}: {error.strerror}") from None

    async def save(
        self, owner: str, record: Record, given: Sequence[KeptItem] | None, made: Sequence[KeptItem]
    ) -> None:
        """Keep a response, or its new state. `given` is None when its input is kept already."""
        await self._run(self._save, owner, record, given, made)

    async def load(self, owner: str, id: str) -> Record | None:
        return await self._run(self._load, owner, id)

    async def input(self, owner: str, holder: str) -> list[Raw]:
        """The input of a response, or a whole conversation."""
        return await self._run(self._side, owner, holder, GIVEN)

    async def output(self, owner: str, id: str) -> list[Raw]:
        """The output of a response."""
        return await self._run(self._side, owner, id, MADE)

    async def chain(self, owner: str, id: str) -> list[Raw] | None:
        """Everything said up to and with this response, oldest first; None if a link of the chain is missing."""
        return await self._run(self._chain, owner, id)

    async def missing_link(self, owner: str, id: str) -> str:
        """The latest response of a chain that is not there; nothing if the chain is whole."""
        return await self._run(self._missing_link, owner, id)

    async def link(self, owner: str, id: str, continuation: str) -> None:
        change = "UPDATE holders SET continuation = ? WHERE id = ? AND owner = ?"
        await self._run(self._change, change, (continuation, id, owner))

    async def link_callers(self, owner: str, conversation: str, calls: Sequence[str], continuation: str) -> None:
        """Link the responses of a conversation that made these calls."""
        await self._run(self._link_callers, owner, conversation, calls, continuation)

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool:
        """Forget a response or a conversation."""
        return await self._run(self._delete, owner, id, kind)

    async def page(self, owner: str, holder: str, after: str, limit: int, order: str) -> Page | None:
        """Some of the input of a response, or of a conversation; None if `after` is none of its items."""
        return await self._run(self._page, owner, holder, after, limit, order)

    async def find(self, owner: str, ids: Sequence[str]) -> dict[str, Raw]:
        """Items by their ids, wherever they are kept; of two with one id, the one used last."""
        marks = ",".join("?" * len(ids))
        query = (
            "SELECT items.id, item FROM items JOIN holders ON holders.id = holder "
            f"WHERE items.owner = ? AND items.id IN ({marks}) ORDER BY used"
        )
        rows = await self._run(self._query, query, (owner, *ids))
        return {row[0]: Raw(row[1]) for row in rows}

    async def fail_unfinished(self, as_failed: Callable[[Record], Record]) -> None:
        """Runs that an earlier process did not finish are over."""
        if self.exists:
            await self._run(self._fail_unfinished, as_failed)

    async def put_conversation(self, owner: str, conversation: Conversation) -> None:
        record = Record(conversation.id, conversation.created, "", b"", conversation.metadata)
        await self._run(self._save, owner, record, None, (), "conversation")

    async def conversation(self, owner: str, id: str) -> Conversation | None:
        record = await self._run(self._load, owner, id, "conversation")
        return None if record is None else Conversation(record.id, record.created, record.response)

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        await self._run(self._add, owner, holder, items)

    async def delete_item(self, owner: str, holder: str, id: str) -> bool:
        change = "DELETE FROM items WHERE holder = ? AND owner = ? AND id = ?"
        return await self._run(self._change, change, (holder, owner, id)) > 0

    async def close(self) -> None:
        await asyncio.to_thread(self.release)

    def release(self) -> None:
        """Let go of the file and the thread, for whoever may wait."""
        if self._database is not None:
            self._thread.submit(self._database.close).result()
        self._thread.shutdown()

    # What the thread does

    async def _run(self, work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *given))

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            database = sqlite3.connect(self._path, isolation_level=None, timeout=10)
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(_SCHEMA)
            self._size = database.execute("SELECT COALESCE(SUM(size), 0) FROM holders").fetchone()[0]
            self._database = database
        return self._database

    def _query(self, query: str, given: tuple[Any, ...] | dict[str, Any]) -> list[tuple[Any, ...]]:
        return self._connection().execute(query, given).fetchall()

    def _change(self, change: str, given: tuple[Any, ...]) -> int:
        return self._connection().execute(change, given).rowcount

    def _save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        kind: Kind = "response",
    ) -> None:
        database = self._connection()
        now = self._clock()
        items = [*((GIVEN, *row) for row in enumerate(given or ())), *((MADE, *row) for row in enumerate(made))]
        with _Transaction(database):
            taken = database.execute("SELECT owner, size FROM holders WHERE id = ?", (record.id,)).fetchone()
            if taken is not None and taken[0] != owner:
                return
            database.executemany(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?)",
                [(record.id, place, side, item.id, owner, bytes(item.raw)) for side, place, item in items],
            )
            size = len(record.fields) + len(record.response) + len(record.frames) + self._size_of_items(record.id)
            database.execute(
                "INSERT INTO holders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "used = excluded.used, size = excluded.size, status = excluded.status, body = excluded.body, "
                "frames = excluded.frames",
                (
                    record.id,
                    owner,
                    kind,
                    record.created,
                    now,
                    size,
                    record.status,
                    record.previous,
                    record.conversation,
                    record.continuation,
                    record.fields,
                    record.response,
                    record.frames,
                ),
            )
        self._size += size - (taken[1] if taken is not None else 0)
        self._sweep(now, record.id)

    def _size_of_items(self, holder: str) -> int:
        return self._query("SELECT COALESCE(SUM(LENGTH(item)), 0) FROM items WHERE holder = ?", (holder,))[0][0]

    def _load(self, owner: str, id: str, kind: Kind = "response") -> Record | None:
        self._sweep(self._clock(), id)
        query = f"SELECT {_RECORD} FROM holders WHERE id = ? AND owner = ? AND kind = ?"
        rows = self._query(query, (id, owner, kind))
        return Record(*rows[0]) if rows else None

    def _side(self, owner: str, holder: str, side: int) -> list[Raw]:
        query = "SELECT item FROM items WHERE holder = ? AND owner = ? AND made = ? ORDER BY place"
        return [Raw(row[0]) for row in self._query(query, (holder, owner, side))]

    def _chain(self, owner: str, id: str) -> list[Raw] | None:
        given = (id, owner, owner)
        oldest = self._oldest_link(owner, id)
        if oldest is None or oldest[1]:  # the oldest one still points at an earlier one
            return None
        before = self._query(_BEFORE, {"id": oldest[0]})
        rows = self._query(
            _CHAIN + "SELECT item FROM chain JOIN items ON holder = chain.id ORDER BY depth DESC, made, place", given
        )
        self._change(_CHAIN + "UPDATE holders SET used = ? WHERE id IN (SELECT id FROM chain)", (*given, self._clock()))
        return [Raw(row[0]) for row in (*before, *rows)]

    def _oldest_link(self, owner: str, id: str) -> tuple[str, str] | None:
        """The oldest response of a chain that is there, and what it continues."""
        rows = self._query(_CHAIN + "SELECT id, previous FROM chain ORDER BY depth DESC LIMIT 1", (id, owner, owner))
        return (rows[0][0], rows[0][1]) if rows else None

    def _missing_link(self, owner: str, id: str) -> str:
        oldest = self._oldest_link(owner, id)
        return oldest[1] if oldest is not None else id

    def _link_callers(self, owner: str, conversation: str, calls: Sequence[str], continuation: str) -> None:
        change = (
            "UPDATE holders SET continuation = ? WHERE owner = ? AND conversation = ? AND id IN "
            "(SELECT holder FROM items WHERE owner = ? AND made = 1 AND instr(item, ?))"
        )
        for call in calls:
            named = b'"call_id":' + msgspec.json.encode(call)
            self._change(change, (continuation, owner, conversation, owner, named))

    def _delete(self, owner: str, id: str, kind: Kind) -> bool:
        database = self._connection()
        which = "DELETE FROM holders WHERE id = ? AND owner = ? AND kind = ? RETURNING size"
        with _Transaction(database):
            gone = database.execute(which, (id, owner, kind)).fetchall()
            if gone:
                database.execute("DELETE FROM items WHERE holder = ? AND owner = ?", (id, owner))
        self._size -= sum(row[0] for row in gone)
        return bool(gone)

    def _page(self, owner: str, holder: str, after: str, limit: int, order: str) -> Page | None:
        place = None
        if after:
            found = self._query(
                "SELECT place FROM items WHERE holder = ? AND owner = ? AND made = 0 AND id = ?", (holder, owner, after)
            )
            if not found:
                return None
            place = found[0][0]
        sign, way = (">", "ASC") if order == "asc" else ("<", "DESC")
        beyond = f"AND place {sign} ?" if place is not None else "AND ? IS NULL"
        rows = self._query(
            f"SELECT id, item FROM items WHERE holder = ? AND owner = ? AND made = 0 {beyond} "
            f"ORDER BY place {way} LIMIT ?",
            (holder, owner, place, limit + 1),
        )
        return Page([KeptItem(row[0], Raw(row[1])) for row in rows[:limit]], len(rows) > limit)

    def _add(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        database = self._connection()
        query = "SELECT COALESCE(MAX(place), -1) + 1 FROM items WHERE holder = ?"
        size = sum(len(item.raw) for item in items)
        with _Transaction(database):
            first = database.execute(query, (holder,)).fetchone()[0]
            database.executemany(
                "INSERT INTO items VALUES (?, ?, 0, ?, ?, ?)",
                [(holder, first + place, item.id, owner, bytes(item.raw)) for place, item in enumerate(items)],
            )
            change = "UPDATE holders SET used = ?, size = size + ? WHERE id = ?"
            database.execute(change, (self._clock(), size, holder))
        self._size += size
        self._sweep(self._clock(), holder)

    def _fail_unfinished(self, as_failed: Callable[[Record], Record]) -> None:
        query = f"SELECT owner, {_RECORD} FROM holders WHERE kind = 'response' AND status IN (?, ?)"
        for owner, *row in self._query(query, _UNFINISHED):
            self._save(owner, as_failed(Record(*row)), None, ())

    def _sweep(self, now: float, latest: str) -> None:
        """Let go what is too old, and of what is too much the least used; the latest stays."""
        if self._max_age and now - self._swept > min(60.0, self._max_age):
            self._swept = now
            self._forget(self._query("SELECT id, size FROM holders WHERE used < ?", (now - self._max_age,)))
        while self._max_size and self._size > self._max_size:
            least = "SELECT id, size FROM holders WHERE id != ? ORDER BY used LIMIT 64"
            gone: list[tuple[str, int]] = []
            for id, size in self._query(least, (latest,)):
                if self._size - sum(each[1] for each in gone) <= self._max_size:
                    break
                gone.append((id, size))
            if not gone:
                break
            self._forget(gone)

    def _forget(self, gone: Sequence[tuple[Any, ...]]) -> None:
        if not gone:
            return
        database = self._connection()
        with _Transaction(database):
            for table, column in (("holders", "id"), ("items", "holder")):
                database.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(each[0],) for each in gone])
        self._size -= sum(each[1] for each in gone)
        database.execute("PRAGMA incremental_vacuum")


class _Transaction:
    """All or nothing."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._database.execute("COMMIT" if kind is None else "ROLLBACK")
