"""A store in one SQLite file, for all processes of one machine, or in memory, for one.

`schema.py` has the tables, `engine.py` the connections, threads and failures, `operations.py` what SQLite does in its
own way; everything else is shared with PostgreSQL (`memory/sql`). What is committed survives the process. An operation
that fails raises `StoreFailed`.
"""

import time
from collections.abc import Callable

from toolwire.memory.clock import steady
from toolwire.memory.sqlite.engine import store_failed
from toolwire.memory.sqlite.operations import SqliteOperations

__all__ = ["SqliteStore", "store_failed"]


class SqliteStore(SqliteOperations):
    """A store in one file, or in memory: `url` is `sqlite:PATH` or `memory:`."""

    def __init__(
        self,
        url: str,
        max_age: float,
        max_size: int,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
        lease: float = 10.0,
    ) -> None:
        super().__init__(url, max_age, max_size, clock, steady, lease)
