"""Values kept between turns: memory in front of the store, never older than what was put."""

import asyncio
from collections.abc import Sequence

from toolwire.memory.kept import KeptTable, WriteBehind, load, stored
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import KeptRow

KEY = ("ann", "call_1")


class SlowStore(SqliteStore):
    """A store whose answer waits until others have worked."""

    def __init__(self) -> None:
        super().__init__("memory:", 3600, 1_000_000)
        self.answered = asyncio.Event()
        self.released = asyncio.Event()

    async def get_kept(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = 1_000_000
    ) -> list[bytes | None]:
        found = await super().get_kept(owner, keys, most)
        self.answered.set()
        await self.released.wait()
        return found


def table() -> KeptTable[tuple[str, str], str]:
    return KeptTable("name", str, 10_000, WriteBehind())


def test_a_value_that_is_put_while_the_store_is_asked_stays():
    async def scenario() -> str | None:
        store, names = SlowStore(), table()
        await store.put_kept([KeptRow("ann", "name", stored(KEY), b'"old"')])
        asked = asyncio.create_task(load(store, "ann", [(names, KEY)]))
        await store.answered.wait()
        names.put(KEY, "new")
        store.released.set()
        await asked
        await store.close()
        return names.get(KEY)

    assert asyncio.run(scenario()) == "new"


def test_a_value_that_was_absent_once_is_asked_for_again():
    """Another process may have put it meanwhile."""

    async def scenario() -> str | None:
        store, names = SqliteStore("memory:", 3600, 1_000_000), table()
        await load(store, "ann", [(names, KEY)])
        await store.put_kept([KeptRow("ann", "name", stored(KEY), b'"new"')])
        await load(store, "ann", [(names, KEY)])
        await store.close()
        return names.get(KEY)

    assert asyncio.run(scenario()) == "new"
