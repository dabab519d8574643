"""A PostgreSQL that fails: nothing is told as kept that is not, nothing is kept twice, and it mends."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.store.examples import ANN, events, item, items, record
from tests.store.on_postgres import patient
from tests.store.place import DAY, DEADLINE, LONG, PLENTY
from tests.support.postgres import NEWEST, Server, binaries, database, run
from toolwire.memory.postgres import PostgresStore, schema
from toolwire.memory.postgres import database as statements
from toolwire.memory.store import (
    Append,
    Conversation,
    Effects,
    Fence,
    Follow,
    Member,
    RunLimits,
    StoreFailed,
    TooManyRuns,
)

WRITERS = 4


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that may be stopped."""
    programs = binaries(NEWEST)
    if programs is None:
        pytest.skip("no PostgreSQL of our own: faults of one are not tried")
    server = Server(programs)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _patient() -> Iterator[None]:
    with patient():
        yield


@pytest.fixture
def url(own_server: Server) -> Iterator[str]:
    own_server.start()
    with database(own_server) as name:
        yield own_server.url(name)


@asynccontextmanager
async def opened(url: str, **named: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, DAY, PLENTY, LONG, **named)
    try:
        yield store
    finally:
        await store.close()


class Writer:
    """Saves responses, adds to a conversation and appends events, and remembers what it was told."""

    def __init__(self, store: PostgresStore, name: str) -> None:
        self.store = store
        self.name = name
        self.saved: list[str] = []
        self.added: list[str] = []
        self.events = 0
        self.failures = 0
        self.rounds = 0

    async def begin(self) -> None:
        await self.store.join(Member(self.name))
        await self.store.put_conversation(ANN, Conversation(f"conv-{self.name}", 1.0, b"{}"))
        waiting = record(f"run-{self.name}", status="queued")
        self.fence: Fence = await self.store.queue(ANN, waiting, (), Effects(), plan=b"", member=self.name)

    async def write(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self.rounds += 1
            id = f"{self.name}-{self.rounds}"
            for work in (self._save, self._add, self._append):
                try:
                    await work(id)
                except StoreFailed:
                    self.failures += 1
                    await asyncio.sleep(0.01)

    async def _save(self, id: str) -> None:
        await self.store.save(ANN, record(id), [item(f"{id}-in")], [item(f"{id}-out", 500)])
        self.saved.append(id)

    async def _add(self, id: str) -> None:
        await self.store.add_items(ANN, f"conv-{self.name}", items(f"{id}-item"))
        self.added.append(id)

    async def _append(self, id: str) -> None:
        """The same events again until it is known that they are kept."""
        chunk = events(self.events, f"{self.name}-{self.events}")
        assert not (await self.store.append([Append(ANN, self.fence, chunk)])).lost
        self.events += 1

    async def check(self, store: PostgresStore) -> None:
        """All that was told as kept is there, once, and in order."""
        for id in self.saved:
            assert await store.load(ANN, id) is not None, id
            assert len(await store.load_input(ANN, id)) == len(await store.load_output(ANN, id)) == 1
        page = await store.load_page(ANN, f"conv-{self.name}", "", 1_000_000, "asc")
        assert page is not None
        found = [each.id for each in page.items]
        assert len(found) == len(set(found)), "nothing is added twice"
        assert {f"{id}-item" for id in self.added} <= set(found)
        chunks: list[Any] = []
        while True:
            following = sum(chunk.count for chunk in chunks)
            (answer,) = await store.follow([Follow(ANN, self.fence.id, following)])
            if not answer.chunks:
                break
            chunks += answer.chunks
        frames = b"".join(chunk.frames for chunk in chunks)
        expected = b"".join(events(0, f"{self.name}-{number}").frames for number in range(len(chunks)))
        assert frames == expected
        assert self.events <= len(chunks) <= self.events + 1, "at most the last one was kept and not told"


async def under_load(url: str, disturb: Callable[[list[Writer]], Any]) -> list[Writer]:
    """Let writers write while something is done to their database; check what they were told, and return them."""
    is_over = False
    async with opened(url) as store, opened(url) as other:
        writers = [Writer((store, other)[number % 2], f"w{number}") for number in range(WRITERS)]
        for writer in writers:
            await writer.begin()
        working = [asyncio.ensure_future(writer.write(lambda: is_over)) for writer in writers]
        await asyncio.wait([asyncio.ensure_future(disturb(writers)), *working], return_when=asyncio.FIRST_COMPLETED)
        assert not any(work.done() for work in working), [work.exception() for work in working if work.done()]
        told = [writer.events for writer in writers]
        await until(lambda: all(writer.events > before for writer, before in zip(writers, told, strict=True)))
        is_over = True
        await asyncio.gather(*working)
        for writer in writers:
            await writer.check(other)
        for each in (store, other):
            await mended(each)
    return writers


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def mended(store: PostgresStore) -> None:
    async with asyncio.timeout(DEADLINE):
        while not await store.probe():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_what_was_told_as_kept_is_there_after_a_restart(own_server, url, how):
    async def restart(writers: list[Writer]) -> None:
        for _ in range(2):
            written = [writer.rounds for writer in writers]
            await until(lambda w=written: all(each.rounds > n + 3 for each, n in zip(writers, w, strict=True)))
            await asyncio.to_thread(own_server.stop, how)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(own_server.start)

    asyncio.run(under_load(url, restart))


def test_connections_that_are_ended_in_the_midst_of_a_write_lose_and_double_nothing(url):
    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    async def end_connections(writers: list[Writer]) -> None:
        for _ in range(25):
            await run(url, ending)
            await asyncio.sleep(0.03)

    writers = asyncio.run(under_load(url, end_connections))
    assert sum(writer.failures for writer in writers) == 0, "a lost connection alone fails nothing"


@pytest.mark.parametrize("is_committed", [True, False], ids=["after", "before"])
def test_a_transaction_whose_connection_is_lost_at_its_commit_is_done_once(url, monkeypatch, is_committed):
    execute = asyncpg.Connection.execute
    lost: list[str] = []

    async def lose(connection: Any, query: str, *args: Any, **named: Any) -> str:
        if query != "COMMIT" or len(lost) == 3:
            return await execute(connection, query, *args, **named)
        lost.append(query)
        if is_committed:
            await execute(connection, query, *args, **named)
            lost.extend(("", ""))
        connection.terminate()
        raise ConnectionResetError

    async def write() -> None:
        async with opened(url) as store:
            await store.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
            await store.save(ANN, record("r1"), (), ())
            monkeypatch.setattr(asyncpg.Connection, "execute", lose)
            await store.add_items(ANN, "conv", [item("")])
            assert len(lost) == 3
            assert len(await store.load_input(ANN, "conv")) == 1
            lost.clear()
            assert await store.delete(ANN, "r1")
            assert len(lost) == 3
            assert await store.load(ANN, "r1") is None

    asyncio.run(write())


def test_a_transaction_that_a_crash_lost_is_done_again_even_if_its_id_is_given_to_another(own_server, url, monkeypatch):
    """Ids that were given out shortly before a crash are given out again after it."""
    execute = asyncpg.Connection.execute
    crashes: list[Any] = []

    def crash_and_use(id: int) -> None:
        own_server.stop(signal.SIGQUIT)
        own_server.start()
        used: list[int] = []
        while not used or used[-1] < id:
            used.append(asyncio.run(transaction_id(url)))
        crashes.append(id in used)

    async def lose(connection: Any, query: str, *args: Any, **named: Any) -> str:
        if query != "COMMIT" or crashes:
            return await execute(connection, query, *args, **named)
        id = await connection.fetchval("SELECT txid_current()")
        await asyncio.to_thread(crash_and_use, id)
        raise ConnectionResetError

    async def write() -> None:
        async with opened(url) as store:
            await store.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
            await run(url, "SELECT pg_switch_wal()")  # what is not committed then fills no page and is not written
            monkeypatch.setattr(asyncpg.Connection, "execute", lose)
            await store.add_items(ANN, "conv", [item("")])
            assert crashes == [True]
            assert len(await store.load_input(ANN, "conv")) == 1

    asyncio.run(write())


def test_the_tokens_of_transactions_are_deleted_when_they_are_old(url):
    count = "SELECT count(*) FROM toolwire.commits"

    async def write() -> None:
        async with opened(url) as store:
            await store.join(Member("one"))
            await store.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
            await store.add_items(ANN, "none", [item("")])
            assert list(await store.query(count)) == [(0,)], "nothing was committed"
            await store.add_items(ANN, "conv", [item("")])
            await store.maintain("one")
            assert list(await store.query(count)) == [(1,)]
            await run(url, "UPDATE toolwire.commits SET at = at - interval '1 hour'")
            await store.maintain("one")
            assert list(await store.query(count)) == [(0,)]

    asyncio.run(write())


async def transaction_id(url: str) -> int:
    """The id of a new transaction."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT txid_current()")
    finally:
        connection.terminate()


FULL = """
CREATE FUNCTION toolwire.full_disk() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON toolwire.items FOR EACH STATEMENT EXECUTE FUNCTION toolwire.full_disk();
CREATE TRIGGER full_disk BEFORE INSERT ON toolwire.probes FOR EACH STATEMENT EXECUTE FUNCTION toolwire.full_disk();
"""
ROOM = "DROP TRIGGER full_disk ON toolwire.items; DROP TRIGGER full_disk ON toolwire.probes"


def test_on_a_full_disk_nothing_is_told_as_kept_until_there_is_room(url):
    async def fill() -> None:
        heard: list[Any] = []
        async with opened(url) as store:
            store.watch = lambda failed: heard.append(failed and failed.reason)
            await store.save(ANN, record("before"), items("a"), ())
            await run(url, FULL)
            with pytest.raises(StoreFailed) as failed:
                await store.save(ANN, record("lost"), items("b"), ())
            assert failed.value.reason == "full" == store.fault
            assert await store.load(ANN, "lost") is None
            assert await store.load(ANN, "before") is not None, "what is there can be read"
            assert not await store.probe()
            await store.put_conversation(ANN, Conversation("c", 1.0, b"{}"))
            assert store.fault == "full", "a little may fit where not everything does"
            await run(url, ROOM)
            await mended(store)
            assert heard[0] == "full"
            assert heard[-1] is None
            await store.save(ANN, record("lost"), items("b"), ())
            assert await store.load(ANN, "lost") is not None

    asyncio.run(fill())


def test_a_database_that_only_reads_is_read(url, own_server):
    async def read() -> None:
        async with opened(url) as store:
            await store.save(ANN, record("r1"), items("a"), ())
        name = url.partition("@/")[2].partition("?")[0]
        await run(own_server.url("postgres"), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        async with opened(url) as store:
            with pytest.raises(StoreFailed) as failed:
                await store.save(ANN, record("r2"), items("b"), ())
            assert failed.value.reason == "readonly"
            assert await store.load(ANN, "r1") is not None

    asyncio.run(read())


def test_a_database_that_is_away_is_told_in_time_and_used_when_it_is_back(own_server, url, monkeypatch):
    monkeypatch.setattr(statements, "OPERATION_TIMEOUT", 0.5)

    async def away() -> None:
        async with opened(url) as store:
            await asyncio.to_thread(own_server.stop)
            with pytest.raises(StoreFailed) as failed:
                await store.load(ANN, "r1")
            assert failed.value.reason == "unreachable" == store.fault
            await asyncio.to_thread(own_server.start)
            await mended(store)
            monkeypatch.setattr(statements, "OPERATION_TIMEOUT", DEADLINE)
            await store.save(ANN, record("r1"), items("a"), ())
            assert await store.load(ANN, "r1") is not None

    asyncio.run(away())


def test_members_have_their_time_again_after_the_database_was_away(own_server, url):
    """As if it had been away for longer than a heartbeat may take: nobody could beat meanwhile."""

    async def restart() -> None:
        async with opened(url) as store:
            await store.join(Member("one"))
            await store.join(Member("two"))
            run_of_one = await store.queue(ANN, record("r1", status="queued"), (), Effects(), plan=b"", member="one")
            await asyncio.to_thread(own_server.stop)
            await asyncio.to_thread(own_server.start)
            await run(url, "UPDATE toolwire.members SET until = now() - interval '1 second'")
            assert await store.claim("two", 10) == []
            assert await store.beat("one")
            assert await store.start(run_of_one)
            await run(
                url, "UPDATE toolwire.members SET lasts = 0, until = now() - interval '1 second' WHERE id = 'one'"
            )
            assert await store.claim("two", 10) == []
            assert await store.beat("two")
            assert [claimed.fence.id for claimed in await store.claim("two", 10)] == ["r1"]
            assert not await store.beat("one")

    asyncio.run(restart())


def test_many_processes_that_begin_at_once_make_the_tables_once(url):
    async def begin() -> None:
        stores = [PostgresStore(url, DAY, PLENTY) for _ in range(12)]
        await asyncio.gather(*(store.open() for store in stores))
        assert [store.fault for store in stores] == [None] * 12
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(begin())


def test_tables_of_the_version_before_become_those_of_this_one(url, monkeypatch):
    async def meet() -> None:
        queued, waiting = ("r2", "r3"), {"plan": b"", "member": "one", "limits": RunLimits(in_all=2)}
        with monkeypatch.context() as before:
            before.setattr(schema, "STEPS", schema.STEPS[:2])
            async with opened(url) as old:
                await old.save(ANN, record("r1"), items("a"), ())
        await run(url, "INSERT INTO toolwire.runs (id, owner, member, epoch, plan) VALUES ('r0', 'ann', 'one', 1, '')")
        async with opened(url) as store:
            assert await store.load(ANN, "r1") is not None
            works = (store.queue(ANN, record(id, status="queued"), (), Effects(), **waiting) for id in queued)
            done = await asyncio.gather(*works, return_exceptions=True)
            assert {type(each) for each in done} == {Fence, TooManyRuns}, done

    asyncio.run(meet())


def test_tables_of_a_later_version_are_used_unless_they_need_one(url):
    async def meet() -> None:
        async with opened(url) as store:
            await store.save(ANN, record("r1"), items("a"), ())
        await run(url, "UPDATE toolwire.schema_version SET version = 99")
        async with opened(url) as store:
            assert await store.load(ANN, "r1") is not None
        await run(url, "UPDATE toolwire.schema_version SET needs = 98")
        async with opened(url) as store:
            with pytest.raises(StoreFailed) as failed:
                await store.load(ANN, "r1")
            assert failed.value.reason == "newer"
            assert failed.value.is_lasting
            assert "version 99" in str(failed.value)

    asyncio.run(meet())


def test_ids_that_no_text_column_or_index_takes_are_found_again(url):
    odd = ["a\0b", "\ud800", "x" * 5000, "ü" * 400, "#abc", "#" + "0" * 64, "plain"]

    async def keep() -> None:
        async with opened(url) as store:
            await store.save(ANN, record("r1"), [item(id.encode("utf-8", "replace").hex()[:9], 5) for id in odd], ())
            kept = [type(item("x"))(id, item("x").raw) for id in odd]
            await store.save(ANN, record("r2"), kept, ())
            page = await store.load_page(ANN, "r2", "", 100, "asc")
            assert [each.id for each in page.items] == odd
            assert set(await store.find_items(ANN, odd)) == set(odd)
            for id in odd:
                assert await store.load(ANN, id) is None
                assert await store.find_missing_link(ANN, id) == id
                assert not await store.delete(ANN, id)
                assert not await store.cancel(ANN, id)
            await store.join(Member("one"))
            leases = [await store.take_lease(id, "one") for id in odd]
            assert [lease.name for lease in leases] == odd
            assert len({lease.epoch for lease in leases}) == len(odd)

    asyncio.run(keep())
