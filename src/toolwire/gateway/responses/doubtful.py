"""Background runs of which it is not known whether they were queued: the store failed, and may have kept them.

Their clients were told that nothing was begun, and may ask again. So such a run is deleted as soon as the store can be
used, and once more later: a statement may still be under way when this process no longer waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

from toolwire.memory.store import Overtaken, Store, StoreFailed

MOST = 10_000
"""Runs that are remembered; for a further one the oldest is forgotten."""
LATER = 60.0
"""Seconds after which a run is deleted for the second time."""


class _Deletion(NamedTuple):
    due: float
    is_last: bool


class DoubtfulRuns:
    """Runs that may have been queued though nobody knows of them."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._runs: dict[tuple[str, str], _Deletion] = {}

    @contextmanager
    def unless_queued(self, owner: str, id: str) -> Generator[None]:
        """Remember a run whose queueing fails, or is given up, when it may have been kept all the same."""
        try:
            yield
        except Overtaken:
            raise  # nothing was written
        except (StoreFailed, asyncio.CancelledError):
            if len(self._runs) >= MOST:
                del self._runs[next(iter(self._runs))]
            self._runs[owner, id] = _Deletion(self._clock(), is_last=False)
            raise

    async def delete(self) -> None:
        """Delete those that are due. Raises `StoreFailed`; then they are tried again."""
        now = self._clock()
        for (owner, id), deletion in tuple(self._runs.items()):
            if deletion.due > now:
                continue
            await self._store.delete(owner, id)
            if deletion.is_last:
                self._runs.pop((owner, id), None)
            else:
                self._runs[owner, id] = _Deletion(now + LATER, is_last=True)
