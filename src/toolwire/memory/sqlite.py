"""A store of responses and conversations in one SQLite file, or the same in memory.

A response is a row with its request's fields and its final object; its items are rows of their own, so that a chain, a
page of items and a reference to one item are each one query. What is kept between turns are rows of a third table, by
kind and key. Everything belongs to an owner, and nobody else sees it; the bounds are for all of it together.

Writing is done in one thread, one transaction at a time; reading in another, which needs no write and waits for none.
What was committed survives the process. What cannot be done raises `StoreFailed`.
"""

import asyncio
import errno
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from toolwire.memory.clock import StoreClock, steady
from toolwire.memory.file import FileInUse, StoreFile
from toolwire.memory.store import (
    Conversation,
    Effects,
    EventChunk,
    KeptItem,
    KeptRow,
    Kind,
    Page,
    Reason,
    Record,
    StoreFailed,
    TooLarge,
)

Raw = msgspec.Raw
T = TypeVar("T")

_REASONS: dict[int, Reason] = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
}
_ERRNO_REASONS: dict[int | None, Reason] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EROFS: "readonly",
    errno.EACCES: "readonly",
    errno.EPERM: "readonly",
}


def store_failed(error: Exception) -> StoreFailed:
    """What an error means for the store."""
    if isinstance(error, StoreFailed):
        return error
    if isinstance(error, FileInUse):
        return StoreFailed("in_use", "another gateway uses this file; give each gateway a file of its own")
    if isinstance(error, OSError):
        return StoreFailed(_ERRNO_REASONS.get(error.errno, "io"), error.strerror or str(error))
    code = getattr(error, "sqlite_errorcode", None) or 0
    return StoreFailed(_REASONS.get(code & 0xFF, "io"), str(error))


GIVEN, MADE = 0, 1
PATIENCE = 5.0
"""Seconds that a write waits for its turn, and again for a lock of another program."""
SHORT_PATIENCE = 0.5
"""The same for a lock while the store fails anyway."""
PROBE_EVERY = 1.0
"""Seconds between two attempts to find out whether a failing store works again."""
PROBE_BYTES = 256 * 1024
"""What such an attempt writes: on a full disk there is often room for a little."""
IDS_AT_ONCE = 500
"""Ids in one query; SQLite has a limit."""
NO_BOUND = 2**63 - 1
KEPT_ROW = 128
"""Bytes that a row of what is kept between turns counts beside its own."""
KEPT_AT_ONCE = 64 * 1024 * 1024
"""Most bytes of such rows that one question is answered with."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    size INTEGER NOT NULL, used REAL NOT NULL, UNIQUE (owner, kind, key)
);
CREATE INDEX IF NOT EXISTS kept_by_use ON kept (used);
CREATE INDEX IF NOT EXISTS kept_by_owner ON kept (owner, used, size);
CREATE TABLE IF NOT EXISTS holders (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    size INTEGER NOT NULL, status TEXT NOT NULL, previous TEXT NOT NULL, conversation TEXT NOT NULL,
    continuation TEXT NOT NULL, fields BLOB NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holders_by_use ON holders (used);
CREATE INDEX IF NOT EXISTS holders_by_owner ON holders (owner, used, size);
CREATE TABLE IF NOT EXISTS items (
    holder TEXT NOT NULL, place INTEGER NOT NULL, made INTEGER NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
    item BLOB NOT NULL, PRIMARY KEY (holder, made, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_id ON items (owner, id);
CREATE TABLE IF NOT EXISTS events (
    holder TEXT NOT NULL, first INTEGER NOT NULL, owner TEXT NOT NULL, frames BLOB NOT NULL, PRIMARY KEY (holder, first)
) WITHOUT ROWID;
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

_SIZES = "(SELECT COALESCE(SUM(LENGTH(item)), 0) FROM items WHERE holder = chain.id)"

_BEFORE = """
FROM items JOIN holders h ON h.id = :id AND holder = h.conversation
WHERE place < (SELECT MIN(place) FROM items WHERE holder = h.conversation AND id IN
    (SELECT id FROM items WHERE holder = :id)) ORDER BY place
"""
"""What stood in the conversation of a response before it."""

_SIZE = """
SELECT (SELECT COALESCE(SUM(LENGTH(item)), 0) FROM items WHERE holder = :id)
    + (SELECT COALESCE(SUM(LENGTH(frames)), 0) FROM events WHERE holder = :id)
"""
"""Bytes of the items and events of a response."""

_LATEST = """
SELECT items.id, holder, made, place, LENGTH(item), MAX(used) FROM items JOIN holders ON holders.id = holder
WHERE items.owner = ? AND items.id IN ({marks}) GROUP BY items.id
"""
"""Where items with these ids are kept; of two with one id, the one used last."""

_KEPT = "SELECT {} FROM kept WHERE owner = ? AND kind = ? AND key = ?"
_EVERYTHING = "(SELECT owner, size, used FROM holders UNION ALL SELECT owner, size, used FROM kept)"
_OLD = """
SELECT id, owner, size FROM holders WHERE used < :oldest AND id != :latest
UNION ALL SELECT id, owner, size FROM kept WHERE used < :oldest
"""
_LEAST_USED = """
SELECT id, owner, size, used FROM holders WHERE owner = :owner AND id != :latest
UNION ALL SELECT id, owner, size, used FROM kept WHERE owner = :owner ORDER BY used LIMIT 64
"""
"""The ids of holders are texts and those of kept rows are numbers, so each is known by its id alone."""

_RECORD = "id, created, status, fields, body, previous, conversation, continuation"
_UNFINISHED = ("queued", "in_progress")
_FAULTS = (sqlite3.Error, OSError, FileInUse, StoreFailed)


class SqliteStore:
    """A store in one file, or in memory. The file is made when there is something to keep."""

    def __init__(
        self,
        url: str,
        max_age: float,
        max_size: int,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
    ) -> None:
        scheme, _, path = url.partition(":")
        self._file = StoreFile(path) if scheme != "memory" else None
        self._max_age = max_age
        self._max_size = max_size
        self._clock = StoreClock(max_age, clock, steady)
        self._sizes: dict[str, int] = {}  # bytes by owner
        self._swept = 0.0
        self._writes = ThreadPoolExecutor(1, "toolwire-store")
        self._reads = ThreadPoolExecutor(1, "toolwire-store-reads") if self._file is not None else self._writes
        self._writer: _Opened | None = None
        self._reader: _Opened | None = None
        self._empty: sqlite3.Connection | None = None  # stands for a file that is not there yet
        self._abandoned: list[sqlite3.Connection] = []
        self._patience = PATIENCE
        self._as_failed: Callable[[Record], Record] | None = None
        self._faults: dict[_Side, Reason] = {}
        self._probed = 0.0
        self._probing: asyncio.Future[bool] | None = None
        self.tightened: list[str] = []
        """Files that others could read until they were opened here."""
        self.watch: Callable[[StoreFailed | None], None] = _unwatched
        """Hears of every failure, and with None that all is well again."""

    @property
    def failing(self) -> Reason | None:
        """Why the latest attempt to write or to read failed, if it did."""
        return next(iter(self._faults.values()), None)

    @property
    def outlives_process(self) -> bool:
        return self._file is not None

    @property
    def exists(self) -> bool:
        return self._file is not None and self._file.exists

    def claim(self) -> None:
        """Make sure that no other gateway uses the file."""
        if self._file is None:
            return
        try:
            self._file.claim()
        except (OSError, FileInUse) as error:
            raise store_failed(error) from None

    def check(self) -> None:
        """Raise what would go wrong at the first use."""
        if self._file is None:
            return
        if self.exists:
            self._writes.submit(self._writable).result()
            return
        try:
            self._file.check()
        except OSError as error:
            raise sqlite3.OperationalError(error.strerror) from None

    async def save(
        self,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects = Effects(),  # noqa: B008 - frozen
        events: Iterable[EventChunk] = (),
    ) -> None:
        """Keep a response, or its new state. `given` is None when its input is kept already."""
        await self._write(self._save, owner, record, given, made, effects, events)

    async def load(self, owner: str, id: str) -> Record | None:
        return await self._read(self._load, owner, id)

    async def events(self, owner: str, id: str, number: int) -> EventChunk | None:
        """The event of this number with those behind it in its chunk, or the last chunk; None if no events are kept."""
        return await self._read(self._events, owner, id, number)

    async def input(self, owner: str, holder: str, most: int = NO_BOUND) -> list[Raw]:
        """The input of a response, or a whole conversation."""
        return await self._read(self._side, owner, holder, GIVEN, most)

    async def output(self, owner: str, id: str) -> list[Raw]:
        """The output of a response."""
        return await self._read(self._side, owner, id, MADE)

    async def chain(self, owner: str, id: str, most: int = NO_BOUND) -> list[Raw] | None:
        """Everything said up to and with this response, oldest first; None if a link of the chain is missing."""
        items = await self._read(self._chain, owner, id, most)
        if items is not None:
            # Marked as used by and by: reading must not wait for a write, nor fail with it.
            self._submit(self._touch, owner, id, self._clock()).add_done_callback(self._hear)
        return items

    async def missing_link(self, owner: str, id: str) -> str:
        """The latest response of a chain that is not there; nothing if the chain is whole."""
        return await self._read(self._missing_link, owner, id)

    async def link(self, owner: str, id: str, continuation: str) -> None:
        await self._write(self._link, owner, id, continuation)

    async def delete(self, owner: str, id: str, kind: Kind = "response") -> bool:
        """Forget a response or a conversation."""
        return await self._write(self._delete, owner, id, kind)

    async def page(
        self, owner: str, holder: str, after: str, limit: int, order: str, most: int = NO_BOUND
    ) -> Page | None:
        """Some of the input of a response, or of a conversation; None if `after` is none of its items.

        A page ends before `most` bytes; its first item is there whatever its size.
        """
        return await self._read(self._page, owner, holder, after, limit, order, most)

    async def find(self, owner: str, ids: Sequence[str], most: int = NO_BOUND) -> dict[str, Raw]:
        """Items by their ids, wherever they are kept; an id counts as often as it is given."""
        return await self._read(self._find, owner, ids, most)

    async def fail_unfinished(self, as_failed: Callable[[Record], Record]) -> None:
        """Runs that an earlier process did not finish are over: now, or as soon as the store can be written to."""
        self._as_failed = as_failed
        if self.exists:
            with suppress(StoreFailed):
                await self._write(_do_nothing)

    async def put_conversation(self, owner: str, conversation: Conversation) -> None:
        record = Record(conversation.id, conversation.created, "", b"", conversation.metadata)
        await self._write(self._save, owner, record, None, (), Effects(), (), "conversation")

    async def conversation(self, owner: str, id: str) -> Conversation | None:
        record = await self._read(self._load, owner, id, "conversation")
        return None if record is None else Conversation(record.id, record.created, record.response)

    async def add_items(self, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        """Add items to a conversation, if it is still there."""
        await self._write(self._add_items, owner, holder, items)

    async def item(self, owner: str, holder: str, id: str) -> Raw | None:
        """One item of a conversation."""
        return await self._read(self._item, owner, holder, id)

    async def delete_item(self, owner: str, holder: str, id: str) -> bool:
        return await self._write(self._delete_item, owner, holder, id)

    async def put_kept(self, rows: Sequence[KeptRow]) -> None:
        """Keep values between turns, in one transaction."""
        await self._write(self._put_kept, rows)

    async def get_kept(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = KEPT_AT_ONCE
    ) -> list[bytes | None]:
        """The values with these kinds and keys, as long as there are not too many bytes of them."""
        return await self._read(self._get_kept, owner, keys, most)

    async def probe(self) -> bool:
        """Whether the store works. One that fails is tried once more, but not too often."""
        if self._file is None:
            return True
        writer, now = self._writer, time.monotonic()
        is_gone = writer is not None and self._file.identity() != writer.identity
        if (self._faults or is_gone) and now - self._probed >= PROBE_EVERY:
            self._probed = now
            with suppress(StoreFailed):
                await self._write(_write_some)
                self._recover("write")
                await self._read(_read_some)
        return not self._faults

    async def close(self) -> None:
        await asyncio.to_thread(self.release)

    def release(self) -> None:
        """Let go of the file and the threads, for whoever may wait."""
        self._reads.submit(self._close_reader).result()
        self._writes.submit(self._close_writer).result()
        self._reads.shutdown()
        self._writes.shutdown()
        if self._file is not None:
            self._file.release()

    # How it is done

    async def _write(self, work: Callable[..., T], *given: Any) -> T:
        return await self._done("write", self._submit(work, *given))

    async def _read(self, work: Callable[..., T], *given: Any) -> T:
        loop = asyncio.get_running_loop()
        return await self._done("read", loop.run_in_executor(self._reads, partial(self._do_read, work, given)))

    def _submit(self, work: Callable[..., T], *given: Any) -> "asyncio.Future[T]":
        job = partial(self._do_write, time.monotonic(), work, given)
        return asyncio.get_running_loop().run_in_executor(self._writes, job)

    async def _done(self, side: "_Side", job: "asyncio.Future[T]") -> T:
        try:
            result = await job
        except _FAULTS as error:
            raise self._failed(side, error) from error
        if self._faults.get(side) == "full":  # where a little could be written, not everything can be
            self._probing = asyncio.ensure_future(self.probe())
        elif side in self._faults:
            self._recover(side)
        return result

    def _recover(self, side: "_Side") -> None:
        if self._faults.pop(side, None) is not None and not self._faults:
            self.watch(None)

    def _failed(self, side: "_Side", error: Exception) -> StoreFailed:
        failed = store_failed(error)
        self._faults[side] = failed.reason
        self.watch(failed)
        return failed

    def _hear(self, job: "asyncio.Future[None]") -> None:
        """A write that nobody waited for is over."""
        error = job.exception() if not job.cancelled() else None
        if isinstance(error, _FAULTS):
            self._failed("write", error)

    def _do_write(self, asked: float, work: Callable[..., T], given: tuple[Any, ...]) -> T:
        if time.monotonic() - asked > PATIENCE:
            raise StoreFailed("busy", "other writes took too long")
        database = self._writable()
        if self._as_failed is not None:
            self._fail_unfinished(database, self._as_failed)
            self._as_failed = None
        return work(database, *given)

    def _do_read(self, work: Callable[..., T], given: tuple[Any, ...]) -> T:
        return work(self._readable(), *given)

    def _writable(self) -> sqlite3.Connection:
        patience = SHORT_PATIENCE if "write" in self._faults else PATIENCE
        if self._writer is not None:
            self._writer = self._still_there(self._writer)
        if self._writer is None:
            self._writer = self._open_writer(patience)
        elif patience != self._patience:
            self._writer.database.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
        self._patience = patience
        return self._writer.database

    def _readable(self) -> sqlite3.Connection:
        if self._file is None:
            return self._writable()
        if self._reader is not None:
            self._reader = self._still_there(self._reader)
        if self._reader is None:
            self._reader = self._open_reader(self._file)
        if self._reader is not None:
            return self._reader.database
        if self._empty is None:
            self._empty = sqlite3.connect(":memory:", isolation_level=None)
            self._empty.executescript(_SCHEMA)
        return self._empty

    def _still_there(self, opened: "_Opened") -> "_Opened":
        """Raise if there is no such file any more; the next use begins with whatever is there then.

        The connection is not closed: SQLite would remove its log by name, which may be that of another file by now.
        """
        if self._file is not None and self._file.identity() != opened.identity:
            self._abandoned.append(opened.database)
            if opened is self._writer:
                self._writer = None
            else:
                self._reader = None
            raise StoreFailed("missing", "the file has gone or was replaced")
        return opened

    def _open_writer(self, patience: float) -> "_Opened":
        path, identity = ":memory:", None
        if self._file is not None:
            self._file.claim()
            self._file.make()
            path, identity = str(self._file.path), self._file.identity()
        database = sqlite3.connect(path, isolation_level=None, timeout=patience)
        try:
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(_SCHEMA)
            self._sizes = dict(database.execute(f"SELECT owner, SUM(size) FROM {_EVERYTHING} GROUP BY owner"))
            self._clock.start(database.execute(f"SELECT MAX(used) FROM {_EVERYTHING}").fetchone()[0])
        except sqlite3.Error:
            database.close()
            raise
        if self._file is not None:
            self.tightened += map(str, self._file.tighten())
        return _Opened(database, identity)

    def _open_reader(self, file: StoreFile) -> "_Opened | None":
        """A connection that cannot write; None while there is nothing to read."""
        identity = file.identity()
        if identity is None:
            return None
        address = f"file:{quote(str(file.path))}?mode=rw"
        database = sqlite3.connect(address, uri=True, isolation_level=None, timeout=PATIENCE)
        try:
            database.execute("PRAGMA query_only = 1")
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone() is None:
                database.close()
                return None
            self._clock.start(database.execute(f"SELECT MAX(used) FROM {_EVERYTHING}").fetchone()[0])
        except sqlite3.Error:
            database.close()
            raise
        return _Opened(database, identity)

    def _close_writer(self) -> None:
        opened, self._writer = self._writer, None
        if opened is not None and (self._file is None or self._file.identity() == opened.identity):
            opened.database.close()

    def _close_reader(self) -> None:
        opened, self._reader = self._reader, None
        if opened is not None and self._file is not None and self._file.identity() == opened.identity:
            opened.database.close()

    # Writing

    def _save(
        self,
        database: sqlite3.Connection,
        owner: str,
        record: Record,
        given: Sequence[KeptItem] | None,
        made: Sequence[KeptItem],
        effects: Effects,
        events: Iterable[EventChunk] = (),
        kind: Kind = "response",
    ) -> None:
        now = self._clock()
        items = [*((GIVEN, *row) for row in enumerate(given or ())), *((MADE, *row) for row in enumerate(made))]
        with _Transaction(database):
            taken = database.execute("SELECT owner, size FROM holders WHERE id = ?", (record.id,)).fetchone()
            if taken is not None and taken[0] != owner:
                return
            database.executemany(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?)",
                ((record.id, place, side, item.id, owner, item.raw) for side, place, item in items),
            )
            database.execute("DELETE FROM events WHERE holder = ?", (record.id,))
            database.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?)",
                ((record.id, chunk.first, owner, chunk.frames) for chunk in events),
            )
            size = database.execute(_SIZE, {"id": record.id}).fetchone()[0] + len(record.fields) + len(record.response)
            database.execute(
                "INSERT INTO holders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "used = excluded.used, size = excluded.size, status = excluded.status, body = excluded.body",
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
                ),
            )
            grown = size - (taken[1] if taken is not None else 0)
            if effects.link is not None:
                self._link(database, owner, *effects.link)
            if effects.conversation:
                self._link_callers(database, owner, record.id, effects)
                grown += self._add(database, owner, effects.conversation, [*(given or ()), *made], now)
        self._resize(owner, grown)
        self._sweep(database, now, record.id)

    def _link(self, database: sqlite3.Connection, owner: str, id: str, continuation: str) -> None:
        database.execute("UPDATE holders SET continuation = ? WHERE id = ? AND owner = ?", (continuation, id, owner))

    def _link_callers(self, database: sqlite3.Connection, owner: str, continuation: str, effects: Effects) -> None:
        """Link the responses of the conversation that made the answered calls."""
        change = (
            "UPDATE holders SET continuation = ? WHERE owner = ? AND conversation = ? AND EXISTS "
            "(SELECT 1 FROM items WHERE holder = holders.id AND made = 1 AND instr(item, ?))"
        )
        for call in effects.answered:
            named = b'"call_id":' + msgspec.json.encode(call)
            database.execute(change, (continuation, owner, effects.conversation, named))

    def _touch(self, database: sqlite3.Connection, owner: str, id: str, now: float) -> None:
        change = _CHAIN + "UPDATE holders SET used = ? WHERE id IN (SELECT id FROM chain)"
        database.execute(change, (id, owner, owner, now))

    def _delete(self, database: sqlite3.Connection, owner: str, id: str, kind: Kind) -> bool:
        which = "DELETE FROM holders WHERE id = ? AND owner = ? AND kind = ? RETURNING size"
        with _Transaction(database):
            gone = database.execute(which, (id, owner, kind)).fetchall()
            if gone:
                for table in ("items", "events"):
                    database.execute(f"DELETE FROM {table} WHERE holder = ? AND owner = ?", (id, owner))
        self._resize(owner, -sum(row[0] for row in gone))
        return bool(gone)

    def _delete_item(self, database: sqlite3.Connection, owner: str, holder: str, id: str) -> bool:
        which = "DELETE FROM items WHERE holder = ? AND owner = ? AND made = 0 AND id = ? RETURNING LENGTH(item)"
        with _Transaction(database):
            gone = database.execute(which, (holder, owner, id)).fetchall()
            size = sum(row[0] for row in gone)
            database.execute("UPDATE holders SET size = size - ? WHERE id = ?", (size, holder))
        self._resize(owner, -size)
        return bool(gone)

    def _add_items(self, database: sqlite3.Connection, owner: str, holder: str, items: Sequence[KeptItem]) -> None:
        now = self._clock()
        with _Transaction(database):
            grown = self._add(database, owner, holder, items, now)
        self._resize(owner, grown)
        self._sweep(database, now, holder)

    def _add(self, database: sqlite3.Connection, owner: str, holder: str, items: Sequence[KeptItem], now: float) -> int:
        """Add items behind the others of a conversation that is there; returns by how much it has grown."""
        size = sum(len(item.raw) for item in items)
        change = "UPDATE holders SET used = ?, size = size + ? WHERE id = ? AND owner = ?"
        if not database.execute(change, (now, size, holder, owner)).rowcount:
            return 0
        query = "SELECT COALESCE(MAX(place), -1) + 1 FROM items WHERE holder = ?"
        first = database.execute(query, (holder,)).fetchone()[0]
        database.executemany(
            "INSERT INTO items VALUES (?, ?, 0, ?, ?, ?)",
            [(holder, first + place, item.id, owner, bytes(item.raw)) for place, item in enumerate(items)],
        )
        return size

    def _fail_unfinished(self, database: sqlite3.Connection, as_failed: Callable[[Record], Record]) -> None:
        query = f"SELECT owner, {_RECORD} FROM holders WHERE kind = 'response' AND status IN (?, ?)"
        for owner, *row in database.execute(query, _UNFINISHED).fetchall():
            self._save(database, owner, as_failed(Record(*row)), None, (), Effects())

    def _resize(self, owner: str, grown: int) -> None:
        self._sizes[owner] = self._sizes.get(owner, 0) + grown
        if self._sizes[owner] <= 0:
            del self._sizes[owner]

    def _sweep(self, database: sqlite3.Connection, now: float, latest: str) -> None:
        """Let go what is too old, and of what is too much the least used; the latest stays.

        Who keeps most gives way first: nobody loses anything while he has no more than his equal part of the room.
        """
        with suppress(sqlite3.Error):  # what was asked for is done; this is tried again with the next write
            if self._max_age and now - self._swept > min(60.0, self._max_age):
                old = {"oldest": now - self._max_age, "latest": latest}
                self._forget(database, database.execute(_OLD, old).fetchall())
                self._swept = now
            while self._max_size and (beyond := sum(self._sizes.values()) - self._max_size) > 0:
                largest = max(self._sizes, key=self._sizes.__getitem__)
                gone: list[tuple[str | int, str, int]] = []
                for id, owner, size, _ in database.execute(
                    _LEAST_USED, {"owner": largest, "latest": latest}
                ).fetchall():
                    if beyond <= 0:
                        break
                    gone.append((id, owner, size))
                    beyond -= size
                if not gone:
                    break
                self._forget(database, gone)

    def _forget(self, database: sqlite3.Connection, gone: Sequence[tuple[str | int, str, int]]) -> None:
        if not gone:
            return
        with _Transaction(database):
            for table, column in (("holders", "id"), ("items", "holder"), ("events", "holder"), ("kept", "id")):
                database.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(each[0],) for each in gone])
        for _, owner, size in gone:
            self._resize(owner, -size)
        database.execute("PRAGMA incremental_vacuum").fetchall()

    def _put_kept(self, database: sqlite3.Connection, rows: Sequence[KeptRow]) -> None:
        now = self._clock()
        grown: Counter[str] = Counter()
        with _Transaction(database):
            for row in rows:
                key, size = (row.owner, row.kind, row.key), len(row.key) + len(row.value) + KEPT_ROW
                known = database.execute(_KEPT.format("size"), key).fetchone()
                database.execute(
                    "INSERT INTO kept (owner, kind, key, value, size, used) VALUES (?, ?, ?, ?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET value = excluded.value, size = excluded.size, used = excluded.used",
                    (*key, row.value, size, now),
                )
                grown[row.owner] += size - (known[0] if known is not None else 0)
        for owner, size in grown.items():
            self._resize(owner, size)
        self._sweep(database, now, "")

    # Reading

    def _get_kept(
        self, database: sqlite3.Connection, owner: str, keys: Sequence[tuple[str, bytes]], most: int
    ) -> list[bytes | None]:
        query = _KEPT.format("value") + " AND used >= ?"
        oldest = self._oldest()
        found: list[bytes | None] = []
        for key in keys:
            row = database.execute(query, (owner, *key, oldest)).fetchone() if most > 0 else None
            most -= len(row[0]) if row is not None else 0
            found.append(row[0] if row is not None else None)
        return found

    def _oldest(self) -> float:
        """When what is still to be seen was used last, at the latest."""
        return self._clock() - self._max_age if self._max_age else 0.0

    def _load(self, database: sqlite3.Connection, owner: str, id: str, kind: Kind = "response") -> Record | None:
        query = f"SELECT {_RECORD} FROM holders WHERE id = ? AND owner = ? AND kind = ? AND used >= ?"
        row = database.execute(query, (id, owner, kind, self._oldest())).fetchone()
        return Record(*row) if row is not None else None

    def _events(self, database: sqlite3.Connection, owner: str, id: str, number: int) -> EventChunk | None:
        query = (
            "SELECT first, frames FROM events WHERE holder = ? AND owner = ? AND first <= ? ORDER BY first DESC LIMIT 1"
        )
        row = database.execute(query, (id, owner, number)).fetchone()
        return EventChunk(*row) if row is not None else None

    def _side(
        self, database: sqlite3.Connection, owner: str, holder: str, side: int, most: int = NO_BOUND
    ) -> list[Raw]:
        where = "FROM items WHERE holder = ? AND owner = ? AND made = ?"
        given = (holder, owner, side)
        if most < NO_BOUND:
            _check_size(database.execute(f"SELECT COALESCE(SUM(LENGTH(item)), 0) {where}", given).fetchone()[0], most)
        return _raws(database, f"SELECT item {where} ORDER BY place", given)

    def _chain(self, database: sqlite3.Connection, owner: str, id: str, most: int) -> list[Raw] | None:
        given = (id, owner, owner)
        links = database.execute(_CHAIN + f"SELECT id, previous, {_SIZES} FROM chain ORDER BY depth", given).fetchall()
        if not links or links[-1][1]:  # the oldest one still points at an earlier one
            return None
        oldest = {"id": links[-1][0]}
        before = database.execute(f"SELECT COALESCE(SUM(size), 0) FROM (SELECT LENGTH(item) size {_BEFORE})", oldest)
        _check_size(before.fetchone()[0] + sum(link[2] for link in links), most)
        items = "SELECT item FROM chain JOIN items ON holder = chain.id ORDER BY depth DESC, made, place"
        return [*_raws(database, f"SELECT item {_BEFORE}", oldest), *_raws(database, _CHAIN + items, given)]

    def _missing_link(self, database: sqlite3.Connection, owner: str, id: str) -> str:
        query = _CHAIN + "SELECT previous FROM chain ORDER BY depth DESC LIMIT 1"
        oldest = database.execute(query, (id, owner, owner)).fetchone()
        return oldest[0] if oldest is not None else id

    def _page(
        self, database: sqlite3.Connection, owner: str, holder: str, after: str, limit: int, order: str, most: int
    ) -> Page | None:
        place = None
        if after:
            found = database.execute(
                "SELECT place FROM items WHERE holder = ? AND owner = ? AND made = 0 AND id = ?", (holder, owner, after)
            ).fetchone()
            if found is None:
                return None
            place = found[0]
        sign, way = (">", "ASC") if order == "asc" else ("<", "DESC")
        beyond = f"AND place {sign} ?" if place is not None else "AND ? IS NULL"
        rows = database.execute(
            f"SELECT id, item FROM items WHERE holder = ? AND owner = ? AND made = 0 {beyond} "
            f"ORDER BY place {way} LIMIT ?",
            (holder, owner, place, limit + 1),
        )
        items: list[KeptItem] = []
        for id, item in rows:
            most -= len(item)
            if len(items) == limit or (items and most < 0):
                rows.close()
                return Page(items, has_more=True)
            items.append(KeptItem(id, Raw(item)))
        return Page(items, has_more=False)

    def _find(self, database: sqlite3.Connection, owner: str, ids: Sequence[str], most: int) -> dict[str, Raw]:
        places: dict[str, tuple[Any, ...]] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = ids[start : start + IDS_AT_ONCE]
            query = _LATEST.format(marks=",".join("?" * len(some)))
            places |= {row[0]: row[1:5] for row in database.execute(query, (owner, *some))}
        _check_size(sum(places[id][3] for id in ids if id in places), most)
        one = "SELECT item FROM items WHERE holder = ? AND made = ? AND place = ?"
        return {id: _raws(database, one, place[:3])[0] for id, place in places.items()}

    def _item(self, database: sqlite3.Connection, owner: str, holder: str, id: str) -> Raw | None:
        query = "SELECT item FROM items WHERE holder = ? AND owner = ? AND made = 0 AND id = ? LIMIT 1"
        return next(iter(_raws(database, query, (holder, owner, id))), None)


_Side: TypeAlias = Literal["write", "read"]


class _Opened(msgspec.Struct, frozen=True):
    """A connection, and what identifies its file."""

    database: sqlite3.Connection
    identity: tuple[int, int] | None


def _raws(database: sqlite3.Connection, query: str, given: tuple[Any, ...] | dict[str, Any]) -> list[Raw]:
    return [Raw(row[0]) for row in database.execute(query, given)]


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(size)


def _do_nothing(database: sqlite3.Connection) -> None:
    pass


def _write_some(database: sqlite3.Connection) -> None:
    """Write something of no meaning, and take it away again."""
    with _Transaction(database):
        database.execute("INSERT OR REPLACE INTO items VALUES ('', 0, 0, '', '', zeroblob(?))", (PROBE_BYTES,))
    with _Transaction(database):
        database.execute("DELETE FROM items WHERE holder = ''")


def _read_some(database: sqlite3.Connection) -> None:
    database.execute("SELECT id FROM holders LIMIT 1").fetchall()


def _unwatched(failed: StoreFailed | None) -> None:
    pass


class _Transaction:
    """All or nothing."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._database.execute("COMMIT")
        finally:
            if self._database.in_transaction:  # the commit failed, or something before it; some failures end it too
                self._database.execute("ROLLBACK")
