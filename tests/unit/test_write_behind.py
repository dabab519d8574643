"""Values kept between turns: memory in front of the store, never older than what was put."""

import asyncio
from collections.abc import Sequence

from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import KeyValue
from toolwire.memory.write_behind import MAX_UNWRITTEN_BYTES, CachedTable, WriteBehind, encode_key, load

KEY = ("ann", "call_1")


class SlowStore(SqliteStore):
    """A store whose answer waits until others have worked."""

    def __init__(self) -> None:
        super().__init__("memory:", 3600, 1_000_000)
        self.answered = asyncio.Event()
        self.released = asyncio.Event()

    async def get_values(
        self, owner: str, keys: Sequence[tuple[str, bytes]], most: int = 1_000_000
    ) -> list[bytes | None]:
        found = await super().get_values(owner, keys, most)
        self.answered.set()
        await self.released.wait()
        return found


def table() -> CachedTable[tuple[str, str], str]:
    return CachedTable("name", str, 10_000, WriteBehind())


def test_a_value_that_is_put_while_the_store_is_asked_stays():
    async def scenario() -> str | None:
        store, names = SlowStore(), table()
        await store.put_values([KeyValue("ann", "name", encode_key(KEY), b'"old"')])
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
        await store.put_values([KeyValue("ann", "name", encode_key(KEY), b'"new"')])
        await load(store, "ann", [(names, KEY)])
        await store.close()
        return names.get(KEY)

    assert asyncio.run(scenario()) == "new"


def test_a_value_that_replaces_a_pending_one_takes_its_room():
    """Otherwise a value that changes often would fill the queue, and others would not be written."""

    async def scenario() -> list[bytes | None]:
        store = SqliteStore("memory:", 3600, 1_000_000)
        behind = WriteBehind(store)
        for _ in range(4):
            behind.put("ann", "name", b"a", bytes(MAX_UNWRITTEN_BYTES // 2))
        behind.put("ann", "name", b"a", b"small")
        behind.put("ann", "name", b"b", b"other")
        await behind.flush()
        found = await store.get_values("ann", [("name", b"a"), ("name", b"b")])
        await store.close()
        return found

    assert asyncio.run(scenario()) == [b"small", b"other"]
