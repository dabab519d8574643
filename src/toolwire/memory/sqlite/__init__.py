"""A store in one SQLite file, for all processes of one machine, or in memory, for one.

A response is a row with its request's fields and its final object; its items are rows of their own. Background runs,
their events, the processes that use the file and what is kept between turns have tables of their own; `schema.py` has
them all. Everything belongs to an owner, and nobody else sees it; the bounds are for all of it together.

What was committed survives the process. What cannot be done raises `StoreFailed`.
"""

import time
from collections.abc import Callable

from toolwire.memory.clock import steady
from toolwire.memory.sqlite.copying import Copying
from toolwire.memory.sqlite.engine import store_failed
from toolwire.memory.sqlite.kept import KeptValues
from toolwire.memory.sqlite.reading import Reading
from toolwire.memory.sqlite.runs import BackgroundRuns
from toolwire.memory.sqlite.sweep import Sweeping

__all__ = ["SqliteStore", "store_failed"]


class SqliteStore(Reading, BackgroundRuns, KeptValues, Sweeping, Copying):
    """A store in one file, or in memory. The file is made when there is something to keep."""

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
