"""The heartbeat of a process: it goes on whatever happens, and a process that was away for a while loses nothing."""

import asyncio
from typing import Any

import pytest

from tests.store.examples import ANN, items, record
from tests.store.place import DAY, PLENTY
from toolwire.memory.membership import Membership
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import Effects, StoreFailed

LEASE = 0.2


class Failing(SqliteStore):
    """A store that fails in this way while there is one."""

    error: Exception | None = None
    beats = 0

    async def beat(self, member: str) -> bool:
        if self.error is not None:
            raise self.error
        self.beats += 1
        return await super().beat(member)


async def beaten(store: Failing, count: int = 1) -> None:
    """Wait for some more heartbeats."""
    enough = store.beats + count
    async with asyncio.timeout(60):
        while store.beats < enough:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def run_with(work: Any) -> None:
    async def all_of_it() -> None:
        store = Failing("memory:", DAY, PLENTY, lease=LEASE)
        membership = Membership(store, LEASE)
        await membership.start()
        try:
            await work(store, membership)
        finally:
            await membership.leave()
            await store.close()

    asyncio.run(all_of_it())


def test_a_process_alone_keeps_its_runs_when_the_store_was_away_for_longer_than_a_lease():
    async def away(store: Failing, membership: Membership) -> None:
        lost: list[None] = []
        membership.on_lost.append(lambda: lost.append(None))
        id = await membership.id()
        run = await store.queue(ANN, record("r1", status="queued"), items("in"), Effects(), plan=b"", member=id)
        store.error = StoreFailed("unreachable", "away")
        await asyncio.sleep(2 * LEASE)
        store.error = None
        await beaten(store)
        assert (await membership.id(), lost) == (id, [])
        assert await store.start(run)
        assert await store.claim(id, 10) == []

    run_with(away)


def test_a_heart_goes_on_beating_whatever_is_raised():
    async def crash(store: Failing, membership: Membership) -> None:
        heard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
        id = await membership.id()
        store.error = ValueError("unforeseen")
        async with asyncio.timeout(60):
            while not heard:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        store.error = None
        await beaten(store, 2)
        assert await membership.id() == id
        assert isinstance(heard[0], ValueError)

    run_with(crash)


class Clock:
    """A clock that stands until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_recent_heartbeat_proves_a_lease_and_after_a_pause_the_store_is_asked():
    async def pause() -> None:
        store, clock = Failing("memory:", DAY, PLENTY, lease=LEASE), Clock()
        membership = Membership(store, LEASE, clock=clock)
        lease = await store.take_lease("work", await membership.id())
        assert lease is not None
        clock.now += 0.4 * LEASE
        assert await membership.has_lease(lease)
        assert store.beats == 0
        clock.now += 0.2 * LEASE
        assert await membership.has_lease(lease)
        assert store.beats == 1
        assert await membership.has_lease(lease)
        assert store.beats == 1
        await store.close()

    asyncio.run(pause())


def test_a_process_that_was_taken_for_dead_holds_nothing():
    async def pause() -> None:
        store, clock = Failing("memory:", DAY, PLENTY, lease=LEASE), Clock()
        membership = Membership(store, LEASE, clock=clock)
        lease = await store.take_lease("work", await membership.id())
        assert lease is not None
        lost: list[None] = []
        membership.on_lost.append(lambda: lost.append(None))
        await store.leave(lease.member)  # as if another process had taken its place
        assert await membership.is_current(), "within half a lease nobody asks"
        clock.now += LEASE
        assert not await membership.is_current()
        assert lost == [None]
        assert not await membership.has_lease(lease), "it has joined anew under another id"
        await store.close()

    asyncio.run(pause())


def test_a_store_that_fails_proves_nothing():
    async def pause() -> None:
        store, clock = Failing("memory:", DAY, PLENTY, lease=LEASE), Clock()
        membership = Membership(store, LEASE, clock=clock)
        lease = await store.take_lease("work", await membership.id())
        assert lease is not None
        clock.now += LEASE
        store.error = StoreFailed("unreachable", "away")
        with pytest.raises(StoreFailed):
            await membership.has_lease(lease)
        await store.close()

    asyncio.run(pause())
