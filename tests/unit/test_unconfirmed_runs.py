"""Runs that may have been queued though their clients were told that they were not."""

import asyncio

import pytest

from tests.store.examples import ANN, items, record
from toolwire.gateway.responses.recovery import SECOND_DELETE_AFTER, UnconfirmedRuns
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import Effects, Fence, Member, Overtaken, StoreFailed


class LosesAnswers(SqliteStore):
    """Keeps what it is given, and fails before it says so."""

    is_reachable = False

    async def queue(self, *given, **named):
        await super().queue(*given, **named)
        raise StoreFailed("unreachable", "no answer in time")

    async def delete(self, *given, **named):
        if not self.is_reachable:
            raise StoreFailed("unreachable", "no answer in time")
        return await super().delete(*given, **named)


class Times:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def queued(store: SqliteStore, runs: UnconfirmedRuns, id: str) -> None:
    with pytest.raises(StoreFailed), runs.watch(ANN, id):
        await store.queue(ANN, record(id, status="queued"), items("a"), Effects(), plan=b"{}", member="m1")


def test_a_run_whose_queueing_was_not_confirmed_is_deleted_when_the_store_is_back():
    async def tried() -> None:
        store, clock = LosesAnswers("memory:", 0, 0), Times()
        runs = UnconfirmedRuns(store, clock)
        await store.join(Member("m1"))
        await queued(store, runs, "r1")
        with pytest.raises(StoreFailed):
            await runs.delete()
        assert await store.load(ANN, "r1") is not None
        store.is_reachable = True
        await runs.delete()
        assert await store.load(ANN, "r1") is None
        with pytest.raises(StoreFailed):  # the statement arrives late, after all
            await store.queue(ANN, record("r1", status="queued"), items("a"), Effects(), plan=b"{}", member="m1")
        clock.now = SECOND_DELETE_AFTER - 1
        await runs.delete()
        assert await store.load(ANN, "r1") is not None
        clock.now = SECOND_DELETE_AFTER
        await runs.delete()
        assert await store.load(ANN, "r1") is None
        await store.close()

    asyncio.run(tried())


def test_a_run_that_was_refused_or_queued_is_left_alone():
    async def tried() -> None:
        store = SqliteStore("memory:", 0, 0)
        runs = UnconfirmedRuns(store, Times())
        await store.save(ANN, record("r1"), items("a"), ())
        with runs.watch(ANN, "r1"):
            pass
        with pytest.raises(Overtaken), runs.watch(ANN, "r1"):
            raise Overtaken(Fence("r1", 1))
        with pytest.raises(ValueError, match="ours"), runs.watch(ANN, "r1"):
            raise ValueError("ours")
        await runs.delete()
        assert await store.load(ANN, "r1") is not None
        await store.close()

    asyncio.run(tried())
