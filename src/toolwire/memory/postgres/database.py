"""Connections to one PostgreSQL, and how a statement is made on them.

A statement may be lost with its connection without anybody knowing whether it was done. It is made again for a while
then, so every statement is written to have the same effect when it is made twice. A connection carries nothing from one
statement to the next, so that a pooler between us and the server may give each statement to another one.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from toolwire.memory.postgres.faults import FAULTS, NotUsable, ends_connection, passes, store_failed
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.store import Reason, StoreFailed

PATIENCE = 5.0
"""Seconds in which a statement must be done, however often it is made."""
SHORT_PATIENCE = 0.5
"""The same while the store fails anyway."""
PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds before a statement is made again."""
STATEMENT_TIMEOUT = 15
"""Seconds after which the server itself ends a statement whose sender has gone."""

Row: TypeAlias = Sequence[Any]
Side: TypeAlias = Literal["write", "read"]


class Connection(Protocol):
    """What is used of a connection of asyncpg."""

    async def fetch(self, query: str, *args: object, timeout: float | None = ...) -> list[Row]: ...  # noqa: ASYNC109

    async def execute(self, query: str, *args: object) -> str: ...

    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...

    async def close(self, *, timeout: float | None = ...) -> None: ...  # noqa: ASYNC109


async def connect(url: str, patience: float, *, pooler: bool) -> Connection:
    """A connection of its own. What is wrong with the URL is not repeated: it may be a part of the password."""
    settings = {"application_name": "toolwire"}
    if not pooler:  # a pooler knows no such settings
        settings["statement_timeout"] = str(STATEMENT_TIMEOUT * 1000)
    try:
        connecting: Any = asyncpg.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        cache = 0 if pooler else 256
        return await connecting(url, timeout=patience, statement_cache_size=cache, server_settings=settings)
    except (ValueError, asyncpg.exceptions.ClientConfigurationError):
        raise NotUsable(
            "unreachable", "it is no URL of a PostgreSQL; in a password, % / ? # @ are written as %XX"
        ) from None


class Lane:
    """A few connections that are used in turn."""

    def __init__(self, most: int, connect: Callable[[float], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(most)
        self._idle: list[Connection] = []

    async def fetch(self, statement: str, args: Sequence[object], until: float) -> list[Row]:
        if self._free.locked():
            await asyncio.wait_for(self._free.acquire(), _left(until))
        else:
            await self._free.acquire()
        try:
            connection = self._take() or await self._connect(_left(until))
            try:
                rows = await connection.fetch(statement, *args, timeout=_left(until))
            except asyncpg.PostgresError as error:
                if ends_connection(error):
                    connection.terminate()
                self._give_back(connection)
                raise
            except BaseException:
                connection.terminate()  # in the midst of a statement
                raise
            self._give_back(connection)
            return rows
        finally:
            self._free.release()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _give_back(self, connection: Connection) -> None:
        if not connection.is_closed():
            self._idle.append(connection)

    async def close(self) -> None:
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.close(timeout=1.0)
            except FAULTS:
                connection.terminate()


class Database:
    """Makes statements, again if need be, and knows whether they fail."""

    def __init__(self, url: str, prepare: Callable[[Connection], Awaitable[None]], *, pooler: bool, most: int) -> None:
        self._url = url
        self._prepare = prepare
        self._pooler = pooler
        self._is_prepared = False
        self._preparing = asyncio.Lock()
        self._shared = Lane(most, self._opened)
        self._own = Lane(1, self._opened)
        self.faults: dict[Side, Reason] = {}
        self.watch: Callable[[StoreFailed | None], None] = _unwatched

    async def read(self, statement: Statement, **values: object) -> list[Row]:
        return await self._made(self._shared, "read", *statement(**values))

    async def write(self, statement: Statement, **values: object) -> list[Row]:
        return await self._made(self._shared, "write", *statement(**values))

    async def flush(self, statement: Statement, **values: object) -> list[Row]:
        """A write on a connection of its own: it waits for no other statement of this process."""
        return await self._made(self._own, "write", *statement(**values))

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Callable[..., Awaitable[list[Row]]]]:
        """A way to read that sees one state: one transaction, on a connection of its own. Nothing is made again."""
        try:
            connection = await self._opened(PATIENCE)
            try:
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield partial(_read, connection)
                await connection.execute("COMMIT")
            finally:
                connection.terminate()
        except FAULTS as error:
            raise self._failed("read", error) from error

    async def attempt(self, statement: Statement, **values: object) -> None:
        """Make a statement once, if it can be made now."""
        try:
            await self._shared.fetch(*statement(**values), time.monotonic() + PATIENCE)
        except FAULTS as error:
            raise self._failed("read", error) from error

    async def close(self) -> None:
        await self._shared.close()
        await self._own.close()

    def recover(self, side: Side) -> None:
        if self.faults.pop(side, None) is not None and not self.faults:
            self.watch(None)

    async def _made(self, lane: Lane, side: Side, statement: str, args: Sequence[object]) -> list[Row]:
        until = time.monotonic() + (SHORT_PATIENCE if side in self.faults else PATIENCE)
        pause = PAUSE
        while True:
            try:
                rows = await lane.fetch(statement, args, until)
            except FAULTS as error:
                if passes(error) and time.monotonic() + pause < until:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                raise self._failed(side, error) from error
            if self.faults and self.faults.get(side) not in (None, "full"):
                self.recover(side)
            return rows

    def _failed(self, side: Side, error: Exception) -> StoreFailed:
        failed = store_failed(error)
        if failed.reason == "missing":
            self._is_prepared = False  # whatever is there when it is back may be another database
        self.faults[side] = failed.reason
        self.watch(failed)
        return failed

    async def _opened(self, patience: float) -> Connection:
        connection = await connect(self._url, patience, pooler=self._pooler)
        if not self._is_prepared:
            try:
                async with asyncio.timeout(patience), self._preparing:
                    if not self._is_prepared:
                        await self._prepare(connection)
                        self._is_prepared = True
            except BaseException:
                connection.terminate()
                raise
        return connection


async def _read(connection: Connection, statement: Statement, **values: object) -> list[Row]:
    text, args = statement(**values)
    return await connection.fetch(text, *args, timeout=PATIENCE)


def _left(until: float) -> float:
    """Seconds until then; asyncpg does not take less than none."""
    return max(0.01, until - time.monotonic())


def _unwatched(failed: StoreFailed | None) -> None:
    pass
