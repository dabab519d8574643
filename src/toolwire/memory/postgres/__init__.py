"""A store in PostgreSQL, for any number of machines.

The tables are in `schema.py`. Every operation is one statement that may be made again when its connection is lost; the
clock is that of the database. What was committed survives the loss of any process. What cannot be done raises
`StoreFailed`.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from toolwire.memory.postgres.copying import PostgresCopying
from toolwire.memory.postgres.database import PATIENCE, Database, connect
from toolwire.memory.postgres.faults import FAULTS, NotUsable, store_failed
from toolwire.memory.postgres.kept import PostgresKept
from toolwire.memory.postgres.runs import PostgresRuns
from toolwire.memory.postgres.schema import VERSION, prepare, version_of
from toolwire.memory.postgres.statements import Statement
from toolwire.memory.postgres.sweep import PostgresSweep
from toolwire.memory.store import Reason, StoreFailed

__all__ = ["NotUsable", "PostgresStore"]

CONNECTIONS = 4
"""Most connections of a process, besides the one for events and heartbeats."""
PROBE_EVERY = 1.0
"""Seconds between two attempts to find out whether a failing store works again."""
PROBE_BYTES = 256 * 1024
"""What such an attempt writes: on a full disk there is often room for a little."""
OPENING = 60.0
"""Seconds that bringing the tables to this version may take."""

_PROBE = Statement(
    """
    WITH gone AS (DELETE FROM toolwire.probes)
    INSERT INTO toolwire.probes (id, data) VALUES (:id, :data)
    """
)
_PROBED = Statement("DELETE FROM toolwire.probes WHERE id = :id")
_READ = Statement("SELECT version FROM toolwire.schema_version")


class PostgresStore(PostgresRuns, PostgresKept, PostgresSweep, PostgresCopying):
    """A store in one database. The tables are made when it is used first."""

    def __init__(self, url: str, max_age: float, max_size: int, lease: float = 10.0, *, pooler: bool = False) -> None:
        self._url = url
        self._max_age = max_age
        self._max_size = max_size
        self._lease = lease
        self._pooler = pooler
        self._database = Database(url, prepare, pooler=pooler, most=CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._claim_token = secrets.token_hex(8)
        self._claiming = asyncio.Lock()
        self._probed = 0.0
        self.tightened: list[str] = []
        """Files that others could read: a database has none here."""

    @property
    def watch(self) -> Callable[[StoreFailed | None], None]:
        """Hears of every failure, and with None that all is well again."""
        return self._database.watch

    @watch.setter
    def watch(self, watch: Callable[[StoreFailed | None], None]) -> None:
        self._database.watch = watch

    @property
    def failing(self) -> Reason | None:
        return next(iter(self._database.faults.values()), None)

    @property
    def outlives_process(self) -> bool:
        return True

    @property
    def version(self) -> int:
        return VERSION

    def check(self) -> None:
        """Raise what would go wrong at the first use. Leaves nothing open, so that the process may be forked."""
        try:
            asyncio.run(self._check())
        except FAULTS as error:
            raise store_failed(error) from error

    async def _check(self) -> None:
        connection = await connect(self._url, PATIENCE, pooler=self._pooler)
        try:
            async with asyncio.timeout(OPENING):
                await prepare(connection)
        finally:
            connection.terminate()

    async def inspect(self) -> int:
        """The version of the tables that are there, 0 if there are none. Nothing is changed."""
        try:
            connection = await connect(self._url, PATIENCE, pooler=self._pooler)
            try:
                async with asyncio.timeout(PATIENCE):
                    return await version_of(connection)
            finally:
                connection.terminate()
        except FAULTS as error:
            raise store_failed(error) from error

    async def open(self) -> None:
        with suppress(StoreFailed):
            await self._database.attempt(_READ)

    async def probe(self) -> bool:
        now = time.monotonic()
        if self._database.faults and now - self._probed >= PROBE_EVERY:
            self._probed = now
            with suppress(StoreFailed):
                id = secrets.token_hex(8)
                await self._database.write(_PROBE, id=id, data=secrets.token_bytes(PROBE_BYTES))
                await self._database.write(_PROBED, id=id)
                self._database.recover("write")
                await self._database.read(_READ)
        return not self._database.faults

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._database.close()
