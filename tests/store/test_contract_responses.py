"""Responses, conversations and values: kept as they were given, for whom they were given, by whichever process."""

import time
from typing import Any

import pytest

from tests.store.examples import (
    ANN,
    BEN,
    Raw,
    appended,
    events,
    ids_of,
    item,
    items,
    joined,
    present,
    put,
    queued,
    record,
)
from tests.store.place import Place, Users, call, wait_until
from toolwire.memory.store import Append, Conversation, Effects, KeptItem, KeyValue, Overtaken, TooLarge

CONVERSATION = Conversation("conv", 7.0, b'{"a":"b"}')


@pytest.fixture
def conversation(store: Users) -> str:
    store.put_conversation(ANN, CONVERSATION)
    return CONVERSATION.id


# What is kept


def test_a_saved_response_comes_back_as_it_was(store):
    saved = record("r1", "r0", conversation="conv", continuation="r2")
    store.save(ANN, saved, items("a", "b"), items("c"))
    assert store.load(ANN, "r1") == saved
    assert store.load_input(ANN, "r1") == [item("a").raw, item("b").raw]
    assert store.load_output(ANN, "r1") == [item("c").raw]


def test_bytes_are_kept_letter_by_letter(store):
    raw = Raw('{"text":"Zürich \\u2603 \U0001f326\\u0000","number":1.0e400}'.encode())
    store.save(ANN, record("r1", response=b'{"a": [1,  2]}'), [KeptItem("a", raw)], ())
    assert store.load_input(ANN, "r1") == [raw]
    assert store.load(ANN, "r1").response == b'{"a": [1,  2]}'


def test_responses_are_listed_by_owner_or_all_the_last_used_first(store):
    for number, owner in enumerate((ANN, BEN, ANN)):
        store.save(owner, record(f"r{number}", response=b'{"a":1}'), items("a"), ())
        time.sleep(0.01)
    store.put_conversation(ANN, CONVERSATION)

    def listed(owner: str | None, limit: int = 9, most: int = 1000) -> list[tuple[str, str, bytes]]:
        found = store.list_recent(owner, limit, most)
        assert {each.record.fields for each in found} <= {b""}
        return [(each.owner, each.record.id, each.record.response) for each in found]

    a, b, c = ((owner, f"r{n}", b'{"a":1}') for n, owner in enumerate((ANN, BEN, ANN)))
    assert listed(None) == [c, b, a]
    assert listed(ANN) == [c, a]
    assert listed("nobody") == []
    assert listed(None, limit=2) == [c, b]
    assert listed(None, most=14) == [c, b, (*a[:2], b"")], "what is too much comes without its body"


def test_what_was_never_saved_is_not_there(store):
    assert store.load(ANN, "r1") is None
    assert store.load_input(ANN, "r1") == store.load_output(ANN, "r1") == []
    assert store.load_chain(ANN, "r1") is None
    assert store.find_missing_link(ANN, "r1") == "r1"
    assert store.find_items(ANN, ["a"]) == {}
    assert store.load_conversation(ANN, "conv") is None
    assert store.load_item(ANN, "conv", "a") is None
    assert store.delete(ANN, "r1") is False
    assert store.delete_item(ANN, "conv", "a") is False


def test_a_new_state_replaces_the_old_one_and_leaves_the_input(store):
    store.save(ANN, record("r1", status="in_progress", response=b"1"), items("a"), ())
    store.save(ANN, record("r1", response=b"2"), None, items("b"))
    assert store.load(ANN, "r1") == record("r1", response=b"2")
    assert (ids_of(store.load_input(ANN, "r1")), ids_of(store.load_output(ANN, "r1"))) == (["a"], ["b"])


def test_a_response_that_is_over_stays_as_it_is(store, conversation):
    effects = Effects(conversation=conversation)
    for response in (b"1", b"2"):
        store.save(ANN, record("r1", response=response, conversation=conversation), items("a"), items("b"), effects)
    assert store.load(ANN, "r1").response == b"1"
    assert ids_of(store.load_input(ANN, conversation)) == ["a", "b"], "once"


def test_a_response_saved_by_many_at_once_is_kept_once(store, conversation):
    saved = record("r1", conversation=conversation)
    effects = Effects(conversation=conversation)
    store.at_once(*(call("save", ANN, saved, items("a"), items("b"), effects) for _ in range(9)))
    assert store.load(ANN, "r1") == saved
    assert ids_of(store.load_input(ANN, conversation)) == ["a", "b"]


def test_items_keep_their_order_beyond_nine(store):
    many = [f"i{place}" for place in range(30)]
    store.save(ANN, record("r1"), items(*many), items(*reversed(many)))
    assert ids_of(store.load_input(ANN, "r1")) == many
    assert ids_of(store.load_output(ANN, "r1")) == many[::-1]


def test_what_was_deleted_is_not_found_any_more(store):
    put(store, "r1")
    put(store, "r2")
    assert store.delete(ANN, "r1") is True
    assert store.delete(ANN, "r1") is False
    assert present(store, "r1", "r2") == ["r2"]
    assert list(store.find_items(ANN, ["r1-in", "r1-out", "r2-in"])) == ["r2-in"]
    assert store.load_input(ANN, "r1") == []


def test_the_numbers_for_operators_say_how_much_there_is(store, conversation):
    put(store, "r1", size=1000)
    put(store, "r2", owner=BEN, size=1000)
    joined(store, "one")
    queued(store, "r3", "one")
    found = store.stats()
    assert (found.responses, found.conversations, found.runs, found.members) == (3, 1, 1, 1)
    assert 2000 < found.bytes < 4000


# Chains


def test_a_chain_is_all_input_and_output_from_the_oldest_on(store):
    store.save(ANN, record("r1"), items("a", "b"), items("c", "d"))
    store.save(ANN, record("r2", "r1"), items("e"), items("f"))
    store.save(ANN, record("r3", "r2"), (), items("g"))
    assert "".join(ids_of(store.load_chain(ANN, "r3"))) == "abcdefg"
    assert "".join(ids_of(store.load_chain(ANN, "r2"))) == "abcdef"
    store.save(ANN, record("r0"), (), ())
    assert store.load_chain(ANN, "r0") == []


def test_a_chain_that_began_in_a_conversation_has_what_stood_before(store, conversation):
    store.add_items(ANN, conversation, items("a"))
    saved = record("r1", conversation=conversation)
    store.save(ANN, saved, items("b"), items("c"), Effects(conversation=conversation))
    store.add_items(ANN, conversation, items("later"))
    store.save(ANN, record("r2", "r1"), items("d"), items("e"))
    assert "".join(ids_of(store.load_chain(ANN, "r2"))) == "abcde"


@pytest.mark.parametrize("gone", ["r1", "r2", "r3"])
def test_a_chain_with_a_missing_link_is_no_chain(store, gone):
    for id, previous in (("r1", ""), ("r2", "r1"), ("r3", "r2")):
        if id != gone:
            put(store, id, previous)
    assert store.load_chain(ANN, "r3") is None
    assert store.find_missing_link(ANN, "r3") == gone


@pytest.mark.parametrize("gone", [("r1",), ("r2",), ("r1", "r2"), ("r2", "r1")])
def test_a_chain_is_whole_though_links_of_it_were_deleted(store, gone):
    put(store, "r1")
    put(store, "r2", "r1")
    put(store, "r3", "r2")
    whole = store.load_chain(ANN, "r3")
    for id in gone:
        assert store.delete(ANN, id)
    assert store.load_chain(ANN, "r3") == whole
    assert store.find_missing_link(ANN, "r3") == ""
    for id in gone:
        assert not store.delete(ANN, id)
        assert (store.load(ANN, id), store.load_chain(ANN, id)) == (None, None)
        assert (store.load_input(ANN, id), store.load_output(ANN, id)) == ([], [])
        assert store.find_items(ANN, [f"{id}-in", f"{id}-out"]) == {}
    assert [each.record.id for each in store.list_recent(ANN, 9, 1000) if each.record.id in gone] == []
    assert store.stats().responses == 3 - len(gone)


@pytest.mark.parametrize("order", [("r1", "r2", "r3"), ("r2", "r3", "r1"), ("r1", "r3", "r2")])
def test_a_deleted_link_goes_with_the_last_response_that_continues_it(store, order):
    put(store, "r1", size=1000)
    put(store, "r2", "r1", size=1000)
    put(store, "r3", "r2", size=1000)
    put(store, "fork", "r1", size=1000)
    for id in order:
        store.delete(ANN, id)
    assert "r1-out" in ids_of(store.load_chain(ANN, "fork"))
    left = store.stats().bytes
    assert left < 5000, "r2 and r3 are gone"
    store.delete(ANN, "fork")
    assert store.stats().bytes == 0


def test_a_run_of_a_link_that_is_deleted_is_lost(store):
    joined(store, "one")
    fence = queued(store, "r1", "one")
    put(store, "r2", "r1")
    store.delete(ANN, "r1")
    assert not store.start(fence)
    with pytest.raises(Overtaken):
        store.save(ANN, record("r1"), None, items("late"), guard=fence)
    assert store.load(ANN, "r1") is None


def test_a_turn_whose_response_is_not_kept_is_added_to_its_conversation(store, conversation):
    joined(store, "one")
    lease = store.take_lease("name", "one")
    effects = Effects(conversation=conversation)
    store.add_turn(ANN, "r1", items("a", "b"), effects, lease)
    store.add_turn(ANN, "r2", items("c", "b"), effects, lease)
    assert "".join(ids_of(store.load_input(ANN, conversation))) == "abcb", (
        "ids of servers repeat, and nothing is lost by it"
    )
    store.add_turn(ANN, "r3", items("d"), Effects(conversation="nowhere"), lease)
    store.drop_lease(lease)
    with pytest.raises(Overtaken):
        store.add_turn(ANN, "r4", items("e"), effects, lease)
    assert "".join(ids_of(store.load_input(ANN, conversation))) == "abcb"
    assert present(store, "r1", "r2", "r3", "r4") == []


def test_a_turn_whose_response_is_not_kept_answers_calls_of_its_conversation(store, conversation):
    joined(store, "one")
    lease = store.take_lease("name", "one")
    calling = record("r1", conversation=conversation)
    store.save(ANN, calling, items("a"), [item("b", call_id="c1")], Effects(conversation=conversation))
    put(store, "other")
    store.add_turn(ANN, "r2", items("c"), Effects(conversation=conversation, answered=("c1",)), lease)
    assert (store.load(ANN, "r1").continuation, store.load(ANN, "other").continuation) == ("r2", "")
    assert "".join(ids_of(store.load_input(ANN, conversation))) == "abc"


def test_a_chain_does_not_lead_through_a_conversation_nor_through_what_belongs_to_others(store, conversation):
    put(store, "r1", conversation)
    put(store, "r2", owner=BEN)
    put(store, "r3", "r2")
    assert store.load_chain(ANN, "r1") is None
    assert store.load_chain(ANN, "r3") is None


def test_a_chain_that_is_too_large_is_not_loaded(store):
    put(store, "r1", size=1000)
    put(store, "r2", "r1", size=1000)
    size = sum(map(len, store.load_chain(ANN, "r2")))
    assert len(store.load_chain(ANN, "r2", size)) == 4
    with pytest.raises(TooLarge) as raised:
        store.load_chain(ANN, "r2", size - 1)
    assert raised.value.size == size


# Pages and references


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_the_pages_of_an_input_are_all_of_it_once(store, order):
    every = [f"i{place}" for place in range(7)]
    store.save(ANN, record("r1"), items(*every), items("out"))
    for limit in (1, 3, 7, 8):
        seen: list[str] = []
        has_more = True
        while has_more:
            page = store.load_page(ANN, "r1", seen[-1] if seen else "", limit, order)
            seen += [each.id for each in page.items]
            has_more = page.has_more
        assert seen == (every if order == "asc" else every[::-1])


def test_a_page_ends_before_it_is_too_large_and_begins_at_an_item_of_the_input(store):
    store.save(ANN, record("r1"), [item(f"i{place}", 1000) for place in range(4)], items("out"))
    page = store.load_page(ANN, "r1", "", 5, "asc", 2500)
    assert ([each.id for each in page.items], page.has_more) == (["i0", "i1"], True)
    page = store.load_page(ANN, "r1", "i1", 5, "asc", 10)
    assert (page.items, page.has_more) == ([item("i2", 1000)], True)
    assert store.load_page(ANN, "r1", "i3", 5, "asc").items == []
    assert store.load_page(ANN, "r1", "nothing", 5, "asc") is None
    assert store.load_page(ANN, "r1", "out", 5, "asc") is None


def test_items_are_found_wherever_they_are_kept(store, conversation):
    store.save(ANN, record("r1"), items("a"), items("b"))
    store.add_items(ANN, conversation, items("c"))
    assert store.find_items(ANN, ["a", "b", "c", "d"]) == {id: item(id).raw for id in "abc"}
    size = len(item("a").raw)
    assert store.find_items(ANN, ["a"] * 3, 3 * size) == {"a": item("a").raw}
    with pytest.raises(TooLarge):
        store.find_items(ANN, ["a"] * 3, 3 * size - 1)
    many = ["a", *(f"none{place}" for place in range(5_000)), "b"]
    assert sorted(store.find_items(ANN, many)) == ["a", "b"]


# Conversations


def test_a_conversation_grows_at_its_end(store, conversation):
    store.add_items(ANN, conversation, items("a", "b"))
    store.add_items(ANN, conversation, items("c"))
    assert store.load_conversation(ANN, conversation) == CONVERSATION
    assert ids_of(store.load_input(ANN, conversation)) == ["a", "b", "c"]
    assert [each.id for each in store.load_page(ANN, conversation, "", 2, "desc").items] == ["c", "b"]
    assert store.load_item(ANN, conversation, "b") == item("b").raw


def test_items_that_are_there_already_are_not_added_again(store, conversation):
    for _ in range(2):
        store.add_items(ANN, conversation, items("a", "b"))
    store.add_items(ANN, conversation, items("b", "c"))
    assert ids_of(store.load_input(ANN, conversation)) == ["a", "b", "c"]


def test_items_that_many_add_at_once_are_added_once(store, conversation):
    for place in range(5):
        same = items(f"a{place}", f"b{place}")
        adds = [call("add_items", ANN, conversation, [*same, item(f"own{place}-{n}")]) for n in range(6)]
        assert store.at_once(*adds) == [None] * 6
    found = ids_of(store.load_input(ANN, conversation))
    assert len(found) == len(set(found)) == 5 * (2 + 6)


def test_an_item_taken_out_of_a_conversation_leaves_the_others_in_order(store, conversation):
    store.add_items(ANN, conversation, items("a", "b", "c"))
    assert store.delete_item(ANN, conversation, "c") is True
    assert store.delete_item(ANN, conversation, "c") is False
    store.add_items(ANN, conversation, items("d"))
    assert ids_of(store.load_input(ANN, conversation)) == ["a", "b", "d"]


def test_new_metadata_leaves_the_items_of_a_conversation(store, conversation):
    store.add_items(ANN, conversation, items("a"))
    store.put_conversation(ANN, Conversation(conversation, 7.0, b'{"new":"yes"}'))
    assert store.load_conversation(ANN, conversation).metadata == b'{"new":"yes"}'
    assert ids_of(store.load_input(ANN, conversation)) == ["a"]


def test_a_conversation_is_no_response_and_a_response_no_conversation(store, conversation):
    put(store, "r1")
    store.put_conversation(ANN, Conversation("r1", 7.0, b"{}"))
    store.save(ANN, record(conversation), items("x"), ())
    assert store.load(ANN, conversation) is None
    assert store.load_conversation(ANN, "r1") is None
    assert store.load_conversation(ANN, conversation) == CONVERSATION
    assert store.load(ANN, "r1") == record("r1")
    assert store.load_input(ANN, conversation) == []
    assert store.delete(ANN, conversation) is False
    assert store.delete(ANN, "r1", "conversation") is False


def test_a_deleted_conversation_takes_its_items_along_and_gets_no_new_ones(store, conversation):
    store.add_items(ANN, conversation, items("a"))
    assert store.delete(ANN, conversation, "conversation") is True
    assert store.load_conversation(ANN, conversation) is None
    store.add_items(ANN, conversation, items("b"))
    assert store.find_items(ANN, ["a", "b"]) == {}


def test_a_response_is_kept_with_all_that_it_changes(store, conversation):
    called = item("c", call_id="call_1", type="function_call")
    store.save(ANN, record("r1", conversation=conversation), (), [called], Effects(conversation=conversation))
    store.save(ANN, record("elsewhere"), (), [called])
    put(store, "other")
    effects = Effects(("other", "r2"), conversation, ("call_1", "call_2"))
    store.save(ANN, record("r2", conversation=conversation), items("d"), items("e"), effects)
    assert store.load(ANN, "r1").continuation == "r2"
    assert store.load(ANN, "other").continuation == "r2"
    assert store.load(ANN, "elsewhere").continuation == ""
    assert ids_of(store.load_input(ANN, conversation)) == ["c", "d", "e"]


def test_what_is_refused_changes_nothing_elsewhere(store, conversation):
    joined(store, "one")
    lease = store.take_lease("name", "one")
    store.drop_lease(lease)
    put(store, "other")
    effects = Effects(("other", "r2"), conversation)
    with pytest.raises(Overtaken):
        store.save(ANN, record("r2", conversation=conversation), items("d"), items("e"), effects, guard=lease)
    assert store.load(ANN, "r2") is None
    assert store.load(ANN, "other").continuation == ""
    assert store.load_input(ANN, conversation) == []
    assert store.find_items(ANN, ["d", "e"]) == {}


# Owners


def test_nobody_reads_what_belongs_to_others(store, conversation):
    put(store, "r1")
    store.add_items(ANN, conversation, items("a"))
    assert store.load(BEN, "r1") is None
    assert store.load_input(BEN, "r1") == store.load_output(BEN, "r1") == store.load_input(BEN, conversation) == []
    assert store.load_chain(BEN, "r1") is None
    assert store.find_items(BEN, ["r1-in", "r1-out", "a"]) == {}
    assert store.load_conversation(BEN, conversation) is None
    assert store.load_item(BEN, conversation, "a") is None
    assert store.load_page(BEN, "r1", "r1-in", 5, "asc") is None
    assert store.load_page(BEN, "r1", "", 5, "asc").items == []


def test_nobody_changes_what_belongs_to_others(store, conversation):
    put(store, "r1")
    store.add_items(ANN, conversation, items("a"))
    assert store.delete(BEN, "r1") is False
    assert store.delete(BEN, conversation, "conversation") is False
    assert store.delete_item(BEN, conversation, "a") is False
    store.add_items(BEN, conversation, items("by-ben"))
    store.put_conversation(BEN, Conversation(conversation, 1.0, b'{"by":"ben"}'))
    effects = Effects(("r1", "r9"), conversation, ("call",))
    store.save(BEN, record("r9", conversation=conversation), items("x"), (), effects)
    store.save(BEN, record("r1", response=b"ben"), items("ben-in"), items("ben-out"))
    assert store.load(ANN, "r1") == record("r1")
    assert ids_of(store.load_chain(ANN, "r1")) == ["r1-in", "r1-out"]
    assert store.load_conversation(ANN, conversation) == CONVERSATION
    assert ids_of(store.load_input(ANN, conversation)) == ["a"]


# Many at once


def test_many_savers_at_once_lose_nothing(store):
    calls = [call("save", ANN, record(f"r{n}"), items(f"{n}-in"), items(f"{n}-out")) for n in range(90)]
    assert set(store.at_once(*calls)) == {None}
    chains = store.at_once(*(call("load_chain", ANN, f"r{n}") for n in range(90)))
    assert [ids_of(chain) for chain in chains] == [[f"{n}-in", f"{n}-out"] for n in range(90)]


def test_many_writers_of_one_conversation_do_not_interleave(store, conversation):
    added = [call("add_items", ANN, conversation, items(f"{n}a", f"{n}b")) for n in range(30)]
    effects = Effects(conversation=conversation)
    saved = [
        call("save", ANN, record(f"r{n}", conversation=conversation), items(f"{n}a"), items(f"{n}b"), effects)
        for n in range(30, 60)
    ]
    assert set(store.at_once(*(each for pair in zip(added, saved, strict=True) for each in pair))) == {None}
    found = ids_of(store.load_input(ANN, conversation))
    assert sorted(found) == sorted(f"{n}{side}" for n in range(60) for side in "ab")
    assert all(found[place + 1] == found[place][:-1] + "b" for place in range(0, 120, 2)), "pairs stay together"


# Values


def row(key: str, value: bytes = b"1", kind: str = "call", owner: str = ANN) -> KeyValue:
    return KeyValue(owner, kind, key.encode(), value)


def test_a_kept_value_is_found_by_its_owner_kind_and_key_alone(store):
    store.put_values([row("a"), row("b", b"2"), row("a", b"3", "origin")])
    store.put_values([row("b", b"4")])
    assert store.get_values(ANN, [("call", b"b"), ("call", b"c"), ("call", b"a")]) == [b"4", None, b"1"]
    assert store.get_values(ANN, [("origin", b"a")]) == [b"3"]
    assert store.get_values(BEN, [("call", b"a"), ("call", b"b")]) == [None, None]
    assert store.get_values(ANN, []) == []


def test_of_two_values_with_one_key_in_one_write_the_later_counts(store):
    store.put_values([row("a", b"1"), row("a", b"2")])
    assert store.get_values(ANN, [("call", b"a")]) == [b"2"]


def test_no_more_kept_bytes_are_read_at_once_than_may_be(store):
    store.put_values([row(key, b"x" * 100) for key in "abc"])
    found = store.get_values(ANN, [("call", key.encode()) for key in "abc"], 150)
    assert [value is not None for value in found] == [True, True, False]


# Bounds


def test_what_is_too_much_is_let_go_from_whoever_has_most(place: Place):
    store = place.open(max_size=20_000)
    joined(store, "one", "two")
    put(store, "small", owner=BEN, size=1000)
    for n in range(30):
        put(store, f"r{n}", size=1000)
    for member in ("one", "two"):
        store.maintain(member)
    left = present(store, *(f"r{n}" for n in range(30)))
    assert left == [f"r{n}" for n in range(30 - len(left), 30)], "the latest ones stay"
    assert 5 <= len(left) <= 20
    assert present(store, "small", owner=BEN) == ["small"]
    assert store.stats().bytes <= 20_000


def test_values_and_responses_share_their_bounds(place: Place):
    store = place.open(max_size=20_000)
    joined(store, "one")
    store.put_values([row("quiet", b"q" * 1000, owner=BEN)])
    for n in range(30):
        store.put_values([row(str(n), b"x" * 1000)])
    store.maintain("one")
    found = store.get_values(ANN, [("call", str(n).encode()) for n in range(30)])
    assert found[0] is None
    assert found[-1] is not None
    assert store.get_values(BEN, [("call", b"quiet")]) == [b"q" * 1000]


def test_a_run_that_is_not_over_is_not_let_go(place: Place):
    store = place.open(max_size=1000)
    joined(store, "one")
    fence = queued(store, "r1", "one")
    for n in range(5):
        put(store, f"other{n}", size=1000)
    store.maintain("one")
    assert present(store, "r1") == ["r1"]
    store.save(ANN, record("r1"), None, items("out"), guard=fence)


def test_what_nobody_used_for_too_long_is_gone(place: Place):
    store = place.open(max_age=1.0)
    joined(store, "one")
    put(store, "r1")
    store.put_values([row("a")])
    wait_until(lambda: store.load(ANN, "r1") is None and store.get_values(ANN, [("call", b"a")]) == [None])
    wait_until(lambda: store.maintain("one") or store.stats().bytes == 0)
    assert store.load_input(ANN, "r1") == []


# Another store


def test_a_store_restored_from_another_has_all_that_was_there(place: Place):
    store, other = place.open(), place.other()
    joined(store, "one", "two")
    store.put_conversation(ANN, CONVERSATION)
    called = item("c", call_id="call_1", type="function_call")
    store.save(ANN, record("r1", conversation="conv"), items("a"), [called], Effects(conversation="conv"))
    put(store, "r2", "r1", size=1000)
    put(store, "r3", owner=BEN)
    store.put_values([row("a", b"value"), row("b", b"\x00\xff", owner=BEN)])
    run = queued(store, "r4", "one")
    assert appended(store, run, events(0, "x", "y"))
    over = queued(store, "r5", "one")
    store.save(ANN, record("r5"), None, items("out"), guard=over, last=events(0, "z"))
    rows = store.dump()
    for _ in range(2):
        for start in range(0, len(rows), 5):
            other.restore(rows[start : start + 5])
    assert sorted(map(repr, other.dump())) == sorted(map(repr, rows))
    assert other.stats().bytes == store.stats().bytes
    assert other.load_chain(ANN, "r2") == store.load_chain(ANN, "r2")
    assert other.load(BEN, "r3") == record("r3")
    assert other.get_values(BEN, [("call", b"b")]) == [b"\x00\xff"]
    joined(other, "three")
    (claimed,) = other.claim("three", 10)
    assert (claimed.record.id, claimed.plan, claimed.next_event) == ("r4", b"plan", 2)
    assert claimed.fence.epoch > run.epoch
    effects = Effects(None, "conv", ("call_1",))
    other.save(ANN, record("r6", conversation="conv"), items("g"), (), effects)
    assert other.load(ANN, "r1").continuation == "r6"


def test_a_dump_is_one_state_whatever_is_written_meanwhile(store):
    joined(store, "one")
    for id in ("r1", "r2"):
        put(store, id)
    run = queued(store, "run", "one")
    before = sorted(map(repr, store.dump()))

    async def dump_and_write(user: Any) -> list[Any]:
        rows = user.dump()
        first = await anext(rows)
        await user.delete(ANN, "r1")
        await user.save(ANN, record("r2b"), items("in"), items("out"))
        await user.append([Append(ANN, run, events(0, "x"))])
        await user.save(ANN, record("run"), None, items("end"), guard=run)
        await user.put_values([row("a", b"value")])
        return [first, *[each async for each in rows]]

    (found,) = store.at_once(dump_and_write)
    assert sorted(map(repr, found)) == before
    assert sorted(map(repr, store.dump())) != before


def test_what_is_there_already_stays_when_another_store_is_added(place: Place):
    store, other = place.open(), place.other()
    store.save(ANN, record("r1", response=b"new"), items("a"), items("b"))
    store.put_values([row("a", b"new")])
    other.save(BEN, record("r1", response=b"old"), items("x"), ())
    other.put_values([row("a", b"old")])
    other.restore(store.dump())
    assert other.load(BEN, "r1").response == b"old"
    assert other.load(ANN, "r1") is None
    assert ids_of(other.load_input(BEN, "r1")) == ["x"]
    assert other.load_input(ANN, "r1") == other.load_output(ANN, "r1") == []
    assert other.get_values(ANN, [("call", b"a")]) == [b"old"]
