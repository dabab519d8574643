"""Connections to one PostgreSQL database, and how operations run on them.

If a connection is lost, the outcome of its statement is unknown. The statement is retried for a while, so every
statement outside a transaction must be idempotent. A transaction may consist of any statements: it commits a row
with a token of its own, and if the answer to its COMMIT is lost, it is run again only if that row is not there. The
server's own transaction ids would not do: those that a crash lost are given to other transactions afterwards. A failed
transaction is rolled back by closing its connection.

A connection carries no state from one operation to the next, so that a pooler such as PgBouncer may use another server
connection for each.
"""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from toolwire.memory.postgres.faults import FAULTS, NotUsable, ends_connection, may_pass, store_failure_of
from toolwire.memory.postgres.schema import STATEMENTS, VERSION, Connection, prepare, version_of
from toolwire.memory.sql.operation import Need, Row, Side, Transaction, reading, writing
from toolwire.memory.sql.store import Read, Store
from toolwire.memory.store import StoreFailed

OPERATION_TIMEOUT = 5.0
"""Seconds for one operation, including retries."""
SHORT_OPERATION_TIMEOUT = 0.5
"""The same while the store is failing."""
FIRST_PAUSE, MAX_PAUSE = 0.02, 0.5
"""Seconds before an operation is retried."""
SERVER_TIMEOUT = 15
"""Seconds after which the server ends a statement; its sender has given up by then."""
IDLE_TIMEOUT = 5
"""Seconds after which the server rolls back a transaction whose process is stuck, and releases its locks."""
MIGRATION_TIMEOUT = 60.0
"""Seconds for creating or migrating the tables when the store is checked."""
MAX_CONNECTIONS = 4
"""Maximum connections of a process, besides the one for events and heartbeats."""
PROBE_INTERVAL = 1.0
"""Seconds between two probes of a failing store."""
PROBE_BYTES = 256 * 1024
"""Bytes that a probe writes: a full disk often has room for a little."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "
    f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_TIMEOUT * 1000}"
)


async def connect(url: str, limit: float, *, pooler: bool) -> Connection:
    """Open a connection within `limit` seconds. An error does not repeat the URL: it may contain a password."""
    settings = {"application_name": "toolwire"}
    if not pooler:  # a pooler rejects settings that it does not know
        settings["statement_timeout"] = str(SERVER_TIMEOUT * 1000)
    try:
        connecting: Any = asyncpg.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        cache = 0 if pooler else 256
        return await connecting(url, timeout=limit, statement_cache_size=cache, server_settings=settings)
    except (ValueError, asyncpg.exceptions.ClientConfigurationError):
        raise NotUsable(
            "unreachable", "it is not a PostgreSQL URL; in a password, % / ? # @ are written as %XX"
        ) from None


class PostgresTransaction:
    """A `Transaction` on a connection. Without a BEGIN each statement commits by itself."""

    def __init__(self, connection: Connection, until: float) -> None:
        self._connection = connection
        self._until = until

    async def fetch(self, statement: str, /, **values: object) -> Sequence[Row]:
        text, names, *_ = STATEMENTS[statement]
        return await self._connection.fetch(
            text, *[values[name] for name in names], timeout=_seconds_until(self._until)
        )

    async def fetch_one(self, statement: str, /, **values: object) -> Row | None:
        rows = await self.fetch(statement, **values)
        return rows[0] if rows else None

    async def execute_many(self, statement: str, rows: Sequence[Mapping[str, object]], /) -> None:
        text, names, *_ = STATEMENTS[statement]
        given = [[row[name] for name in names] for row in rows]
        if given:
            await self._connection.executemany(text, given, timeout=_seconds_until(self._until))


class Work(Protocol[T_co]):
    """Work on a connection, within a deadline. It may be called several times."""

    async def __call__(self, connection: Connection, until: float) -> T_co: ...


class _Commit(Generic[T]):
    """Runs a transaction. A retry first finds out whether the lost commit took effect."""

    def __init__(self, work: Callable[[Transaction], Awaitable[T]]) -> None:
        self._work = work
        self._token = secrets.token_hex(8)
        self._lost: tuple[T] | None = None  # the result of a transaction that was marked and whose commit was sent

    async def __call__(self, connection: Connection, until: float) -> T:
        tx = PostgresTransaction(connection, until)
        try:
            await connection.execute(_BEGIN, timeout=_seconds_until(until))
            if self._lost is not None and not await tx.fetch("mark_again", token=self._token):
                await connection.execute("ROLLBACK", timeout=_seconds_until(until))
                return self._lost[0]
            result = await self._work(tx)
            if self._lost is not None or await tx.fetch("mark", token=self._token):
                self._lost = (result,)
            await connection.execute("COMMIT", timeout=_seconds_until(until))
        except BaseException:
            connection.terminate()
            raise
        return result


class Lane:
    """A few connections that are used in turn."""

    def __init__(self, most: int, connect: Callable[[float], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(most)
        self._idle: list[Connection] = []

    async def use(self, work: Work[T], until: float) -> T:
        """Do work on a free connection, or on a new one."""
        if self._free.locked():
            await asyncio.wait_for(self._free.acquire(), _seconds_until(until))
        else:
            await self._free.acquire()
        try:
            connection = self._take() or await self._connect(_seconds_until(until))
            try:
                return await work(connection, until)
            except asyncpg.PostgresError as error:
                if ends_connection(error):
                    connection.terminate()
                raise
            except BaseException:
                connection.terminate()  # it may be in the middle of a statement
                raise
            finally:
                if not connection.is_closed():
                    self._idle.append(connection)
        finally:
            self._free.release()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def close(self) -> None:
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.close(timeout=1.0)
            except FAULTS:
                connection.terminate()


class Engine(Store):
    """Runs operations on one database, retries them, and tracks failures. Creates the tables."""

    def __init__(self, url: str, max_age: float, max_size: int, lease: float = 10.0, *, pooler: bool = False) -> None:
        super().__init__(max_age, max_size, lease)
        self._url = url
        self._pooler = pooler
        self._is_prepared = False
        self._preparing = asyncio.Lock()
        self._shared = Lane(MAX_CONNECTIONS, self._open)
        self._own = Lane(1, self._open)
        self._tasks: set[asyncio.Task[None]] = set()
        self._probed = 0.0

    @property
    def outlives_process(self) -> bool:
        return True

    @property
    def version(self) -> int:
        return VERSION

    def check(self) -> None:
        asyncio.run(self._with_connection(prepare, MIGRATION_TIMEOUT))

    async def inspect(self) -> int:
        return await self._with_connection(version_of, OPERATION_TIMEOUT)

    async def _with_connection(self, work: Callable[[Connection], Awaitable[T]], limit: float) -> T:
        try:
            connection = await connect(self._url, OPERATION_TIMEOUT, pooler=self._pooler)
            try:
                async with asyncio.timeout(limit):
                    return await work(connection)
            finally:
                connection.terminate()
        except FAULTS as error:
            raise store_failure_of(error) from error

    async def open(self) -> None:
        """Create the tables if the database can be reached now."""

        async def read_some(connection: Connection, until: float) -> None:
            await PostgresTransaction(connection, until).fetch("read_some")

        try:
            await self._shared.use(read_some, time.monotonic() + OPERATION_TIMEOUT)
        except FAULTS as error:
            self._fail("read", error)

    async def probe(self) -> bool:
        now = time.monotonic()
        if self._faults and now - self._probed >= PROBE_INTERVAL:
            self._probed = now
            with suppress(StoreFailed):
                id = secrets.token_hex(8)
                await self.change("probe", id=id, data=secrets.token_bytes(PROBE_BYTES))
                await self.change("end_probe", id=id)
                self._recover("write")
                await self.query("read_some")
        return not self._faults

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._shared.close()
        await self._own.close()

    # Operations

    @reading
    async def query(self, tx: Transaction, statement: str, **values: object) -> Sequence[Row]:
        return await tx.fetch(statement, **values)

    @writing
    async def change(self, tx: Transaction, statement: str, **values: object) -> Sequence[Row]:
        return await tx.fetch(statement, **values)

    async def run(self, need: Need, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        async def work(tx: Transaction) -> T:
            return await operation(self, tx, *args, **named)

        async def send(connection: Connection, until: float) -> T:
            return await work(PostgresTransaction(connection, until))

        lane = self._own if need == "urgent" else self._shared
        side: Side = "read" if need == "reading" else "write"
        return await self._try(lane, side, _Commit(work) if need == "transaction" else send)

    def write_later(self, operation: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        async def write() -> None:
            with suppress(StoreFailed):
                await self.run("writing", operation, *args)

        task = asyncio.get_running_loop().create_task(write())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Read]:
        async def read(statement: str, **values: object) -> Sequence[Row]:
            return await PostgresTransaction(connection, time.monotonic() + OPERATION_TIMEOUT).fetch(
                statement, **values
            )

        try:
            connection = await self._open(OPERATION_TIMEOUT)
            try:
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield read
                await connection.execute("COMMIT")
            finally:
                connection.terminate()
        except FAULTS as error:
            raise self._fail("read", error) from error

    async def _try(self, lane: Lane, side: Side, work: Work[T]) -> T:
        """Do work, and retry it for a while if its connection is lost."""
        until = time.monotonic() + (SHORT_OPERATION_TIMEOUT if side in self._faults else OPERATION_TIMEOUT)
        pause = FIRST_PAUSE
        while True:
            try:
                result = await lane.use(work, until)
            except FAULTS as error:
                if may_pass(error) and time.monotonic() + pause < until:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, MAX_PAUSE)
                    continue
                raise self._fail(side, error) from error
            if self._faults and self._faults.get(side) not in (None, "full"):
                self._recover(side)
            return result

    def _fail(self, side: Side, error: Exception) -> StoreFailed:
        failed = store_failure_of(error)
        if failed.reason == "missing":
            self._is_prepared = False  # it may be another database when it is back
        return self._report(side, failed)

    async def _open(self, limit: float) -> Connection:
        connection = await connect(self._url, limit, pooler=self._pooler)
        if not self._is_prepared:
            try:
                async with asyncio.timeout(limit), self._preparing:
                    if not self._is_prepared:
                        await prepare(connection)
                        self._is_prepared = True
            except BaseException:
                connection.terminate()
                raise
        return connection


def _seconds_until(until: float) -> float:
    """Seconds until then, always positive, as asyncpg requires."""
    return max(0.01, until - time.monotonic())
