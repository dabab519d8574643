"""The store keeps what it was given, for whom it was given, within its bounds, in memory and on disk alike."""

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
from toolwire.memory.store import Conversation, Effects, EventChunk, KeptItem, KeptRow, Record, StoreFailed, TooLarge

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


def present(kept: Kept, *ids: str) -> list[str]:
    return [id for id in ids if kept.load(ANN, id) is not None]


# What is kept


def test_a_saved_response_comes_back_as_it_was(kept):
    saved = record("r1", "r0", conversation="conv", continuation="r2")
    kept.save(ANN, saved, items("a", "b"), items("c"))
    assert kept.load(ANN, "r1") == saved
    assert kept.input(ANN, "r1") == [item("a").raw, item("b").raw]
    assert kept.output(ANN, "r1") == [item("c").raw]


def test_events_are_read_by_number_chunk_by_chunk(kept):
    chunks = [EventChunk(0, b"event: a\n\nevent: b\n\n"), EventChunk(2, b"event: c\n\n")]
    kept.save(ANN, record("r1"), (), (), events=iter(chunks))
    assert [kept.events(ANN, "r1", number) for number in range(4)] == [chunks[0], chunks[0], chunks[1], chunks[1]]
    assert kept.events(BEN, "r1", 0) is None
    assert kept.delete(ANN, "r1")
    assert kept.events(ANN, "r1", 0) is None


def test_events_count_as_bytes_of_their_owner(open_store, clock):
    kept = open_store(max_size=10_000)
    put(kept, "r1")
    clock.now += 1
    kept.save(ANN, record("r2"), (), (), events=[EventChunk(0, b"e" * 9_990)])
    assert present(kept, "r1", "r2") == ["r2"]
    clock.now += 1
    put(kept, "r3")
    assert kept.events(ANN, "r2", 0) is None


def test_bytes_are_kept_letter_by_letter(kept):
    raw = Raw('{"text":"Zürich \\u2603 \U0001f326\\u0000","number":1.0e400}'.encode())
    kept.save(ANN, record("r1", response=b'{"a": [1,  2]}'), [KeptItem("a", raw)], ())
    assert kept.input(ANN, "r1") == [raw]
    assert kept.load(ANN, "r1").response == b'{"a": [1,  2]}'


def test_what_was_never_saved_is_not_there(kept):
    assert kept.load(ANN, "r1") is None
    assert kept.input(ANN, "r1") == []
    assert kept.chain(ANN, "r1") is None
    assert kept.find(ANN, ["a"]) == {}
    assert kept.conversation(ANN, "conv") is None
    assert kept.delete(ANN, "r1") is False


def test_a_new_state_replaces_the_old_one_and_leaves_the_input(kept):
    kept.save(ANN, record("r1", status="queued", response=b"1"), items("a"), ())
    kept.save(ANN, record("r1", status="completed", response=b"2"), None, items("b"), events=[EventChunk(0, b"f")])
    assert kept.load(ANN, "r1") == record("r1", status="completed", response=b"2")
    assert kept.events(ANN, "r1", 0) == EventChunk(0, b"f")
    assert (ids_of(kept.input(ANN, "r1")), ids_of(kept.output(ANN, "r1"))) == (["a"], ["b"])


def test_a_new_state_leaves_the_continuation(kept):
    put(kept, "r1")
    kept.link(ANN, "r1", "r2")
    put(kept, "r1")
    assert kept.load(ANN, "r1").continuation == "r2"


def test_items_keep_their_order_beyond_nine(kept):
    many = [f"i{place}" for place in range(30)]
    kept.save(ANN, record("r1"), items(*many), items(*reversed(many)))
    assert ids_of(kept.input(ANN, "r1")) == many
    assert ids_of(kept.output(ANN, "r1")) == many[::-1]


# Chains


def test_a_chain_is_all_input_and_output_from_the_oldest_on(kept):
    kept.save(ANN, record("r1"), items("a", "b"), items("c", "d"))
    kept.save(ANN, record("r2", "r1"), items("e"), items("f"))
    kept.save(ANN, record("r3", "r2"), (), items("g"))
    assert "".join(ids_of(kept.chain(ANN, "r3"))) == "abcdefg"
    assert "".join(ids_of(kept.chain(ANN, "r2"))) == "abcdef"


def test_two_continuations_of_one_response_do_not_see_each_other(kept):
    put(kept, "r1")
    put(kept, "left", "r1")
    put(kept, "right", "r1")
    assert ids_of(kept.chain(ANN, "right")) == ["r1-in", "r1-out", "right-in", "right-out"]


def test_a_chain_of_a_thousand_links_is_whole(kept):
    async def grow() -> None:
        for place in range(1000):
            previous = f"r{place - 1}" if place else ""
            await kept.store.save(ANN, record(f"r{place}", previous), items(f"i{place}"), ())

    asyncio.run(grow())
    assert ids_of(kept.chain(ANN, "r999")) == [f"i{place}" for place in range(1000)]


def test_a_response_without_items_is_a_chain_all_the_same(kept):
    kept.save(ANN, record("r1"), (), ())
    assert kept.chain(ANN, "r1") == []


@pytest.mark.parametrize("gone", ["r1", "r2", "r3"])
def test_a_chain_with_a_missing_link_is_no_chain(kept, gone):
    put(kept, "r1")
    put(kept, "r2", "r1")
    put(kept, "r3", "r2")
    assert kept.missing_link(ANN, "r3") == ""
    kept.delete(ANN, gone)
    assert kept.chain(ANN, "r3") is None
    assert kept.missing_link(ANN, "r3") == gone


def test_a_chain_does_not_lead_through_what_belongs_to_others(kept):
    put(kept, "r1", owner=BEN)
    put(kept, "r2", "r1")
    assert kept.chain(ANN, "r2") is None


def test_a_chain_does_not_lead_through_a_conversation(kept):
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    put(kept, "r1", "conv")
    assert kept.chain(ANN, "r1") is None


def test_a_link_says_what_came_of_a_response(kept):
    put(kept, "r1")
    kept.link(ANN, "r1", "r2")
    assert kept.load(ANN, "r1").continuation == "r2"


# Pages


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_the_pages_of_an_input_are_all_of_it_once(kept, order, limit):
    every = [f"i{place}" for place in range(7)]
    kept.save(ANN, record("r1"), items(*every), items("out"))
    seen: list[str] = []
    after = ""
    while True:
        page = kept.page(ANN, "r1", after, limit, order)
        seen += [each.id for each in page.items]
        assert len(page.items) == limit or not page.has_more
        if not page.has_more:
            break
        after = seen[-1]
    assert seen == (every if order == "asc" else every[::-1])


def test_a_page_holds_the_items_themselves(kept):
    kept.save(ANN, record("r1"), items("a", "b"), ())
    page = kept.page(ANN, "r1", "", 1, "asc")
    assert (page.items, page.has_more) == ([item("a")], True)


def test_a_page_after_the_last_item_is_empty(kept):
    kept.save(ANN, record("r1"), items("a", "b"), ())
    page = kept.page(ANN, "r1", "b", 5, "asc")
    assert (page.items, page.has_more) == ([], False)


@pytest.mark.parametrize("after", ["nothing", "out"])
def test_there_is_no_page_after_what_is_no_item_of_the_input(kept, after):
    kept.save(ANN, record("r1"), items("a"), items("out"))
    assert kept.page(ANN, "r1", after, 5, "asc") is None


# References


def test_items_are_found_wherever_they_are_kept(kept):
    kept.save(ANN, record("r1"), items("a"), items("b"))
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    kept.add_items(ANN, "conv", items("c"))
    assert kept.find(ANN, ["a", "b", "c", "d"]) == {id: item(id).raw for id in "abc"}


def test_any_number_of_items_is_found_at_once(kept):
    kept.save(ANN, record("r1"), items("a"), items("b"))
    asked = ["a", *(f"none{place}" for place in range(260_000)), "b"]
    assert list(kept.find(ANN, asked)) == ["a", "b"]


def test_what_was_deleted_is_not_found_any_more(kept):
    put(kept, "r1")
    put(kept, "r2")
    assert kept.delete(ANN, "r1") is True
    assert kept.delete(ANN, "r1") is False
    assert present(kept, "r1", "r2") == ["r2"]
    assert list(kept.find(ANN, ["r1-in", "r1-out", "r2-in"])) == ["r2-in"]
    assert kept.input(ANN, "r1") == []


# Conversations


def test_a_conversation_grows_at_its_end(kept):
    kept.put_conversation(ANN, Conversation("conv", 7.0, b'{"a":"b"}'))
    kept.add_items(ANN, "conv", items("a", "b"))
    kept.add_items(ANN, "conv", items("c"))
    assert kept.conversation(ANN, "conv") == Conversation("conv", 7.0, b'{"a":"b"}')
    assert ids_of(kept.input(ANN, "conv")) == ["a", "b", "c"]
    assert [each.id for each in kept.page(ANN, "conv", "", 2, "desc").items] == ["c", "b"]


def test_an_item_taken_out_of_a_conversation_leaves_the_others_in_order(kept):
    kept.put_conversation(ANN, Conversation("conv", 7.0, b"{}"))
    kept.add_items(ANN, "conv", items("a", "b", "c"))
    assert kept.delete_item(ANN, "conv", "c") is True
    assert kept.delete_item(ANN, "conv", "c") is False
    kept.add_items(ANN, "conv", items("d"))
    assert ids_of(kept.input(ANN, "conv")) == ["a", "b", "d"]


def test_new_metadata_leaves_the_items_of_a_conversation(kept):
    kept.put_conversation(ANN, Conversation("conv", 7.0, b"{}"))
    kept.add_items(ANN, "conv", items("a"))
    kept.put_conversation(ANN, Conversation("conv", 7.0, b'{"new":"yes"}'))
    assert kept.conversation(ANN, "conv").metadata == b'{"new":"yes"}'
    assert ids_of(kept.input(ANN, "conv")) == ["a"]


def test_a_conversation_is_no_response_and_a_response_no_conversation(kept):
    kept.put_conversation(ANN, Conversation("conv", 7.0, b"{}"))
    put(kept, "r1")
    assert kept.load(ANN, "conv") is None
    assert kept.conversation(ANN, "r1") is None
    assert kept.chain(ANN, "conv") is None


def test_a_deleted_conversation_takes_its_items_along(kept):
    kept.put_conversation(ANN, Conversation("conv", 7.0, b"{}"))
    kept.add_items(ANN, "conv", items("a"))
    assert kept.delete(ANN, "conv", "conversation") is True
    assert kept.conversation(ANN, "conv") is None
    assert kept.find(ANN, ["a"]) == {}


# Owners


def test_nobody_reads_what_belongs_to_others(kept):
    put(kept, "r1")
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    kept.add_items(ANN, "conv", items("a"))
    assert kept.load(BEN, "r1") is None
    assert kept.input(BEN, "r1") == kept.output(BEN, "r1") == kept.input(BEN, "conv") == []
    assert kept.chain(BEN, "r1") is None
    assert kept.find(BEN, ["r1-in", "r1-out", "a"]) == {}
    assert kept.conversation(BEN, "conv") is None
    assert kept.page(BEN, "r1", "r1-in", 5, "asc") is None
    assert kept.page(BEN, "r1", "", 5, "asc").items == []


def test_nobody_changes_what_belongs_to_others(kept):
    put(kept, "r1")
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    kept.add_items(ANN, "conv", items("a"))
    kept.link(BEN, "r1", "r2")
    assert kept.delete(BEN, "r1") is False
    assert kept.delete(BEN, "conv") is False
    assert kept.delete_item(BEN, "conv", "a") is False
    kept.put_conversation(BEN, Conversation("conv", 1.0, b'{"by":"ben"}'))
    assert kept.load(ANN, "r1").continuation == ""
    assert kept.conversation(ANN, "conv").metadata == b"{}"
    assert ids_of(kept.input(ANN, "conv")) == ["a"]


def test_an_id_that_is_taken_cannot_be_saved_over_by_others(kept):
    put(kept, "r1")
    kept.save(BEN, record("r1", response=b"ben"), items("ben-in"), items("ben-out"))
    assert kept.load(ANN, "r1") == record("r1")
    assert ids_of(kept.chain(ANN, "r1")) == ["r1-in", "r1-out"]


# Bounds


def test_what_nobody_used_for_too_long_is_let_go(open_store, clock):
    kept = open_store(max_age=DAY)
    put(kept, "old")
    clock.now += DAY / 2
    put(kept, "young")
    clock.now += DAY / 2 + 61
    put(kept, "new")
    assert present(kept, "old", "young", "new") == ["young", "new"]
    assert list(kept.find(ANN, ["old-in", "old-out", "young-in"])) == ["young-in"]


def test_a_chain_in_use_does_not_grow_old(open_store, clock):
    kept = open_store(max_age=DAY)
    put(kept, "idle")
    put(kept, "root")
    put(kept, "tip", "root")
    clock.now += DAY - 100
    kept.chain(ANN, "tip")
    clock.now += DAY / 2
    put(kept, "new")
    assert present(kept, "idle", "root", "tip") == ["root", "tip"]
    assert ids_of(kept.chain(ANN, "tip")) == ["root-in", "root-out", "tip-in", "tip-out"]


def test_a_conversation_in_use_does_not_grow_old(open_store, clock):
    kept = open_store(max_age=DAY)
    kept.put_conversation(ANN, Conversation("idle", 1.0, b"{}"))
    kept.put_conversation(ANN, Conversation("used", 1.0, b"{}"))
    clock.now += DAY - 100
    kept.add_items(ANN, "used", items("a"))
    clock.now += DAY / 2
    put(kept, "new")
    assert kept.conversation(ANN, "idle") is None
    assert kept.conversation(ANN, "used") is not None


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
    clock.now += 1
    kept.chain(ANN, "tip")
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
    assert kept.conversation(ANN, "conv") is None
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


def test_items_for_a_conversation_that_is_gone_are_left_out(kept):
    kept.add_items(ANN, "gone", items("a"))
    assert kept.find(ANN, ["a"]) == {}


def test_what_is_let_go_gives_its_bytes_back_to_the_disk(open_file, clock, tmp_path):
    kept = open_file(max_size=3_000_000)
    for place in range(10):
        clock.now += 1
        put(kept, f"r{place}", size=1_000_000)
    kept.close()
    assert (tmp_path / "kept.db").stat().st_size < 5_000_000


# Sizes that are known before anything is loaded


def test_a_chain_that_is_too_large_is_not_loaded(kept):
    put(kept, "r1", size=1000)
    put(kept, "r2", "r1", size=1000)
    size = sum(map(len, kept.chain(ANN, "r2")))
    assert len(kept.chain(ANN, "r2", size)) == 4
    with pytest.raises(TooLarge) as raised:
        kept.chain(ANN, "r2", size - 1)
    assert raised.value.size == size


def test_what_stood_in_the_conversation_counts_too(kept):
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    kept.add_items(ANN, "conv", [item("a", 1000)])
    saved = record("r1", conversation="conv")
    kept.save(ANN, saved, items("b"), items("c"), Effects(conversation="conv"))
    assert ids_of(kept.chain(ANN, "r1")) == ["a", "b", "c"]
    for ask in (lambda: kept.chain(ANN, "r1", 1000), lambda: kept.input(ANN, "conv", 1000)):
        with pytest.raises(TooLarge):
            ask()


def test_an_item_counts_as_often_as_it_is_referred_to(kept):
    put(kept, "r1", size=1000)
    size = len(kept.find(ANN, ["r1-in"])["r1-in"])
    assert kept.find(ANN, ["r1-in"] * 3, 3 * size) == {"r1-in": item("r1-in", 1000).raw}
    with pytest.raises(TooLarge):
        kept.find(ANN, ["r1-in"] * 3, 3 * size - 1)


def test_a_page_ends_before_it_is_too_large_and_goes_on(kept):
    kept.save(ANN, record("r1"), [item(f"i{place}", 1000) for place in range(5)], ())
    page = kept.page(ANN, "r1", "", 5, "asc", 2500)
    assert ([each.id for each in page.items], page.has_more) == (["i0", "i1"], True)
    page = kept.page(ANN, "r1", "i1", 5, "asc", 10)
    assert ([each.id for each in page.items], page.has_more) == (["i2"], True)
    page = kept.page(ANN, "r1", "i2", 5, "asc", 2500)
    assert ([each.id for each in page.items], page.has_more) == (["i3", "i4"], False)


def test_one_item_of_a_conversation_is_found(kept):
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    kept.add_items(ANN, "conv", items("a", "b"))
    assert kept.item(ANN, "conv", "b") == item("b").raw
    assert kept.item(BEN, "conv", "b") is None
    assert kept.item(ANN, "conv", "c") is None


# All or nothing


def test_a_response_is_kept_with_all_that_it_changes(kept):
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    called = KeptItem("c", Raw(b'{"id":"c","call_id":"call_1"}'))
    kept.save(ANN, record("r1", conversation="conv"), (), [called], Effects(conversation="conv"))
    put(kept, "other")
    effects = Effects(("other", "r2"), "conv", ("call_1",))
    kept.save(ANN, record("r2", conversation="conv"), items("d"), items("e"), effects)
    assert kept.load(ANN, "r1").continuation == "r2"
    assert kept.load(ANN, "other").continuation == "r2"
    assert ids_of(kept.input(ANN, "conv")) == ["c", "d", "e"]


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
    assert list(kept.find(ANN, ["r2-in", "r3-in"])) == ["r3-in"]


def test_reading_makes_no_file_and_writes_nothing(open_file, tmp_path):
    kept = open_file()
    assert kept.load(ANN, "r1") is None
    assert kept.chain(ANN, "r1") is None
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


# Many at once


def test_many_savers_at_once_lose_nothing(kept):
    async def one(place: int) -> None:
        await kept.store.save(ANN, record(f"r{place}"), items(f"{place}-in"), items(f"{place}-out"))
        assert await kept.store.load(ANN, f"r{place}") == record(f"r{place}")

    async def all_of_them() -> None:
        await asyncio.gather(*(one(place) for place in range(300)))

    asyncio.run(all_of_them())
    assert all(ids_of(kept.chain(ANN, f"r{place}")) == [f"{place}-in", f"{place}-out"] for place in range(300))


def test_many_writers_of_one_conversation_lose_nothing(kept):
    kept.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))

    async def all_of_them() -> None:
        await asyncio.gather(*(kept.store.add_items(ANN, "conv", items(f"{n}a", f"{n}b")) for n in range(100)))

    asyncio.run(all_of_them())
    found = ids_of(kept.input(ANN, "conv"))
    assert sorted(found) == sorted(f"{n}{side}" for n in range(100) for side in "ab")
    assert all(found[place + 1] == found[place][:-1] + "b" for place in range(0, 200, 2)), "pairs stay together"


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
    put(first, "r2", "r1")
    first.link(ANN, "r1", "r2")
    first.put_conversation(ANN, Conversation("conv", 1.0, b"{}"))
    first.add_items(ANN, "conv", items("a"))
    first.close()
    again = open_file()
    assert again.load(ANN, "r1") == record("r1", continuation="r2")
    assert ids_of(again.chain(ANN, "r2")) == ["r1-in", "r1-out", "r2-in", "r2-out"]
    assert ids_of(again.input(ANN, "conv")) == ["a"]


def test_a_file_opened_again_is_still_bounded_by_what_was_in_it(open_file, clock):
    first = open_file(max_size=10_000)
    put(first, "old", size=7000)
    first.close()
    clock.now += 1
    again = open_file(max_size=10_000)
    put(again, "new", size=7000)
    assert present(again, "old", "new") == ["new"]


def test_what_was_committed_is_there_without_a_close(open_file):
    put(open_file(), "r1")
    assert present(open_file(), "r1") == ["r1"]


def test_unfinished_responses_of_an_earlier_process_are_over(open_file):
    first = open_file()
    for owner, id, status in (
        (ANN, "r1", "queued"),
        (BEN, "r2", "in_progress"),
        (ANN, "r3", "completed"),
        (ANN, "r4", "incomplete"),
    ):
        first.save(owner, record(id, status=status), items(f"{id}-in"), ())
    first.close()
    again = open_file()

    def as_failed(record: Record) -> Record:
        return msgspec.structs.replace(record, status="failed", response=b"failed")

    again.fail_unfinished(as_failed)
    assert again.load(ANN, "r1") == record("r1", status="failed", response=b"failed")
    assert again.load(BEN, "r2") == record("r2", status="failed", response=b"failed")
    assert again.load(ANN, "r3") == record("r3")
    assert again.load(ANN, "r4").status == "incomplete"
    assert ids_of(again.input(ANN, "r1")) == ["r1-in"]


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path, open_file):
    (tmp_path / "kept.db").write_bytes(b"This is a letter, not a database. " * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        open_file().store.check()


def test_a_missing_directory_is_a_clear_error(tmp_path, clock):
    with opener(f"sqlite:{tmp_path / 'nowhere' / 'kept.db'}", clock) as opened:
        with pytest.raises(sqlite3.OperationalError, match=f"no directory {tmp_path / 'nowhere'}"):
            opened().store.check()


def test_a_directory_in_place_of_the_file_is_a_clear_error(tmp_path, open_file):
    (tmp_path / "kept.db").mkdir()
    with pytest.raises(sqlite3.OperationalError):
        open_file().store.check()


def test_a_directory_in_which_nothing_can_be_written_is_a_clear_error(tmp_path, clock):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):  # root may write everywhere, but not here
        folder = Path("/proc")
    if not folder.exists():
        pytest.skip("there is no directory that this user cannot write to")
    with opener(f"sqlite:{folder / 'kept.db'}", clock) as opened, pytest.raises(sqlite3.OperationalError):
        opened().store.check()


# What a turn leaves to the next


def row(owner: str, key: str, value: bytes = b"1", kind: str = "call") -> KeptRow:
    return KeptRow(owner, kind, key.encode(), value)


def values(kept: Kept, owner: str, *keys: str, kind: str = "call") -> list[bytes | None]:
    return kept.get_kept(owner, [(kind, key.encode()) for key in keys])


def test_a_kept_value_is_found_by_its_owner_kind_and_key_alone(open_store: Open):
    kept = open_store()
    kept.put_kept([row(ANN, "a"), row(ANN, "b", b"2"), row(ANN, "a", b"3", "origin")])
    kept.put_kept([row(ANN, "b", b"4")])
    assert values(kept, ANN, "b", "c", "a") == [b"4", None, b"1"]
    assert values(kept, ANN, "a", kind="origin") == [b"3"]
    assert values(kept, BEN, "a", "b") == [None, None]


def test_a_kept_value_outlives_the_process_and_grows_old(open_file: Open, clock: Clock):
    first = open_file()
    first.put_kept([row(ANN, "a")])
    first.close()
    again = open_file()
    assert values(again, ANN, "a") == [b"1"]
    clock.now += DAY + 1
    assert values(again, ANN, "a") == [None]


def test_kept_values_and_responses_share_their_bounds(open_store: Open, clock: Clock):
    """Whoever keeps most gives way, with what was used longest ago."""
    kept = open_store(max_size=10_000)
    kept.put_kept([row(BEN, "quiet", b"q" * 1000)])
    for number in range(20):
        clock.now += 1
        kept.put_kept([row(ANN, str(number), b"x" * 1000)])
    found = values(kept, ANN, *map(str, range(20)))
    assert found[-1] is not None
    assert found[0] is None
    assert sum(value is not None for value in found) < 9
    assert values(kept, BEN, "quiet") == [b"q" * 1000]


def test_no_more_kept_bytes_are_read_at_once_than_may_be(open_store: Open):
    kept = open_store()
    kept.put_kept([row(ANN, key, b"x" * 100) for key in "abc"])
    found = kept.get_kept(ANN, [("call", key.encode()) for key in "abc"], 150)
    assert [value is not None for value in found] == [True, True, False]
