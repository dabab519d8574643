"""What the SQLite store does beyond the contract of all stores: its bounds with clocks that jump, and its file."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import (
    Conversation,
    Effects,
    EventChunk,
    KeptItem,
    KeyValue,
    Member,
    Record,
    StoreFailed,
    TooLarge,
)

Raw = msgspec.Raw
ANN, BEN = "ann", "ben"
DAY = 86_400.0
PLENTY = 1_000_000


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """A store whose calls return when they are done."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            asyncio.run(self.store.close())
        self._closed = True

    def sweep(self) -> None:
        """Let go of what is beyond the bounds, now."""
        self.join(Member("sweeper"))
        self.maintain("sweeper")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            return asyncio.run(getattr(self.store, name)(*given, **named))

        return call


Open = Callable[..., Kept]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "disk"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Open]:
    """Opens a store with these bounds; on disk it is always the same file."""
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'kept.db'}"
    with opener(url, clock) as opened:
        yield opened


@pytest.fixture
def open_file(tmp_path: Path, clock: Clock) -> Iterator[Open]:
    with opener(f"sqlite:{tmp_path / 'kept.db'}", clock) as opened:
        yield opened


@contextlib.contextmanager
def opener(url: str, clock: Clock) -> Iterator[Open]:
    opened: list[Kept] = []

    def begin(max_age: float = DAY, max_size: int = PLENTY) -> Kept:
        opened.append(Kept(SqliteStore(url, max_age, max_size, clock, clock)))
        return opened[-1]

    yield begin
    for kept in opened:
        kept.close()


@pytest.fixture
def kept(open_store: Open) -> Kept:
    return open_store()


def item(id: str, size: int = 0) -> KeptItem:
    """An item, of about this many bytes."""
    return KeptItem(id, Raw(msgspec.json.encode({"id": id, "text": "x" * size})))


def items(*ids: str) -> list[KeptItem]:
    return [item(id) for id in ids]


def ids_of(raws: list[Raw]) -> list[str]:
    return [msgspec.json.decode(raw)["id"] for raw in raws]


def record(id: str, previous: str = "", **fields: Any) -> Record:
    given: dict[str, Any] = {"status": "completed", "fields": b'{"model":"m"}', "response": b'{"id":"r"}', **fields}
    return Record(id, 1.5, previous=previous, **given)


def put(kept: Kept, id: str, previous: str = "", owner: str = ANN, size: int = 0) -> None:
    """A response with one item of input and one of output."""
    kept.save(owner, record(id, previous), [item(f"{id}-in", size)], [item(f"{id}-out")])
    kept.sweep()


def present(kept: Kept, *ids: str) -> list[str]:
    return [id for id in ids if kept.load(ANN, id) is not None]


# Chains


def test_two_continuations_of_one_response_do_not_see_each_other(kept):
    put(kept, "r1")
    put(kept, "left", "r1")
    put(kept, "right", "r1")
    assert ids_of(kept.load_chain(ANN, "right")) == ["r1-in", "r1-out", "right-in", "right-out"]


def test_a_chain_of_a_thousand_links_is_whole(kept):
    async def grow() -> None:
        for place in range(1000):
            previous = f"r{place - 1}" if place else ""
            await kept.store.save(ANN, record(f"r{place}", previous), items(f"i{place}"), ())

    asyncio.run(grow())
    assert ids_of(kept.load_chain(ANN, "r999")) == [f"i{place}" for place in range(1000)]


# References


def test_any_number_of_items_is_found_at_once(kept):
    kept.save(ANN, record("r1"), items("a"), items("b"))
    asked = ["a", *(f"none{place}" for place in range(260_000)), "b"]
    assert list(kept.find_items(ANN, asked)) == ["a", "b"]


# Bounds


def test_events_count_as_bytes_of_their_owner(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "r1")
    clock.now += 1
    kept.join(Member("one"))
    fence = kept.queue(ANN, record("r2", status="queued"), (), Effects(), plan=b"", member="one")
    kept.save(ANN, record("r2"), None, (), guard=fence, last=EventChunk(0, 1, b"e" * 9_990))
    kept.sweep()
    assert present(kept, "r1", "r2") == ["r2"]
    clock.now += 1
    put(kept, "r3")
    assert kept.load_events(ANN, "r2", 0) is None


def test_what_nobody_used_for_too_long_is_let_go(open_store, clock):
    kept = open_store(max_age=DAY)
    put(kept, "old")
    clock.now += DAY / 2
    put(kept, "young")
    clock.now += DAY / 2 + 61
    put(kept, "new")
    assert present(kept, "old", "young", "new") == ["young", "new"]
    assert list(kept.find_items(ANN, ["old-in", "old-out", "young-in"])) == ["young-in"]


def test_a_chain_in_use_does_not_grow_old(open_store, clock):
    kept = open_store(max_age=DAY)
    put(kept, "idle")
    put(kept, "root")
    put(kept, "tip", "root")
    clock.now += DAY - 100
    kept.load_chain(ANN, "tip")
    clock.now += DAY / 2
    put(kept, "new")
    assert present(kept, "idle", "root", "tip") == ["root", "tip"]
    assert ids_of(kept.load_chain(ANN, "tip")) == ["root-in", "root-out", "tip-in", "tip-out"]


def test_a_conversation_in_use_does_not_grow_old(open_store, clock):
    kept = open_store(max_age=DAY)
    kept.put_conversation(ANN, Conversation("idle", 1.0, b"{}"))
    kept.put_conversation(ANN, Conversation("used", 1.0, b"{}"))
    clock.now += DAY - 100
    kept.add_items(ANN, "used", items("a"))
    clock.now += DAY / 2
    put(kept, "new")
    assert kept.load_conversation(ANN, "idle") is None
    assert kept.load_conversation(ANN, "used") is not None


def test_without_a_greatest_age_nothing_grows_old(open_store, clock):
    kept = open_store(max_age=0)
    put(kept, "old")
    clock.now += 10_000 * DAY
    put(kept, "new")
    assert present(kept, "old", "new") == ["old", "new"]


def test_beyond_its_size_it_lets_go_the_least_used_and_no_more(open_store, clock):
    kept = open_store(max_size=10_000)
    names = [f"r{place}" for place in range(20)]
    for name in names:
        clock.now += 1
        put(kept, name, size=1000)
    left = present(kept, *names)
    assert left == names[-len(left) :], "the latest ones stay"
    assert 5 <= len(left) <= 9, "about as many as there is room for"


def test_what_was_just_saved_is_kept_when_something_older_can_go(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "first", size=6000)
    clock.now += 1
    put(kept, "second", size=6000)
    assert present(kept, "first", "second") == ["second"]


def test_a_chain_in_use_is_let_go_last(open_store, clock):
    kept = open_store(max_size=10_000)
    for name, previous in (("root", ""), ("tip", "root"), ("idle", "")):
        clock.now += 1
        put(kept, name, previous, size=2500)
    clock.now += 3700
    kept.load_chain(ANN, "tip")
    clock.now += 1
    put(kept, "new", size=2500)
    assert present(kept, "root", "tip", "idle", "new") == ["root", "tip", "new"]


def test_a_response_saved_again_counts_once(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "other", size=1000)
    for _ in range(20):
        clock.now += 1
        put(kept, "same", size=1000)
    assert present(kept, "other", "same") == ["other", "same"]


def test_what_was_deleted_takes_no_room(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "first", size=1000)
    for place in range(20):
        clock.now += 1
        put(kept, f"r{place}", size=1000)
        kept.delete(ANN, f"r{place}")
    assert present(kept, "first") == ["first"]


def test_the_items_of_a_conversation_take_room(open_store, clock):
    kept = open_store(max_size=10_000)
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    kept.add_items(ANN, "conv", [item("a", 9000)])
    clock.now += 1
    put(kept, "new", size=2000)
    assert kept.load_conversation(ANN, "conv") is None
    assert present(kept, "new") == ["new"]


def test_a_response_beyond_all_bounds_does_not_hold_up_the_store(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "huge", size=50_000)
    clock.now += 1
    put(kept, "small", size=100)
    assert present(kept, "huge", "small") == ["small"]


def test_nobody_loses_anything_to_others_while_he_has_no_more_than_his_part(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "first", size=3000)
    for place in range(30):
        clock.now += 1
        put(kept, f"b{place}", owner=BEN, size=1000)
    assert present(kept, "first") == ["first"]
    left = [place for place in range(30) if kept.load(BEN, f"b{place}") is not None]
    assert left == list(range(30 - len(left), 30))
    assert 4 <= len(left) <= 6, "Ben has the rest"


def test_who_keeps_most_gives_way_to_who_comes_new(open_store, clock):
    kept = open_store(max_size=10_000)
    for place in range(8):
        clock.now += 1
        put(kept, f"r{place}", size=1000)
    clock.now += 1
    put(kept, "new", owner=BEN, size=4000)
    assert kept.load(BEN, "new") is not None
    left = present(kept, *(f"r{place}" for place in range(8)))
    assert left == [f"r{place}" for place in range(8 - len(left), 8)]
    assert len(left) >= 4


def test_one_huge_response_of_one_owner_costs_the_others_nothing(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "first", size=1000)
    clock.now += 1
    put(kept, "huge", owner=BEN, size=50_000)
    assert present(kept, "first") == ["first"]
    clock.now += 1
    put(kept, "second", size=1000)
    assert present(kept, "first", "second") == ["first", "second"]
    assert kept.load(BEN, "huge") is None


def test_an_item_that_was_deleted_takes_no_room(open_store, clock):
    kept = open_store(max_size=10_000)
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    put(kept, "first", size=1000)
    for _ in range(20):
        clock.now += 1
        kept.add_items(ANN, "conv", [item("a", 1000)])
        kept.delete_item(ANN, "conv", "a")
    assert present(kept, "first") == ["first"]


def test_what_is_let_go_gives_its_bytes_back_to_the_disk(open_file, clock, tmp_path):
    kept = open_file(max_size=3_000_000)
    for place in range(10):
        clock.now += 1
        put(kept, f"r{place}", size=1_000_000)
    kept.close()
    assert (tmp_path / "kept.db").stat().st_size < 5_000_000


# Sizes that are known before anything is loaded


def test_what_stood_in_the_conversation_counts_too(kept):
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    kept.add_items(ANN, "conv", [item("a", 1000)])
    saved = record("r1", conversation="conv")
    kept.save(ANN, saved, items("b"), items("c"), Effects(conversation="conv"))
    assert ids_of(kept.load_chain(ANN, "r1")) == ["a", "b", "c"]
    for ask in (lambda: kept.load_chain(ANN, "r1", 1000), lambda: kept.load_input(ANN, "conv", 1000)):
        with pytest.raises(TooLarge):
            ask()


# Who is dead

PAUSE = 2.5
"""Seconds between two heartbeats; a lease is four times as long."""


class Fleet:
    """Two processes that have beaten for a while, each with a run."""

    def __init__(self, kept: Kept, clock: Clock) -> None:
        self.kept = kept
        self.clock = clock
        for member in ("one", "two"):
            kept.join(Member(member))
            queued = record(f"run-{member}", status="queued")
            kept.queue(ANN, queued, (), Effects(), plan=b"", member=member)
        self.taken_after(20.0, "one", "two")

    def taken_after(self, seconds: float, *beating: str) -> float | None:
        """Let these beat for so long, or until the second one takes the run of the first; returns when it does."""
        for pauses in range(1, int(seconds / PAUSE) + 1):
            self.clock.now += PAUSE
            assert [self.kept.beat(member) for member in beating] == [True] * len(beating)
            if self.kept.claim("two", 10):
                return pauses * PAUSE
        return None


@pytest.fixture
def fleet(kept: Kept, clock: Clock) -> Fleet:
    return Fleet(kept, clock)


def test_the_runs_of_a_killed_process_are_taken_when_its_lease_is_over(fleet: Fleet):
    assert fleet.taken_after(100.0, "two") == 10.0 + PAUSE
    assert fleet.kept.beat("one") is False


def test_when_nobody_could_reach_the_store_nobody_takes_anything(fleet: Fleet):
    fleet.clock.now += 30.0
    assert fleet.kept.claim("two", 10) == []
    assert fleet.taken_after(10.0 - PAUSE, "two") is None
    assert fleet.taken_after(100.0, "one", "two") is None


def test_the_runs_of_a_process_that_does_not_come_back_are_taken_a_lease_after_the_store_did(fleet: Fleet):
    fleet.clock.now += 30.0
    assert fleet.taken_after(100.0, "two") == 10.0 + PAUSE
    assert fleet.kept.beat("one") is False


def test_an_outage_shorter_than_a_lease_costs_nobody_his_runs(fleet: Fleet):
    """The last beat of one process was just before the next was due, that of the other one just before the outage."""
    fleet.clock.now += PAUSE - 0.1
    assert fleet.kept.beat("two")
    fleet.clock.now += 9.0
    assert [member.id for member in fleet.kept.list_members(9)] == ["two"]
    assert fleet.kept.claim("two", 10) == []
    assert fleet.taken_after(PAUSE, "two") is None
    assert fleet.taken_after(100.0, "one", "two") is None


# All or nothing


def test_a_write_that_fails_leaves_nothing_and_holds_up_nobody(open_file, tmp_path):
    kept = open_file()
    put(kept, "r1")
    other = sqlite3.connect(tmp_path / "kept.db", isolation_level=None)
    other.execute(
        "CREATE TRIGGER never BEFORE INSERT ON holders WHEN NEW.id = 'r2' BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(StoreFailed):
        put(kept, "r2")
    other.execute("DROP TRIGGER never")
    other.close()
    put(kept, "r3")
    assert present(kept, "r1", "r2", "r3") == ["r1", "r3"]
    assert list(kept.find_items(ANN, ["r2-in", "r3-in"])) == ["r3-in"]


def test_reading_makes_no_file_and_writes_nothing(open_file, tmp_path):
    kept = open_file()
    assert kept.load(ANN, "r1") is None
    assert kept.load_chain(ANN, "r1") is None
    assert list(tmp_path.iterdir()) == []


# Clocks that jump


YEAR = 365 * DAY


@pytest.fixture
def jumping(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Kept, Clock, Clock]]:
    """A store with ten old and ten young responses, its wall clock and its steady clock."""
    wall, steady = Clock(), Clock()
    kept = Kept(SqliteStore(f"sqlite:{tmp_path / 'kept.db'}", 30 * DAY, 0, wall, steady))
    for place in range(20):
        wall.now += DAY
        steady.now += DAY
        put(kept, f"r{place}")
    yield kept, wall, steady
    kept.close()


EVERY = [f"r{place}" for place in range(20)]


@pytest.mark.parametrize("jump", [YEAR, -YEAR, 29 * DAY, -DAY])
def test_a_clock_that_jumps_empties_nothing_at_once(jumping, jump):
    kept, wall, steady = jumping
    wall.now += jump
    for _ in range(10):
        wall.now += 61
        steady.now += 61
        put(kept, "new")
    assert present(kept, *EVERY) == EVERY


def test_a_clock_that_was_put_right_in_time_has_cost_nothing(jumping):
    kept, wall, steady = jumping
    wall.now += YEAR
    for _ in range(60):
        wall.now += 61
        steady.now += 61
        put(kept, "new")
    wall.now -= YEAR
    for _ in range(5):
        wall.now += DAY
        steady.now += DAY
        put(kept, "new")
    assert present(kept, *EVERY) == EVERY


def test_time_that_really_passed_is_made_up_for_within_a_day(jumping, tmp_path):
    kept, wall, steady = jumping
    kept.close()
    wall.now += 40 * DAY  # while nothing ran
    again = Kept(SqliteStore(f"sqlite:{tmp_path / 'kept.db'}", 30 * DAY, 0, wall, steady))
    put(again, "new")
    assert present(again, *EVERY) == EVERY
    left: list[int] = []
    for _ in range(48):
        wall.now += DAY / 24
        steady.now += DAY / 24
        put(again, "new")
        left.append(len(present(again, *EVERY)))
    again.close()
    assert left == sorted(left, reverse=True), "one after the other"
    assert len(set(left)) > 10
    assert left[-1] == 0


def test_a_clock_that_went_back_does_not_let_go_of_the_newest_first(tmp_path):
    wall, steady = Clock(), Clock()
    kept = Kept(SqliteStore(f"sqlite:{tmp_path / 'kept.db'}", 0, 10_000, wall, steady))
    put(kept, "before", size=2500)
    wall.now -= YEAR
    for name in ("one", "two", "three", "four"):
        steady.now += 1
        wall.now += 1
        put(kept, name, size=2500)
    assert present(kept, "before", "one", "two", "three", "four")[-2:] == ["three", "four"]
    assert present(kept, "before") == []
    kept.close()


# The file


def test_there_is_no_file_until_there_is_something_to_keep(open_file, tmp_path):
    kept = open_file()
    kept.store.check()
    assert list(tmp_path.iterdir()) == []
    put(kept, "r1")
    assert (tmp_path / "kept.db").exists()


def test_a_file_is_opened_again_with_all_that_was_in_it(open_file):
    first = open_file()
    put(first, "r1")
    first.save(ANN, record("r2", "r1"), items("r2-in"), items("r2-out"), Effects(("r1", "r2")))
    first.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    first.add_items(ANN, "conv", items("a"))
    first.close()
    again = open_file()
    assert again.load(ANN, "r1") == record("r1", continuation="r2")
    assert ids_of(again.load_chain(ANN, "r2")) == ["r1-in", "r1-out", "r2-in", "r2-out"]
    assert ids_of(again.load_input(ANN, "conv")) == ["a"]


def test_a_file_opened_again_is_still_bounded_by_what_was_in_it(open_file, clock):
    first = open_file(max_size=10_000)
    put(first, "old", size=7000)
    first.close()
    again = open_file(max_size=10_000)
    assert present(again, "old", "new") == ["old"]
    clock.now += 1
    put(again, "new", size=7000)
    assert present(again, "old", "new") == ["new"]


def test_what_was_committed_is_there_without_a_close(open_file):
    put(open_file(), "r1")
    assert present(open_file(), "r1") == ["r1"]


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path, open_file):
    (tmp_path / "kept.db").write_bytes(b"This is a letter, not a database. " * 100)
    with pytest.raises(StoreFailed, match="not a database"):
        open_file().store.check()


def test_a_missing_directory_is_a_clear_error(tmp_path, clock):
    with opener(f"sqlite:{tmp_path / 'nowhere' / 'kept.db'}", clock) as opened:
        with pytest.raises(StoreFailed, match=f"no directory {tmp_path / 'nowhere'}"):
            opened().store.check()


def test_a_directory_in_place_of_the_file_is_a_clear_error(tmp_path, open_file):
    (tmp_path / "kept.db").mkdir()
    with pytest.raises(StoreFailed):
        open_file().store.check()


def test_a_directory_in_which_nothing_can_be_written_is_a_clear_error(tmp_path, clock):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):  # root may write everywhere, but not here
        folder = Path("/proc")
    if not folder.exists():
        pytest.skip("another platform: there is no directory that this user cannot write to")
    with opener(f"sqlite:{folder / 'kept.db'}", clock) as opened, pytest.raises(StoreFailed):
        opened().store.check()


# What a turn leaves to the next


def row(owner: str, key: str, value: bytes = b"1", kind: str = "call") -> KeyValue:
    return KeyValue(owner, kind, key.encode(), value)


def values(kept: Kept, owner: str, *keys: str, kind: str = "call") -> list[bytes | None]:
    return kept.get_values(owner, [(kind, key.encode()) for key in keys])


def test_a_kept_value_outlives_the_process_and_grows_old(open_file: Open, clock: Clock):
    first = open_file()
    first.put_values([row(ANN, "a")])
    first.close()
    again = open_file()
    assert values(again, ANN, "a") == [b"1"]
    clock.now += DAY + 1
    assert values(again, ANN, "a") == [None]


def test_kept_values_and_responses_share_their_bounds(open_store: Open, clock: Clock):
    """Whoever keeps most gives way, with what was used longest ago."""
    kept = open_store(max_size=10_000)
    kept.put_values([row(BEN, "quiet", b"q" * 1000)])
    for number in range(20):
        clock.now += 1
        kept.put_values([row(ANN, str(number), b"x" * 1000)])
    kept.sweep()
    found = values(kept, ANN, *map(str, range(20)))
    assert found[-1] is not None
    assert found[0] is None
    assert sum(value is not None for value in found) < 9
    assert values(kept, BEN, "quiet") == [b"q" * 1000]
