"""The connections of the SQLite store, its threads, and what its failures mean.

One thread writes, one transaction at a time; another one reads, and waits for no write. Other processes may use the
same file: a write begins by taking SQLite's write lock. SQLite first writes to a log, which is copied into the file
from time to time. If the log grows beyond a limit, writers wait until it is copied.
"""

import asyncio
import errno
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec

from toolwire.memory.clock import StoreClock, read_boot_id, read_steady_clock
from toolwire.memory.sql.operation import Need, Row, Side
from toolwire.memory.sql.store import Read, Store
from toolwire.memory.sqlite.schema import STATEMENTS, VERSION, migrate, version_of
from toolwire.memory.sqlite.store_file import FileInUse, StoreFile
from toolwire.memory.store import Reason, StoreFailed

T = TypeVar("T")

LOCK_TIMEOUT = 5.0
"""Seconds for which a write waits for its turn in this process, and again for a lock of another program."""
SHORT_LOCK_TIMEOUT = 0.5
"""The same for a lock while the store is failing."""
PROBE_INTERVAL = 1.0
"""Seconds between two probes of a failing store."""
PROBE_BYTES = 256 * 1024
"""Bytes that a probe writes: a full disk often has room for a little."""

LOG_CHECKPOINT_PAGES = 4_000
"""Pages of the log after which a writer copies them into the file."""
LOG_REMAINDER = 16 * 1024 * 1024
"""Bytes to which the log is cut when it starts over."""
LOG_LIMIT = 64 * 1024 * 1024
"""Bytes of the log above which writers wait until it is copied."""
LOG_WAIT = 0.5
"""Seconds for which a writer waits for that."""
MAX_LOG_BYTES = 8 * LOG_LIMIT
"""Bytes of the log above which nothing is written."""

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
_FAULTS = (sqlite3.Error, OSError, FileInUse, StoreFailed)


TABLES_IN_USE = ("holders", "kept", "turns")
"""The tables whose rows have the time of their last use."""

_encode = msgspec.json.Encoder().encode


def store_failure_of(error: Exception) -> StoreFailed:
    """An error as a failure of the store."""
    if isinstance(error, StoreFailed):
        return error
    if isinstance(error, FileInUse):
        detail = "a gateway of an older version uses this file; stop it, then run toolwire store migrate, or serve"
        return StoreFailed("in_use", detail)
    if isinstance(error, OSError):
        return StoreFailed(_ERRNO_REASONS.get(error.errno, "io"), error.strerror or str(error))
    code = getattr(error, "sqlite_errorcode", None) or 0
    return StoreFailed(_REASONS.get(code & 0xFF, "io"), str(error))


class SqliteTransaction:
    """A `Transaction` on a connection of this thread. Its statements return at once."""

    def __init__(self, database: sqlite3.Connection, times: Mapping[str, Callable[[], object]]) -> None:
        self._database = database
        self._times = times

    async def fetch(self, statement: str, /, **values: object) -> Sequence[Row]:
        return self._execute(statement, values).fetchall()

    async def fetch_one(self, statement: str, /, **values: object) -> Row | None:
        rows = self._execute(statement, values).fetchall()
        return rows[0] if rows else None

    def stream(self, statement: str, /, **values: object) -> sqlite3.Cursor:
        """Run a statement whose rows are read one by one, as many as are wanted."""
        return self._execute(statement, values)

    async def execute_many(self, statement: str, rows: Sequence[Mapping[str, object]], /) -> None:
        text, _, _, times = STATEMENTS[statement]
        supplied = {name: self._times[name]() for name in times}
        self._database.executemany(text, [{**row, **supplied} for row in rows] if supplied else rows)

    def _execute(self, statement: str, values: dict[str, object]) -> sqlite3.Cursor:
        text, _, arrays, times = STATEMENTS[statement]
        for name in arrays:
            values[name] = _encode(values[name]).decode()
        for name in times:
            values[name] = self._times[name]()
        return self._database.execute(text, values)


class Engine(Store):
    """A file, or a database in memory, with a thread that writes and one that reads.

    The file is created with the first write.
    """

    def __init__(
        self,
        url: str,
        max_age: float,
        max_size: int,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = read_steady_clock,
        lease: float = 10.0,
    ) -> None:
        super().__init__(max_age, max_size, lease)
        scheme, _, path = url.partition(":")
        self._file = StoreFile(path) if scheme != "memory" else None
        self._clock = StoreClock(max_age, clock, steady)
        self._steady = steady
        self._boot = read_boot_id() if self._file is not None else ""
        self._times = {"now": self._clock, "uptime": steady, "boot": lambda: self._boot}
        self._strangers: dict[str, Stranger] = {}  # members with another clock, by id
        self._writes = ThreadPoolExecutor(1, "toolwire-store")
        self._reads = ThreadPoolExecutor(1, "toolwire-store-reads") if self._file is not None else self._writes
        self._writer: Opened | None = None
        self._reader: Opened | None = None
        self._empty: sqlite3.Connection | None = None  # stands for a file that does not exist yet
        self._abandoned: list[sqlite3.Connection] = []
        self._lock_timeout = LOCK_TIMEOUT
        self._probed = 0.0
        self._probing: asyncio.Future[bool] | None = None

    @property
    def outlives_process(self) -> bool:
        return self._file is not None

    @property
    def exists(self) -> bool:
        return self._file is not None and self._file.exists

    @property
    def version(self) -> int:
        return VERSION

    async def inspect(self) -> int:
        def inspect() -> int:
            if self._file is None or not self._file.exists:
                return 0
            self._file.check_disk()
            with closing(sqlite3.connect(f"file:{quote(str(self._file.path))}?mode=ro", uri=True)) as database:
                return version_of(database)

        try:
            return await asyncio.to_thread(inspect)
        except _FAULTS as error:
            raise store_failure_of(error) from error

    def check(self) -> None:
        if self._file is None:
            return
        try:
            self._file.check()
            if self._file.exists:
                self._close(self._open_writer(LOCK_TIMEOUT))
        except _FAULTS as error:
            raise store_failure_of(error) from error
        finally:
            self._file.release()

    async def open(self) -> None:
        """Migrate an existing file to this version. If it cannot be used now, the first use tries again."""
        if self.exists:
            with suppress(StoreFailed):
                await self.in_writer(_read_some)

    async def probe(self) -> bool:
        if self._file is None:
            return True
        writer, now = self._writer, time.monotonic()
        is_gone = writer is not None and self._file.read_identity() != writer.identity
        if (self._faults or is_gone) and now - self._probed >= PROBE_INTERVAL:
            self._probed = now
            with suppress(StoreFailed):
                await self.in_writer(_write_some)
                self._recover("write")
                await self.in_reader(_read_some)
        return not self._faults

    async def close(self) -> None:
        await asyncio.to_thread(self.release)

    def release(self) -> None:
        """Close the file and end the threads; blocks until that is done."""
        self._reads.submit(lambda: self._close(self._reader)).result()
        self._writes.submit(lambda: self._close(self._writer)).result()
        self._reads.shutdown()
        self._writes.shutdown()
        if self._file is not None:
            self._file.release()

    # Operations

    def key(self, id: str) -> str:
        return id

    async def run(self, need: Need, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        if need == "reading":
            return await self.in_reader(self._run, "DEFERRED", operation, args, named)
        return await self.in_writer(self._run, "IMMEDIATE", operation, args, named)

    def write_later(self, operation: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        def note_outcome(job: "asyncio.Future[tuple[None, bool]]") -> None:
            error = job.exception() if not job.cancelled() else None
            if isinstance(error, _FAULTS):
                self._report("write", store_failure_of(error))

        self._submit(self._run, "IMMEDIATE", operation, args, {}).add_done_callback(note_outcome)

    def _run(
        self,
        database: sqlite3.Connection,
        kind: Literal["IMMEDIATE", "DEFERRED"],
        operation: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> T:
        """Run an operation to its end. It never suspends: no statement of this engine waits for the event loop."""
        with begin(database, kind):
            running = operation(self, SqliteTransaction(database, self._times), *args, **named)
            try:
                running.send(None)
            except StopIteration as finished:
                return finished.value
            running.close()
            raise RuntimeError(f"{operation.__name__} waits for something other than its transaction")

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Read]:
        thread = ThreadPoolExecutor(1, "toolwire-store-dump")
        loop = asyncio.get_running_loop()
        opened: Opened | None = None

        async def read(statement: str, **values: object) -> Sequence[Row]:
            if opened is None:
                return []
            database, query = opened.database, STATEMENTS[statement].text
            job = loop.run_in_executor(thread, lambda: database.execute(query, values).fetchall())
            return await self._finish("read", job)

        try:
            if self._file is None:
                opened = await self.in_reader(_copy)
            else:
                opened = await self._finish("read", loop.run_in_executor(thread, self._open_reader, self._file))
                if opened is not None:
                    await read("BEGIN")
            yield read
        finally:
            thread.submit(self._close, opened)
            thread.shutdown(wait=False)

    # The threads

    async def in_writer(self, work: Callable[..., T], *given: Any) -> T:
        """Call `work` with the connection and these arguments in the thread that writes."""
        result, has_written = await self._finish("write", self._submit(work, *given))
        if has_written:
            self._succeed("write")
        return result

    async def in_reader(self, work: Callable[..., T], *given: Any) -> T:
        """The same in the thread that reads."""
        job = asyncio.get_running_loop().run_in_executor(self._reads, lambda: work(self._get_reader(), *given))
        result = await self._finish("read", job)
        self._succeed("read")
        return result

    def _submit(self, work: Callable[..., T], *given: Any) -> "asyncio.Future[tuple[T, bool]]":
        job = partial(self._do_write, time.monotonic(), work, given)
        return asyncio.get_running_loop().run_in_executor(self._writes, job)

    async def _finish(self, side: Side, job: "asyncio.Future[T]") -> T:
        try:
            return await job
        except _FAULTS as error:
            raise self._report(side, store_failure_of(error)) from error

    def _succeed(self, side: Side) -> None:
        if self._faults.get(side) == "full":  # a full disk may have had room for a little
            self._probing = asyncio.ensure_future(self.probe())
        elif side in self._faults:
            self._recover(side)

    def _do_write(self, submitted: float, work: Callable[..., T], given: tuple[Any, ...]) -> tuple[T, bool]:
        """Returns the result, and whether anything was written: only that shows that the disk works."""
        if time.monotonic() - submitted > LOCK_TIMEOUT:
            raise StoreFailed("busy", "other writes took too long")
        database = self._get_writer()
        self._wait_for_log(database)
        before = database.total_changes
        result = work(database, *given)
        return result, database.total_changes != before

    # The log

    def _wait_for_log(self, database: sqlite3.Connection) -> None:
        """Wait while the log is too large: copying it into the file may have to wait for other readers and writers."""
        if self._file is None or self._file.measure_log() <= LOG_LIMIT:
            return
        deadline = time.monotonic() + LOG_WAIT
        while not self._copy_log(database) and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._file.measure_log() > MAX_LOG_BYTES:
            raise StoreFailed("busy", "its log has grown too large, because other programs keep it in use")

    def _copy_log(self, database: sqlite3.Connection) -> bool:
        """Copy the log into the file and start it over; False if another connection is in the way."""
        database.execute(f"PRAGMA busy_timeout = {int(LOG_WAIT * 1000)}")
        try:
            return database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        finally:
            database.execute(f"PRAGMA busy_timeout = {int(self._lock_timeout * 1000)}")

    # The connections

    def _get_writer(self) -> sqlite3.Connection:
        timeout = SHORT_LOCK_TIMEOUT if "write" in self._faults else LOCK_TIMEOUT
        if self._writer is not None:
            self._writer = self._check_present(self._writer)
        if self._writer is None:
            self._writer = self._open_writer(timeout)
        elif timeout != self._lock_timeout:
            self._writer.database.execute(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
        self._lock_timeout = timeout
        return self._writer.database

    def _get_reader(self) -> sqlite3.Connection:
        if self._file is None:
            return self._get_writer()
        if self._reader is not None:
            self._reader = self._check_present(self._reader)
        if self._reader is None:
            self._reader = self._open_reader(self._file)
        if self._reader is not None:
            return self._reader.database
        if self._empty is None:
            self._empty = sqlite3.connect(":memory:", isolation_level=None)
            migrate(self._empty, LOCK_TIMEOUT)
        return self._empty

    def _check_present(self, opened: "Opened") -> "Opened | None":
        """Raise if the file was removed or replaced; the next use opens the file that is there then.

        The connection is not closed: SQLite would remove its log by name, which may belong to another file by now.
        """
        if self._file is None or self._file.read_identity() == opened.identity:
            return opened
        self._abandoned.append(opened.database)
        writer = self._writer
        if opened is writer:
            self._writer = None
        else:
            self._reader = None
            if writer is not None and writer.identity == self._file.read_identity():
                return None  # the writer has raised already, and uses the new file
        raise StoreFailed("missing", "the file was removed or replaced")

    def _open_writer(self, timeout: float) -> "Opened":
        path, identity = ":memory:", None
        if self._file is not None:
            self._file.check_disk()
            self._file.claim()
            self._file.make()
            path, identity = str(self._file.path), self._file.read_identity()
        database = sqlite3.connect(path, isolation_level=None, timeout=timeout)
        try:
            migrate(database, timeout)
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(f"PRAGMA wal_autocheckpoint = {LOG_CHECKPOINT_PAGES}")
            database.execute(f"PRAGMA journal_size_limit = {LOG_REMAINDER}")
            self._start_clock(database)
        except (sqlite3.Error, StoreFailed):
            database.close()
            raise
        if self._file is not None:
            self.tightened += map(str, self._file.tighten())
        return Opened(database, identity)

    def _open_reader(self, file: StoreFile) -> "Opened | None":
        """A read-only connection; None while there is nothing to read."""
        identity = file.read_identity()
        if identity is None:
            return None
        file.claim()
        address = f"file:{quote(str(file.path))}?mode=rw"
        database = sqlite3.connect(address, uri=True, isolation_level=None, timeout=LOCK_TIMEOUT)
        try:
            if version_of(database) == 0:  # the writer is about to create its tables
                database.close()
                return None
            migrate(database, LOCK_TIMEOUT)
            database.execute("PRAGMA query_only = 1")
            self._start_clock(database)
        except (sqlite3.Error, StoreFailed):
            database.close()
            raise
        return Opened(database, identity)

    def _start_clock(self, database: sqlite3.Connection) -> None:
        """Continue from the time of the row that was used last."""
        latest = [database.execute(f"SELECT MAX(used) FROM {table}").fetchone()[0] for table in TABLES_IN_USE]
        self._clock.start(max((time for time in latest if time is not None), default=None))

    def _close(self, opened: "Opened | None") -> None:
        if opened is not None and (self._file is None or self._file.read_identity() == opened.identity):
            opened.database.close()


class Stranger(msgspec.Struct, frozen=True):
    """The latest heartbeat of a member with another clock, and when this process first saw it."""

    boot: str
    beat: float
    since: float


class Opened(msgspec.Struct, frozen=True):
    """A connection, and the identity of its file."""

    database: sqlite3.Connection
    identity: tuple[int, int] | None


@contextmanager
def begin(database: sqlite3.Connection, kind: Literal["IMMEDIATE", "DEFERRED"]) -> Generator[None]:
    """A transaction: IMMEDIATE locks out other writers from the start, DEFERRED reads one state of the file."""
    database.execute(f"BEGIN {kind}")
    try:
        yield
        database.execute("COMMIT")
    finally:
        if database.in_transaction:  # something failed, perhaps the commit; some failures also roll back
            database.execute("ROLLBACK")


def _copy(database: sqlite3.Connection) -> Opened:
    """Copy a database in memory, which can have only one connection."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.backup(copy)
    return Opened(copy, None)


def _write_some(database: sqlite3.Connection) -> None:
    """Write a dummy row, and delete it."""
    columns = "holder, place, made, id, owner, item"
    change = f"INSERT OR REPLACE INTO items ({columns}) VALUES ('', 0, 0, '', '', zeroblob(?))"
    with begin(database, "IMMEDIATE"):
        database.execute(change, (PROBE_BYTES,))
    with begin(database, "IMMEDIATE"):
        database.execute("DELETE FROM items WHERE holder = ''")


def _read_some(database: sqlite3.Connection) -> None:
    database.execute("SELECT id FROM holders LIMIT 1").fetchall()
