"""What a conversation needs of its earlier turns, and its client does not carry."""

from toolwire.core.request import Entry
from toolwire.memory.pending_results import PendingResults
from toolwire.memory.reasoning import OF_ONE_BACKEND, ReasoningCache
from toolwire.memory.store import Store
from toolwire.memory.threads import KeptThreads
from toolwire.memory.write_behind import WriteBehind, load


class TurnMemory:
    """Reasoning by call, results that wait, threads that wait. Without a store they last as long as the process."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._behind = WriteBehind(store)
        self.reasoning = ReasoningCache(self._behind)
        self.results = PendingResults(self._behind)
        self.threads = KeptThreads(store, self._behind)

    async def flush(self) -> None:
        """Wait until what was put so far is written, or cannot be, but not for long."""
        await self.threads.settled()
        await self._behind.flush()

    async def load(self, owner: str, entries: tuple[Entry, ...]) -> None:
        """Get from the store what belongs to the calls and signatures of a history, before its request is planned."""
        for entry in entries:
            if isinstance(entry, OF_ONE_BACKEND):
                break
        else:
            return
        if self._store is not None:
            await self._load(self._store, owner, entries)

    async def _load(self, store: Store, owner: str, entries: tuple[Entry, ...]) -> None:
        calls, wanted = self.reasoning.wanted(owner, entries)
        beside = [*self.results.wanted(calls), *self.threads.wanted(calls, entries)]
        self.reasoning.know_origins(await load(store, owner, [*beside, *wanted]))
        whole = self.results.merge_into(entries, owner)
        if whole is not entries:
            calls, wanted = self.reasoning.wanted(owner, whole)
            self.reasoning.know_origins(await load(store, owner, [*self.threads.wanted(calls, whole), *wanted]))
