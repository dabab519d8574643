"""What a conversation needs of its earlier turns, and its client does not carry."""

from toolwire.core.request import Entry
from toolwire.memory.kept import WriteBehind, load
from toolwire.memory.reasoning import OF_ONE_BACKEND, ReasoningCache
from toolwire.memory.results import KeptResults
from toolwire.memory.store import Store


class TurnMemory:
    """Reasoning by call and results that wait. Without a store they last as long as the process."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        behind = WriteBehind(store)
        self.reasoning = ReasoningCache(behind)
        self.results = KeptResults(behind)
        self.settled = behind.settled

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
        self.reasoning.know_origins(await load(store, owner, [*self.results.wanted(calls), *wanted]))
        whole = self.results.added_to(entries, owner)
        if whole is not entries:
            _, wanted = self.reasoning.wanted(owner, whole)
            self.reasoning.know_origins(await load(store, owner, wanted))
