"""Data from earlier turns that a turn needs and its client does not send."""

from collections.abc import Sequence
from typing import Protocol

from toolwire.core.request import Entry, Message, ResultEntry
from toolwire.memory.call_keys import CallKey
from toolwire.memory.pending_results import PendingResults
from toolwire.memory.reasoning import OF_ONE_BACKEND, ReasoningCache
from toolwire.memory.sql.store import Store
from toolwire.memory.write_behind import WriteBehind, load

MAX_AWAITED_CALLS = 64
"""Maximum calls, from the end of a history, that are looked up among the waiting threads."""


class ThreadHost(Protocol):
    """The process that hosts the threads of all workers (`upstream/codex/host.py`)."""

    async def find(self, calls: Sequence[CallKey]) -> None:
        """Learn which threads wait for results of these calls."""
        ...

    async def wait_until_parked(self) -> None:
        """Wait until the threads of ended turns can be found, within a timeout."""
        ...


class TurnMemory:
    """Reasoning by call, pending results, and the host of waiting threads.

    Without a store they last as long as the process.
    """

    def __init__(self, store: Store | None = None, threads: ThreadHost | None = None) -> None:
        self._store = store
        self._behind = WriteBehind(store)
        self.reasoning = ReasoningCache(self._behind)
        self.results = PendingResults(self._behind)
        self._threads = threads

    async def flush(self) -> None:
        """Wait until every value put so far is written or has failed, within a timeout."""
        if self._threads is not None:
            await self._threads.wait_until_parked()
        await self._behind.flush()

    async def load(self, owner: str, entries: tuple[Entry, ...]) -> None:
        """Load what belongs to the calls and signatures of a history, before its request is prepared."""
        for entry in entries:
            if isinstance(entry, OF_ONE_BACKEND):
                break
        else:
            return
        if self._store is None:
            return
        calls, wanted = self.reasoning.list_wanted(owner, entries)
        self.reasoning.cache_origins(await load(self._store, owner, [*self.results.list_wanted(calls), *wanted]))
        merged = self.results.merge_into(entries, owner)
        if merged is not entries:
            calls, wanted = self.reasoning.list_wanted(owner, merged)
            self.reasoning.cache_origins(await load(self._store, owner, wanted))
        if self._threads is not None and (answered := _find_last_answered(merged)):
            await self._threads.find([key for key in calls[:MAX_AWAITED_CALLS] if key[1] in answered])


def _find_last_answered(entries: Sequence[Entry]) -> set[str]:
    """The ids of the calls whose results end the history, ignoring user messages after them."""
    ids = set[str]()
    for entry in reversed(entries):
        if isinstance(entry, ResultEntry):
            ids.add(entry.call_id)
        elif ids or not isinstance(entry, Message) or entry.role != "user":
            break
    return ids
