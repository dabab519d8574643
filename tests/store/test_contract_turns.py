"""Turns that the console keeps: under their owners, within bounds of their own."""

from tests.store.examples import ANN, BEN, items, joined, record
from tests.store.place import Place, Users, call, wait_until
from toolwire.memory.sql.values import ROW_OVERHEAD
from toolwire.memory.store import KeptTurn, TurnBounds

ALL = TurnBounds()


def turn(id: str, owner: str = ANN, content: bytes = b"content", facts: bytes = b"facts") -> KeptTurn:
    return KeptTurn(id, owner, facts, content)


def ids(store: Users, bounds: TurnBounds = ALL, limit: int = 99, after: int = 0) -> list[str]:
    return [kept.id for kept, _ in store.recent_turns(bounds, limit, after)]


def test_turns_are_listed_without_content_the_latest_first(store: Users):
    for id, owner in (("t1", ANN), ("t2", BEN), ("t3", ANN)):
        store.put_turns([turn(id, owner)])
    found = store.recent_turns(ALL, 99)
    assert [kept for kept, _ in found] == [turn("t3", content=b""), turn("t2", BEN, b""), turn("t1", content=b"")]
    assert ids(store, limit=2) == ["t3", "t2"]
    numbers = [number for _, number in found]
    assert ids(store, after=numbers[1]) == ["t3"]
    assert ids(store, after=numbers[0]) == []


def test_the_content_of_a_turn_is_for_its_owner_only(store: Users):
    content = bytes(range(256)) * 100
    store.put_turns([turn("t1", content=content)])
    assert store.turn_content(ANN, "t1") == content
    assert store.turn_content(BEN, "t1") is None
    assert store.turn_content(ANN, "t2") is None


def test_a_turn_that_is_saved_again_replaces_the_earlier_one_of_its_owner(store: Users):
    store.put_turns([turn("t1"), turn("t2")])
    store.put_turns([turn("t1", content=b"more", facts=b"new")])
    store.put_turns([turn("t2", BEN, b"foreign")])
    assert store.turn_content(ANN, "t1") == b"more"
    assert store.turn_content(ANN, "t2") == b"content"
    assert {kept.facts for kept, _ in store.recent_turns(ALL, 99)} == {b"new", b"facts"}
    assert store.stats().turns == 2


def test_many_processes_save_turns_at_once(store: Users):
    batches = [[turn(f"t{number}-{place}") for place in range(20)] for number in range(6)]
    same = [turn(f"same{place}") for place in range(20)]
    assert {*store.at_once(*(call("put_turns", batch) for batch in (*batches, same, same[::-1])))} == {None}
    assert store.stats().turns == 140


def test_turns_older_than_their_bound_are_hidden_and_deleted(place: Place):
    store = place.open()
    joined(store, "one")
    store.save(ANN, record("r1"), items("a"), ())
    store.put_turns([turn(f"old{number}") for number in range(150)])
    wait_until(lambda: ids(store, TurnBounds(max_age=0.05)) == [])
    assert len(ids(store, limit=999)) == 150
    store.put_turns([turn("new")])
    wait_until(lambda: store.maintain("one", TurnBounds(max_age=0.1)) or store.stats().turns <= 1)
    assert store.load(ANN, "r1") is not None
    store.maintain("one")
    assert store.load(ANN, "r1") is not None


def test_turns_expire_with_everything_else_where_they_have_no_bound(place: Place):
    store = place.open(max_age=0.1)
    joined(store, "one")
    store.put_turns([turn("t1")])
    wait_until(lambda: store.maintain("one") or store.stats().turns == 0)


def test_the_oldest_turns_of_the_owner_with_the_most_bytes_go_first(place: Place):
    store = place.open()
    joined(store, "one")
    one = 10_000 + ROW_OVERHEAD + len(b"facts")
    store.put_turns([turn("b1", BEN, b"x" * 10_000)])
    for number in range(100):
        store.put_turns([turn(f"a{number}", content=b"x" * 10_000)])
    store.maintain("one", TurnBounds(max_size=21 * one))
    left = ids(store, limit=999)
    assert [*reversed(left)] == ["b1", *(f"a{number}" for number in range(80, 100))]


def test_turns_cost_nobody_a_response(place: Place):
    store = place.open(max_size=20_000)
    joined(store, "one")
    store.save(ANN, record("r1"), items("a"), ())
    store.put_turns([turn(f"t{number}", content=b"x" * 10_000) for number in range(50)])
    store.maintain("one", TurnBounds(max_size=10**9))
    assert store.load(ANN, "r1") is not None
    assert store.stats().turns == 50
    assert store.stats().bytes < 20_000
