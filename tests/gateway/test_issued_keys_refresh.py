"""How long a process goes by the keys that it has read, with a clock of the test's own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from toolwire.core.errors import Failure
from toolwire.gateway.issued_keys import MAX_AGE, IssuedKeys, Unauthorized, hash_secret
from toolwire.memory.sql.issued_keys import KeyChanges
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import IssuedKey, StoreFailed

SECRET = b"sk-tw-ann"
ANN = IssuedKey("ann", hash_secret(SECRET), 1.0)


class CountingStore(SqliteStore):
    """A store in memory that counts reads, and fails or waits on demand."""

    def __init__(self) -> None:
        super().__init__("memory:", 0.0, 0)
        self.reads = 0
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()

    async def list_changed_keys(self, after: int) -> KeyChanges:  # type: ignore[override]
        self.reads += 1
        self.began.set()
        await self.gate.wait()
        if self.fails:
            raise StoreFailed("unreachable", "on demand")
        return await super().list_changed_keys(after)


class Desk:
    """Keys, their store and the two clocks."""

    def __init__(self) -> None:
        self.steady, self.wall = 100.0, 1000.0
        self.store = CountingStore()
        self.keys = IssuedKeys(self.store, lambda: self.steady, lambda: self.wall)
        self.served = 0

    async def request(self) -> IssuedKey | None:
        """What a request with the secret finds."""
        found: list[IssuedKey | None] = []

        async def app(*_: Any) -> None:
            found.append(self.keys.find(SECRET))

        await self.keys.admit(app)({}, None, None)  # type: ignore[arg-type]
        return found[0]


def run(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        desk = Desk()
        try:
            await test(desk)
        finally:
            await desk.store.close()

    asyncio.run(play())


def test_a_key_is_found_once_it_is_read_and_revoked_within_the_maximum_age():
    async def play(desk: Desk) -> None:
        assert await desk.request() is None
        await desk.store.put_key(ANN, None)
        desk.steady += MAX_AGE
        assert await desk.request() == ANN
        await desk.store.put_key(replace(ANN, revoked=5.0), ANN)
        desk.steady += MAX_AGE - 0.01
        assert await desk.request() == ANN
        desk.steady += 0.01
        with pytest.raises(Unauthorized, match="The key `ann` was revoked"):
            await desk.request()

    run(play)


def test_the_age_counts_from_the_start_of_a_read():
    async def play(desk: Desk) -> None:
        await desk.store.put_key(ANN, None)
        desk.store.gate.clear()
        reading = asyncio.create_task(desk.keys.refresh())
        await desk.store.began.wait()
        desk.steady += MAX_AGE
        desk.store.gate.set()
        await reading
        before = desk.store.reads
        assert await desk.request() == ANN
        assert desk.store.reads == before + 1

    run(play)


def test_requests_that_wait_share_one_read():
    async def play(desk: Desk) -> None:
        await desk.store.put_key(ANN, None)
        assert await asyncio.gather(*(desk.request() for _ in range(20))) == [ANN] * 20
        assert desk.store.reads == 1
        assert await desk.request() == ANN
        assert desk.store.reads == 1

    run(play)


def test_keys_are_refused_while_the_store_fails_and_known_again_after():
    async def play(desk: Desk) -> None:
        await desk.store.put_key(ANN, None)
        assert await desk.request() == ANN
        desk.store.fails = True
        desk.steady += MAX_AGE
        with pytest.raises(StoreFailed) as raised:
            await desk.request()
        assert (raised.value.failure.status, raised.value.failure.retryable) == (503, True)
        desk.store.fails = False
        assert await desk.request() == ANN

    run(play)


def test_a_key_expires_by_the_wall_clock_and_its_turns_end():
    async def play(desk: Desk) -> None:
        await desk.store.put_key(replace(ANN, expires=1001.0), None)
        ended: list[Failure] = []
        await desk.request()
        leave = desk.keys.watch("ann", ended.append)
        gone = desk.keys.watch("ann", lambda _: pytest.fail("this turn is over"))
        gone()
        desk.wall = 1000.9
        desk.keys.stop_turns()
        assert ended == []
        desk.wall = 1001.0
        desk.keys.stop_turns()
        desk.keys.stop_turns()
        [failure] = ended
        assert (failure.status, failure.code) == (401, "invalid_api_key")
        leave()
        with pytest.raises(Unauthorized, match="has expired"):
            await desk.request()

    run(play)


def test_a_secret_that_was_replaced_is_unknown():
    async def play(desk: Desk) -> None:
        await desk.store.put_key(ANN, None)
        assert await desk.request() == ANN
        await desk.store.put_key(replace(ANN, digest=hash_secret(b"another")), ANN)
        desk.steady += MAX_AGE
        assert await desk.request() is None
        assert desk.keys.find(b"another") is not None

    run(play)


def test_a_store_in_the_place_of_another_is_read_from_its_start():
    async def play(desk: Desk) -> None:
        await desk.store.put_key(replace(ANN, name="ben", digest=hash_secret(b"ben")), None)
        await desk.store.put_key(replace(ANN, name="eve", digest=hash_secret(b"eve")), None)
        await desk.request()
        assert desk.keys.find(b"ben") is not None
        replaced = desk.store
        await replaced.in_writer(lambda database: database.execute("DELETE FROM issued_keys").rowcount)
        await replaced.in_writer(lambda database: database.execute("UPDATE key_changes SET latest = 0").rowcount)
        await replaced.put_key(ANN, None)
        desk.steady += MAX_AGE
        assert await desk.request() == ANN
        assert desk.keys.find(b"ben") is None

    run(play)
