"""Issued keys: changed one at a time, and read by every process from the change that it saw last."""

import msgspec
from msgspec.structs import replace

from tests.store.place import Place, Users, call
from toolwire.memory.sql.issued_keys import KEYS_PER_READ
from toolwire.memory.store import IssuedKey, KeyRow

ANN, BEN = (
    IssuedKey(name, bytes([number]) * 32, 1.5, models=("gpt-*",), labels={"über": "\N{SNOWMAN}"})
    for number, name in enumerate(("ann", "ben"))
)


def changed(store: Users, after: int = 0) -> list[IssuedKey]:
    return store.list_changed_keys(after).keys


def test_a_key_is_found_by_its_name_as_it_was_put(store: Users):
    assert store.find_key("ann") is None
    assert store.put_key(ANN, None)
    assert store.put_key(BEN, None)
    assert store.find_key("ann") == ANN
    assert changed(store) == [ANN, BEN]


def test_a_key_is_put_only_in_place_of_the_one_that_was_read(store: Users):
    later = replace(ANN, rotated=2.0)
    assert not store.put_key(later, ANN)
    assert store.put_key(ANN, None)
    assert not store.put_key(later, None)
    assert not store.put_key(later, replace(ANN, team="other"))
    assert changed(store) == [ANN]
    assert store.put_key(later, ANN)
    assert store.find_key("ann") == later


def test_only_what_changed_is_read_again(store: Users):
    assert changed(store) == []
    store.put_key(ANN, None)
    store.put_key(BEN, None)
    seen = store.list_changed_keys(0).last
    assert changed(store, seen) == []
    later = replace(ANN, revoked=3.0)
    store.put_key(later, ANN)
    assert changed(store, seen) == [later]
    assert changed(store) == [BEN, later]


def test_many_keys_are_read_part_by_part(place: Place):
    store = place.open()
    names = [f"key{number:04}" for number in range(KEYS_PER_READ + 5)]
    store.restore(_rows(names))
    first = store.list_changed_keys(0)
    assert first.latest > first.last
    rest = store.list_changed_keys(first.last)
    assert [key.name for key in (*first.keys, *rest.keys)] == names
    assert rest.last == rest.latest


def test_of_many_processes_that_put_one_key_one_does(store: Users):
    keys = [replace(ANN, team=str(number)) for number in range(8)]
    outcomes = store.at_once(*(call("put_key", key, None) for key in keys))
    assert sorted(outcomes) == [False] * 7 + [True]
    assert store.find_key("ann") == keys[outcomes.index(True)]


def test_no_change_appears_behind_one_that_was_read(store: Users):
    """Every reader that goes on from what it has read sees every key, however the writers overlap."""
    names = [f"key{number}" for number in range(40)]
    seen = set[str]()
    last = 0
    writes = [call("put_key", replace(ANN, name=name), None) for name in names]
    for start in range(0, len(writes), 8):
        answers = store.at_once(*writes[start : start + 8], call("list_changed_keys", last))
        changes = answers[-1]
        seen |= {key.name for key in changes.keys}
        last = changes.last
    seen |= {key.name for key in changed(store, last)}
    assert seen == {*names}


def test_keys_are_copied_with_the_store_and_replace_none(place: Place):
    store, other = place.open(), place.other()
    store.put_key(ANN, None)
    store.put_key(BEN, None)
    kept = replace(BEN, team="kept")
    other.put_key(kept, None)
    other.restore(store.dump())
    assert {key.name: key for key in changed(other)} == {"ann": ANN, "ben": kept}


def _rows(names: list[str]) -> list[KeyRow]:
    return [KeyRow(name, msgspec.json.encode(replace(ANN, name=name))) for name in names]
