"""Statements of the PostgreSQL store that wait for a row: they do not write by what was true when they began."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.store.examples import ANN, held, ids_of, items, joined, queued, record
from tests.store.on_postgres import Databases
from tests.store.place import DEADLINE, Loop, Users
from toolwire.memory.store import Conversation, Effects, Fence, Lease, RunLimits, TooManyRuns

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
TAKEN_OVER = """
INSERT INTO toolwire.members (id, host, socket, lasts, until)
VALUES ('new', '', '', 600, now() + interval '600 seconds');
UPDATE toolwire.leases SET member = 'new', epoch = nextval('toolwire.epochs') WHERE name = 'name'
"""
"""What a process does that joins and takes a lease whose holder is gone."""


@pytest.fixture(params=["postgres", "oldest_postgres"])
def databases_of_store(request: pytest.FixtureRequest) -> Databases:
    server = request.getfixturevalue(request.param)
    return request.getfixturevalue("databases")(request.param, server, server.url)


class Meanwhile:
    """Has something committed while a call of the store waits for the rows that it changes."""

    def __init__(self, loop: Loop, databases: Databases) -> None:
        self.store: Users = databases.open()
        self._loop = loop
        self._url = databases.admin_url()

    def __call__(self, statements: str, work: Callable[[Any], Awaitable[Any]], then: str = "") -> Any:
        """`then` is made when the call waits."""
        return self._loop.run(self._both(statements, work, then))

    def make(self, statements: str) -> None:
        self._loop.run(self._made(statements))

    async def _both(self, statements: str, work: Callable[[Any], Awaitable[Any]], then: str) -> Any:
        async with self._connection() as other:
            await other.execute("BEGIN")
            await other.execute(statements)
            working = asyncio.ensure_future(work(self.store.stores[0]))
            async with self._connection() as watching, asyncio.timeout(DEADLINE):
                while not await watching.fetchval(WAITING):
                    assert not working.done(), "it waits for no row"
                    await asyncio.sleep(0.01)
            await other.execute(f"{then}; COMMIT")
            return await working

    async def _made(self, statements: str) -> None:
        async with self._connection() as connection:
            await connection.execute(statements)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self._url, timeout=DEADLINE)
        try:
            yield connection
        finally:
            connection.terminate()


@pytest.fixture
def meanwhile(loop: Loop, databases_of_store: Databases) -> Meanwhile:
    return Meanwhile(loop, databases_of_store)


@pytest.fixture
def lost(meanwhile: Meanwhile) -> Lease:
    """A lease whose holder is gone."""
    joined(meanwhile.store, "old", "two")
    lease = held(meanwhile.store, "name", "old")
    meanwhile.make("DELETE FROM toolwire.members WHERE id = 'old'")
    return lease


def test_a_lease_is_not_taken_from_a_member_that_joined_meanwhile(meanwhile, lost):
    assert meanwhile(TAKEN_OVER, lambda store: store.take_lease("name", "two")) is None
    taken = meanwhile.store.find_lease("name")
    assert taken.member == "new"
    assert taken.epoch > lost.epoch


def test_a_lease_that_was_dropped_meanwhile_is_taken(meanwhile, lost):
    dropped = f"{TAKEN_OVER}; DELETE FROM toolwire.leases"
    taken = meanwhile(dropped, lambda store: store.take_lease("name", "two"))
    assert taken == meanwhile.store.find_lease("name")
    assert taken.epoch > lost.epoch


def test_the_sweep_leaves_a_lease_that_was_taken_over_meanwhile(meanwhile, lost):
    meanwhile(TAKEN_OVER, lambda store: store.maintain("two"))
    assert meanwhile.store.find_lease("name").member == "new"


ADDED = """
UPDATE toolwire.holders SET places = places + 1 WHERE id = 'conv';
INSERT INTO toolwire.items (holder, made, place, id, owner, item) VALUES ('conv', 0, 0, 'a', 'ann', '{"id":"a"}')
"""


def test_an_item_that_another_process_adds_meanwhile_is_not_added_again(meanwhile):
    store = meanwhile.store
    store.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    meanwhile(ADDED, lambda user: user.add_items(ANN, "conv", items("a", "b")))
    assert ids_of(store.load_input(ANN, "conv")) == ["a", "b"]


OVERDUE = "UPDATE toolwire.members SET lasts = 0, until = now() - interval '1 second' WHERE id = 'old'"
BEATEN = "UPDATE toolwire.members SET lasts = 600, until = now() + interval '600 seconds' WHERE id = 'old'"
BURIED = "DELETE FROM toolwire.members WHERE id = 'old'"
TAKING = {
    "claim": lambda store: store.claim("two", 10),
    "take_lease": lambda store: store.take_lease("name", "two"),
    "maintain": lambda store: store.maintain("two"),
}


@pytest.mark.parametrize("take", TAKING.values(), ids=TAKING)
def test_nothing_is_taken_from_a_member_that_beats_meanwhile(meanwhile, take):
    store = meanwhile.store
    joined(store, "old", "two")
    run, lease = queued(store, "r1", "old"), held(store, "name", "old")
    meanwhile.make(OVERDUE)
    assert not meanwhile(BEATEN, take)
    assert store.find_lease("name") == lease
    assert store.start(run)
    assert store.beat("old")


def test_a_beat_that_waits_for_who_takes_over_is_too_late(meanwhile):
    joined(meanwhile.store, "old")
    meanwhile.make(OVERDUE)
    assert meanwhile(BURIED, lambda store: store.beat("old")) is False


def test_a_lease_of_a_member_that_is_taken_for_dead_meanwhile_is_taken(meanwhile):
    store = meanwhile.store
    joined(store, "old", "two")
    lease = held(store, "name", "old")
    meanwhile.make(OVERDUE)
    taken = meanwhile(BURIED, lambda user: user.take_lease("name", "two"))
    assert taken.epoch > lease.epoch


COUNTED = "SELECT toolwire.count_runs('ann')"
QUEUED = f"{COUNTED}; INSERT INTO toolwire.runs (id, owner, member, epoch, plan) VALUES ('r1', 'ann', 'one', 1, '')"


def queue(store: Any, limits: RunLimits, guard: Lease | None = None) -> Awaitable[Fence]:
    waiting = record("r2", status="queued")
    return store.queue(ANN, waiting, (), Effects(), plan=b"", member="one", guard=guard, limits=limits)


@pytest.mark.parametrize("limits", [RunLimits(in_all=1), RunLimits(per_owner=1)], ids=["in-all", "per-owner"])
def test_a_run_that_another_process_queues_meanwhile_counts(meanwhile, limits):
    joined(meanwhile.store, "one")
    with pytest.raises(TooManyRuns):
        meanwhile(QUEUED, lambda store: queue(store, limits))
    assert meanwhile.store.load(ANN, "r2") is None
    assert meanwhile.store.stats().runs == 1


def test_a_run_that_ends_meanwhile_makes_room(meanwhile):
    store = meanwhile.store
    joined(store, "one")
    queued(store, "r1", "one")
    over = f"{COUNTED}; UPDATE toolwire.runs SET is_over = true"
    assert meanwhile(over, lambda user: queue(user, RunLimits(1, 1))) == Fence("r2", 1)


def test_a_queue_that_waits_to_count_runs_locks_no_row(meanwhile):
    store = meanwhile.store
    joined(store, "one")
    lease = held(store, "name", "one")
    free = "SELECT 1 FROM toolwire.leases WHERE name = 'name' FOR UPDATE NOWAIT"
    assert meanwhile(COUNTED, lambda user: queue(user, RunLimits(1, 1), lease), free) == Fence("r2", 1)
