"""What a turn needs of earlier turns of its conversation, and its client does not send."""

from toolwire.core.request import Entry
from toolwire.memory.pending_results import PendingResults
from toolwire.memory.reasoning import OF_ONE_BACKEND, ReasoningCache
from toolwire.memory.store import Store
from toolwire.memory.threads import KeptThreads
from toolwire.memory.write_behind import WriteBehind, load


class TurnMemory:
    """Reasoning by call, pending results and waiting threads.

    Without a store they last as long as the process.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._behind = WriteBehind(store)
        self.reasoning = ReasoningCache(self._behind)
        self.results = PendingResults(self._behind)
        self.threads = KeptThreads(store, self._behind)

    async def flush(self) -> None:
        """Wait until everything put so far is written or has failed, within a timeout."""
        await self.threads.settled()
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
        calls, wanted = self.reasoning.wanted(owner, entries)
        beside = [*self.results.wanted(calls), *self.threads.wanted(calls, entries)]
        self.reasoning.know_origins(await load(self._store, owner, [*beside, *wanted]))
        merged = self.results.merge_into(entries, owner)
        if merged is not entries:
            calls, wanted = self.reasoning.wanted(owner, merged)
            found = await load(self._store, owner, [*self.threads.wanted(calls, merged), *wanted])
            self.reasoning.know_origins(found)
