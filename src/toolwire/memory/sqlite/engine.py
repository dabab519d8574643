"""The connections of the SQLite store, its threads, and what its failures mean.

Writing is done in one thread, one transaction at a time; reading in another, which needs no write and waits for none.
Other processes may use the same file: each write begins with the lock that lets one of them write. The log that SQLite
writes first is copied into the file again and again; where it grows beyond a limit all the same, writers wait for that.
"""

import asyncio
import errno
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from toolwire.memory.clock import StoreClock, boot_id
from toolwire.memory.sqlite.schema import VERSION, migrate, version_of
from toolwire.memory.sqlite.store_file import FileInUse, StoreFile
from toolwire.memory.store import Reason, StoreFailed

T = TypeVar("T")
Side: TypeAlias = Literal["write", "read"]

PATIENCE = 5.0
"""Seconds that a write waits for its turn, and again for a lock of another program."""
SHORT_PATIENCE = 0.5
"""The same for a lock while the store fails anyway."""
PROBE_EVERY = 1.0
"""Seconds between two attempts to find out whether a failing store works again."""
PROBE_BYTES = 256 * 1024
"""What such an attempt writes: on a full disk there is often room for a little."""

LOG_PAGES = 4_000
"""Pages of the log after which whoever has just written copies them into the file."""
LOG_KEPT = 16 * 1024 * 1024
"""Bytes of the log that stay on the disk when it is begun anew."""
LOG_LIMIT = 64 * 1024 * 1024
"""Bytes of the log from which on writers wait until it is copied."""
LOG_PATIENCE = 0.5
"""Seconds for which a writer does so."""
LOG_MOST = 8 * LOG_LIMIT
"""Bytes of the log from which on nothing is written."""

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


def store_failed(error: Exception) -> StoreFailed:
    """What an error means for the store."""
    if isinstance(error, StoreFailed):
        return error
    if isinstance(error, FileInUse):
        said = "a gateway of an older version uses this file; stop it, then run toolwire store migrate, or serve"
        return StoreFailed("in_use", said)
    if isinstance(error, OSError):
        return StoreFailed(_ERRNO_REASONS.get(error.errno, "io"), error.strerror or str(error))
    code = getattr(error, "sqlite_errorcode", None) or 0
    return StoreFailed(_REASONS.get(code & 0xFF, "io"), str(error))


class Engine:
    """A file, or a database in memory, with a thread that writes and one that reads.

    The file is made when there is something to keep.
    """

    def __init__(
        self,
        url: str,
        max_age: float,
        max_size: int,
        clock: Callable[[], float],
        steady: Callable[[], float],
        lease: float,
    ) -> None:
        scheme, _, path = url.partition(":")
        self._file = StoreFile(path) if scheme != "memory" else None
        self._max_age = max_age
        self._max_size = max_size
        self._clock = StoreClock(max_age, clock, steady)
        self._steady = steady
        self._lease = lease
        self._boot = boot_id() if self._file is not None else ""
        self._watched: dict[str, Watched] = {}  # members whose times cannot be compared with ours, by id
        self._writes = ThreadPoolExecutor(1, "toolwire-store")
        self._reads = ThreadPoolExecutor(1, "toolwire-store-reads") if self._file is not None else self._writes
        self._writer: Opened | None = None
        self._reader: Opened | None = None
        self._empty: sqlite3.Connection | None = None  # stands for a file that is not there yet
        self._abandoned: list[sqlite3.Connection] = []
        self._patience = PATIENCE
        self._faults: dict[Side, Reason] = {}
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

    @property
    def version(self) -> int:
        """The version of the schema that this program makes."""
        return VERSION

    async def inspect(self) -> int:
        """The version of the schema that is there, 0 if there is none. Nothing is changed."""
        try:
            return await asyncio.to_thread(self._inspect)
        except _FAULTS as error:
            raise store_failed(error) from error

    def _inspect(self) -> int:
        if self._file is None or not self._file.exists:
            return 0
        self._file.check_disk()
        with closing(sqlite3.connect(f"file:{quote(str(self._file.path))}?mode=ro", uri=True)) as database:
            return version_of(database)

    def check(self) -> None:
        """Raise what would go wrong at the first use. Leaves nothing open, so that the process may be forked."""
        if self._file is None:
            return
        try:
            self._file.check()
            if self._file.exists:
                self._close(self._open_writer(PATIENCE))
        except _FAULTS as error:
            raise store_failed(error) from error
        finally:
            self._file.release()

    async def open(self) -> None:
        """Bring a file that is there to this version; one that cannot be used now is tried again when it is used."""
        if self.exists:
            with suppress(StoreFailed):
                await self._write(_do_nothing)

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

    async def _write(self, work: Callable[..., T], *given: Any) -> T:
        result, is_written = await self._done("write", self._submit(work, *given))
        if is_written:
            self._succeeded("write")
        return result

    async def _read(self, work: Callable[..., T], *given: Any) -> T:
        loop = asyncio.get_running_loop()
        result = await self._done("read", loop.run_in_executor(self._reads, partial(self._do_read, work, given)))
        self._succeeded("read")
        return result

    def _submit(self, work: Callable[..., T], *given: Any) -> "asyncio.Future[tuple[T, bool]]":
        job = partial(self._do_write, time.monotonic(), work, given)
        return asyncio.get_running_loop().run_in_executor(self._writes, job)

    def _submit_unheard(self, work: Callable[..., None], *given: Any) -> None:
        """Write something that nobody waits for."""
        self._submit(work, *given).add_done_callback(self._hear)

    async def _done(self, side: Side, job: "asyncio.Future[T]") -> T:
        try:
            return await job
        except _FAULTS as error:
            raise self._failed(side, error) from error

    def _succeeded(self, side: Side) -> None:
        if self._faults.get(side) == "full":  # where a little could be written, not everything can be
            self._probing = asyncio.ensure_future(self.probe())
        elif side in self._faults:
            self._recover(side)

    def _recover(self, side: Side) -> None:
        if self._faults.pop(side, None) is not None and not self._faults:
            self.watch(None)

    def _failed(self, side: Side, error: Exception) -> StoreFailed:
        failed = store_failed(error)
        if failed.reason != "overtaken":  # that says nothing against the store
            self._faults[side] = failed.reason
            self.watch(failed)
        return failed

    def _hear(self, job: "asyncio.Future[tuple[None, bool]]") -> None:
        """A write that nobody waited for is over."""
        error = job.exception() if not job.cancelled() else None
        if isinstance(error, _FAULTS):
            self._failed("write", error)

    def _do_write(self, asked: float, work: Callable[..., T], given: tuple[Any, ...]) -> tuple[T, bool]:
        """What came of it, and whether something was written: what changes nothing says nothing about the disk."""
        if time.monotonic() - asked > PATIENCE:
            raise StoreFailed("busy", "other writes took too long")
        database = self._writable()
        self._hold_back(database)
        before = database.total_changes
        result = work(database, *given)
        return result, database.total_changes != before

    def _do_read(self, work: Callable[..., T], given: tuple[Any, ...]) -> T:
        return work(self._readable(), *given)

    # The log

    def _hold_back(self, database: sqlite3.Connection) -> None:
        """Wait while the log is too large: copying it into the file waits in turn for those who read or write it."""
        if self._file is None or self._file.log_size() <= LOG_LIMIT:
            return
        deadline = time.monotonic() + LOG_PATIENCE
        while not self._copy_log(database) and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._file.log_size() > LOG_MOST:
            raise StoreFailed("busy", "its log has grown too large, because other programs hold on to it")

    def _copy_log(self, database: sqlite3.Connection) -> bool:
        """Copy the log into the file and begin it anew, unless somebody is in the way for long."""
        database.execute(f"PRAGMA busy_timeout = {int(LOG_PATIENCE * 1000)}")
        try:
            return database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        finally:
            database.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")

    # The connections

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
            migrate(self._empty, PATIENCE)
        return self._empty

    def _still_there(self, opened: "Opened") -> "Opened | None":
        """Raise if there is no such file any more; the next use begins with whatever is there then.

        The connection is not closed: SQLite would remove its log by name, which may be that of another file by now.
        """
        if self._file is None or self._file.identity() == opened.identity:
            return opened
        self._abandoned.append(opened.database)
        writer = self._writer
        if opened is writer:
            self._writer = None
        else:
            self._reader = None
            if writer is not None and writer.identity == self._file.identity():
                return None  # whoever wrote was told, and has begun with the new file
        raise StoreFailed("missing", "the file has gone or was replaced")

    def _open_writer(self, patience: float) -> "Opened":
        path, identity = ":memory:", None
        if self._file is not None:
            self._file.check_disk()
            self._file.claim()
            self._file.make()
            path, identity = str(self._file.path), self._file.identity()
        database = sqlite3.connect(path, isolation_level=None, timeout=patience)
        try:
            migrate(database, patience)
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            database.execute(f"PRAGMA journal_size_limit = {LOG_KEPT}")
            self._start_clock(database)
        except (sqlite3.Error, StoreFailed):
            database.close()
            raise
        if self._file is not None:
            self.tightened += map(str, self._file.tighten())
        return Opened(database, identity)

    def _open_reader(self, file: StoreFile) -> "Opened | None":
        """A connection that cannot write; None while there is nothing to read."""
        identity = file.identity()
        if identity is None:
            return None
        file.claim()
        address = f"file:{quote(str(file.path))}?mode=rw"
        database = sqlite3.connect(address, uri=True, isolation_level=None, timeout=PATIENCE)
        try:
            if version_of(database) == 0:  # the writer is about to make it
                database.close()
                return None
            migrate(database, PATIENCE)
            database.execute("PRAGMA query_only = 1")
            self._start_clock(database)
        except (sqlite3.Error, StoreFailed):
            database.close()
            raise
        return Opened(database, identity)

    def _start_clock(self, database: sqlite3.Connection) -> None:
        """Go on from the time of what was used last."""
        latest = [database.execute(f"SELECT MAX(used) FROM {table}").fetchone()[0] for table in ("holders", "kept")]
        self._clock.start(max((time for time in latest if time is not None), default=None))

    def _close_writer(self) -> None:
        opened, self._writer = self._writer, None
        self._close(opened)

    def _close_reader(self) -> None:
        opened, self._reader = self._reader, None
        self._close(opened)

    def _close(self, opened: "Opened | None") -> None:
        if opened is not None and (self._file is None or self._file.identity() == opened.identity):
            opened.database.close()

    def _oldest(self) -> float:
        """When what is still to be seen was used last, at the latest."""
        return self._clock() - self._max_age if self._max_age else 0.0


class Watched(msgspec.Struct, frozen=True):
    """The latest beat that was seen of a member, and since when."""

    boot: str
    beat: float
    since: float


class Opened(msgspec.Struct, frozen=True):
    """A connection, and what identifies its file."""

    database: sqlite3.Connection
    identity: tuple[int, int] | None


class Transaction:
    """All or nothing, and nobody else writes meanwhile."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        end_transaction(self._database, is_good=kind is None)


class Snapshot(Transaction):
    """Several reads that see the same state."""

    def __enter__(self) -> None:
        self._database.execute("BEGIN")


def end_transaction(database: sqlite3.Connection, *, is_good: bool) -> None:
    try:
        if is_good:
            database.execute("COMMIT")
    finally:
        if database.in_transaction:  # the commit failed, or something before it; some failures end it too
            database.execute("ROLLBACK")


def _do_nothing(database: sqlite3.Connection) -> None:
    pass


def _write_some(database: sqlite3.Connection) -> None:
    """Write something of no meaning, and take it away again."""
    columns = "holder, place, made, id, owner, item"
    with Transaction(database):
        change = f"INSERT OR REPLACE INTO items ({columns}) VALUES ('', 0, 0, '', '', zeroblob(?))"
        database.execute(change, (PROBE_BYTES,))
    with Transaction(database):
        database.execute("DELETE FROM items WHERE holder = ''")


def _read_some(database: sqlite3.Connection) -> None:
    database.execute("SELECT id FROM holders LIMIT 1").fetchall()


def _unwatched(failed: StoreFailed | None) -> None:
    pass
