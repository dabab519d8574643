"""The events of background runs: committed together, shown when they are, never before."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.responses.run_log import (
    MAX_UNCOMMITTED_BYTES,
    TAIL_BYTES,
    Flusher,
    Follower,
    RunLog,
    RunReader,
    cut_chunk,
)
from toolwire.memory.sql.runs import NO_BOUND
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import (
    Append,
    Appended,
    Effects,
    EventChunk,
    Fence,
    Follow,
    Followed,
    Member,
    Record,
    StoreFailed,
)

OWNER = "ann"


def event(number: int, size: int = 10) -> bytes:
    return b"event: e\ndata: %d %b\n\n" % (number, b"x" * size)


class Held(SqliteStore):
    """A store that commits when it is let, and fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__("memory:", 3600, 100_000_000)
        self.asked: list[list[Append]] = []
        self.is_asked = asyncio.Event()
        self.is_free = asyncio.Event()
        self.is_free.set()
        self.failures = 0
        self.commits_before_failing = False

    async def append(self, appends: Sequence[Append]) -> Appended:
        self.asked.append(list(appends))
        self.is_asked.set()
        await self.is_free.wait()
        if not self.failures:
            return await super().append(appends)
        self.failures -= 1
        if self.commits_before_failing:
            await super().append(appends)
        raise StoreFailed("io", "told to fail")


class Desk:
    """One process with its runs."""

    def __init__(self, store: SqliteStore, log: type[RunLog] = RunLog) -> None:
        self.store = store
        self.lost: list[Fence] = []
        self.cancelled: list[Fence] = []
        metrics = Metrics()
        self.flusher = Flusher(store, metrics, self.lost.append, self.cancelled.append)
        self.follower = Follower(store, metrics)
        self._log = log

    async def queue(self, id: str = "resp_1", member: str = "m") -> RunLog:
        await self.store.join(Member(member))
        record = Record(id, 0.0, "queued", b"{}", b"{}")
        fence = await self.store.queue(OWNER, record, (), Effects(), plan=b"", member=member)
        return self._log(OWNER, fence)

    def add(self, log: RunLog, *pieces: bytes) -> None:
        log.append(pieces)
        self.flusher.flush(log)

    def reader(self, log: RunLog, number: int = 0) -> RunReader:
        return RunReader(self.follower, lambda: None if log.is_lost else log, OWNER, log.fence.id, number)


def tried(scenario: Callable[[Any], Awaitable[None]], make: Callable[[], SqliteStore] = Held) -> None:
    async def run() -> None:
        store = make()
        try:
            async with asyncio.timeout(60):
                await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


async def let_others_work() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def is_shown_after_its_commit(desk: Desk, store: Held) -> None:
    log = await desk.queue()
    store.is_free.clear()
    reading = asyncio.create_task(first_chunk(desk.reader(log)))
    desk.add(log, event(0))
    await store.is_asked.wait()
    await let_others_work()
    assert not reading.done(), "shown before it was committed"
    store.is_free.set()
    assert (await reading).frames == event(0)


async def first_chunk(reader: RunReader) -> EventChunk:
    chunks = await reader.read()
    assert chunks is not None
    return chunks[0]


def test_an_event_is_shown_when_it_is_committed():
    tried(lambda store: is_shown_after_its_commit(Desk(store), store))


def test_signs_of_life_show_nothing_of_a_turn():
    log = RunLog(OWNER, Fence("resp_1", 1))

    def commit() -> bool:
        assert log.next_chunk() is not None
        log.confirm()
        return log.has_shown_output

    log.append([event(0), event(1), event(2)], is_output=False)
    log.append([event(3)], is_output=False)
    assert commit() is False
    log.append([event(4)])
    log.append([event(5)], is_output=False)
    assert log.has_shown_output is False, "nothing of it is committed"
    assert commit() is True
    assert RunLog(OWNER, Fence("resp_1", 2), log.committed).has_shown_output is False, "of this process"


class Hasty(RunLog):
    """Shows what is only sent."""

    def next_chunk(self) -> EventChunk | None:
        chunk = super().next_chunk()
        if chunk is not None:
            self._show(chunk)
        return chunk


def test_an_event_that_is_shown_before_its_commit_is_found_out():
    with pytest.raises(AssertionError, match="shown before it was committed"):
        tried(lambda store: is_shown_after_its_commit(Desk(store, Hasty), store))


@pytest.mark.parametrize("commits", [False, True])
def test_what_the_store_did_not_confirm_is_sent_again_as_it_was_before_anything_else(commits: bool):
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        log = await desk.queue()
        store.failures, store.commits_before_failing = 3, commits
        desk.add(log, event(0), event(1))
        await store.is_asked.wait()
        desk.add(log, event(2))
        chunks = await read_to(desk.reader(log), 3)
        assert b"".join(chunk.frames for chunk in chunks) == event(0) + event(1) + event(2)
        sent = [[append.chunk for append in appends] for appends in store.asked]
        assert sent[:4] == [[EventChunk(0, 2, event(0) + event(1))]] * 4
        assert sent[4:] == [[EventChunk(2, 1, event(2))]]

    tried(scenario)


async def read_to(reader: RunReader, number: int) -> list[EventChunk]:
    """All chunks up to the event before this number."""
    found: list[EventChunk] = []
    while not found or found[-1].first + found[-1].count < number:
        chunks = await reader.read()
        assert chunks is not None
        for chunk in chunks:
            assert chunk.first == (found[-1].first + found[-1].count if found else chunk.first), "a gap"
            found.append(chunk)
    return found


def test_the_events_of_many_runs_are_one_statement():
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        logs = [await desk.queue(f"resp_{number}") for number in range(20)]
        for number in range(5):
            for log in logs:
                desk.add(log, event(number))
        for log in logs:
            await read_to(desk.reader(log), 5)
        assert {len(appends) for appends in store.asked} == {20}

    tried(scenario)


def test_a_run_that_somebody_else_has_is_lost_by_its_fence_and_nothing_of_it_is_shown():
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        old = await desk.queue("resp_1", "dead")
        other = await desk.queue("resp_2", "alive")
        desk.add(old, event(0))
        await read_to(desk.reader(old), 1)
        await store.leave("dead")
        [claimed] = await store.claim("alive", 10)
        new = RunLog(OWNER, claimed.fence, claimed.next_event)
        desk.add(old, event(1, 99))
        desk.add(new, event(1))
        desk.add(other, event(0))
        chunks = await read_to(desk.reader(new), 2)
        await read_to(desk.reader(other), 1)
        assert b"".join(chunk.frames for chunk in chunks) == event(0) + event(1)
        assert desk.lost == [old.fence]
        assert (old.is_lost, new.is_lost) == (True, False)
        assert [chunk.frames for chunk in await read_to(RunReader(desk.follower, lambda: None, OWNER, "resp_1", 0), 2)]

    tried(scenario)


def test_a_run_that_somebody_wants_to_end_is_told_with_its_next_events():
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        log = await desk.queue()
        assert await store.cancel(OWNER, "resp_1")
        desk.add(log, event(0))
        await read_to(desk.reader(log), 1)
        await let_others_work()
        assert desk.cancelled == [log.fence]

    tried(scenario)


def test_a_run_waits_while_too_much_of_it_is_not_committed():
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        log = await desk.queue()
        store.is_free.clear()
        desk.add(log, event(0, MAX_UNCOMMITTED_BYTES), event(1))
        waiting = asyncio.create_task(desk.flusher.wait_for_room(log))
        await store.is_asked.wait()
        await let_others_work()
        assert not waiting.done()
        store.is_free.set()
        await waiting

    tried(scenario)


def test_a_reader_who_comes_late_reads_what_is_not_at_hand_from_the_store():
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        log = await desk.queue()
        events = [event(number, TAIL_BYTES // 3) for number in range(12)]
        for each in events:
            desk.add(log, each)
            await desk.flusher.wait_for_room(log)
        await read_to(desk.reader(log, 11), 12)
        assert log.follow(0) is None
        for start in (0, 5, 11):
            chunks = await read_to(desk.reader(log, start), 12)
            assert b"".join(chunk.frames for chunk in chunks) == b"".join(events[start:])

    tried(scenario)


def test_a_reader_of_a_run_that_is_lost_goes_on_with_the_store():
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        log = await desk.queue("resp_1", "dead")
        reader = desk.reader(log)
        desk.add(log, event(0))
        await read_to(reader, 1)
        reading = asyncio.create_task(read_to(reader, 2))
        await let_others_work()
        log.lose()
        await store.join(Member("alive"))
        await store.leave("dead")
        [claimed] = await store.claim("alive", 10)
        await store.append([Append(OWNER, claimed.fence, EventChunk(1, 1, event(1)))])
        assert [chunk.frames for chunk in await reading] == [event(1)]

    tried(scenario)


class Faulty(Held):
    """A store with a fault: once, an operation raises what no store raises."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self._broken = {operation}

    def _fail_once(self, operation: str) -> None:
        if operation in self._broken:
            self._broken.discard(operation)
            raise LookupError("a fault")

    async def append(self, appends: Sequence[Append]) -> Appended:
        self._fail_once("append")
        return await super().append(appends)

    async def follow(self, wanted: Sequence[Follow], most: int = NO_BOUND) -> list[Followed]:
        self._fail_once("follow")
        return await super().follow(wanted, most)


def test_an_unexpected_error_of_a_poll_reaches_its_readers_and_no_others():
    async def scenario(store: Held) -> None:
        desk = Desk(store)
        log = await desk.queue()
        await store.append([Append(OWNER, log.fence, EventChunk(0, 1, event(0)))])
        log.lose()
        with pytest.raises(LookupError):
            await desk.reader(log).read()
        assert [chunk.frames for chunk in await read_to(desk.reader(log), 1)] == [event(0)]

    tried(scenario, lambda: Faulty("follow"))


def test_events_are_committed_after_an_unexpected_error():
    async def scenario(store: Held) -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        desk = Desk(store)
        log = await desk.queue()
        desk.add(log, event(0))
        assert (await first_chunk(desk.reader(log))).frames == event(0)
        assert [type(each["exception"]) for each in told] == [LookupError]

    tried(scenario, lambda: Faulty("append"))


def test_a_chunk_is_cut_at_a_number():
    chunk = EventChunk(4, 3, event(4) + event(5) + event(6))
    assert cut_chunk(chunk, 2) == chunk
    assert cut_chunk(chunk, 5) == EventChunk(5, 2, event(5) + event(6))
    assert cut_chunk(chunk, 7) == EventChunk(7, 0, b"")
