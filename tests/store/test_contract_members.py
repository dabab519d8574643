"""Members and leases: a process is alive while its heart beats, and one process at a time may do what one may do."""

import pytest

from tests.store.examples import ANN, appended, events, find_member, held, items, joined, put, queued, record
from tests.store.place import LONG, Place, Users, call, wait_until
from toolwire.memory.store import Lease, Member, Overtaken


def refused(store: Users, lease: Lease) -> bool:
    """Whether somebody who writes with this lease is refused; what he writes is not there then."""
    try:
        store.save(ANN, record(f"by-{lease.epoch}"), items("in"), (), guard=lease)
    except Overtaken:
        assert store.load(ANN, f"by-{lease.epoch}") is None
        return True
    return False


# Members


def test_a_member_is_known_by_all_until_it_leaves(store):
    one = Member("one", "host")
    assert find_member(store, "one") is None
    store.join(one)
    store.join(one)
    assert find_member(store, "one") == one
    assert store.stats().members == 1
    store.leave("one")
    store.leave("one")
    assert find_member(store, "one") is None
    assert store.stats().members == 0


def test_a_heart_that_beats_in_time_keeps_a_member_alive(store):
    joined(store, "one")
    for _ in range(3):
        assert store.beat("one") is True
    assert find_member(store, "one") is not None


def overdue(place: Place, store: Users, member: str) -> None:
    """Let the heartbeat of a member be overdue, whatever it has."""
    place.join_briefly(Member(member))
    wait_until(lambda: find_member(store, member) is None)


def test_a_member_whose_heartbeat_is_overdue_is_back_with_its_next_beat(place: Place):
    """As a process that was alone while it could not reach the store."""
    store = place.open()
    joined(store, "one")
    run, lease = queued(store, "r1", "one"), held(store, "name", "one")
    overdue(place, store, "one")
    assert store.find_lease("name") is None
    store.maintain("one")
    assert store.claim("one", 10) == []
    assert store.beat("one") is True
    assert appended(store, run, events(0, "a"))
    assert not refused(store, lease)


@pytest.mark.parametrize("take", ["claim", "take_lease", "maintain"])
def test_a_member_that_something_was_taken_from_is_dead_for_good(place: Place, take):
    store = place.open()
    joined(store, "one", "two")
    run, lease = queued(store, "r1", "one"), held(store, "name", "one")
    overdue(place, store, "one")
    ways = {
        "claim": lambda: store.claim("two", 10),
        "take_lease": lambda: store.take_lease("name", "two"),
        "maintain": lambda: store.maintain("two") or store.take_lease("name", "two"),
    }
    assert wait_until(ways[take])
    assert store.beat("one") is False
    assert find_member(store, "one") is None
    claimed = [each.fence.epoch for each in store.claim("two", 10)]
    assert take == "claim" or claimed[0] > run.epoch
    taken = store.take_lease("name", "two")
    assert taken.epoch > lease.epoch
    assert not appended(store, run, events(0, "late"))
    assert refused(store, lease)


YOUNG = {"since": 60.0}
"""It has just come, or has beaten again for a moment only."""
LATE = {"beat": -0.6 * LONG}
"""It is alive, but its latest beat is more than half a lease old."""


@pytest.mark.parametrize("state", [YOUNG, LATE], ids=["young", "late"])
def test_who_could_not_reach_the_store_itself_takes_nobody_for_dead(place: Place, state):
    store = place.open()
    joined(store, "one", "two")
    run, lease = queued(store, "r1", "one"), held(store, "name", "one")
    overdue(place, store, "one")
    place.shift("two", **state)
    assert store.claim("two", 10) == []
    assert store.take_lease("name", "two") is None
    assert held(store, "sweep", "two")
    store.maintain("two")
    assert store.beat("one") is True
    assert appended(store, run, events(0, "a"))
    assert not refused(store, lease)
    place.shift("two", **{name: -seconds for name, seconds in state.items()})
    assert len(wait_until(lambda: store.claim("two", 10))) == 1


def test_a_beat_after_a_break_begins_the_time_anew_in_which_a_member_could_reach_the_store(place: Place):
    store = place.open()
    joined(store, "one", "two")
    queued(store, "r1", "one")
    overdue(place, store, "one")
    place.shift("two", beat=-0.4 * LONG, since=10 * LONG)
    assert store.beat("two") is True
    assert store.claim("two", 10) == []
    place.shift("two", beat=-0.6 * LONG)
    assert store.beat("two") is True
    assert len(wait_until(lambda: store.claim("two", 10))) == 1


def test_runs_and_leases_of_who_has_left_are_free_for_who_has_just_come(place: Place):
    store = place.open()
    joined(store, "one", "two")
    queued(store, "r1", "one")
    held(store, "name", "one")
    place.shift("two", **YOUNG)
    store.leave("one")
    assert len(store.claim("two", 10)) == 1
    assert held(store, "name", "two")


def test_who_never_joined_or_has_left_has_no_heartbeat(store):
    assert store.beat("nobody") is False
    joined(store, "one")
    store.leave("one")
    assert store.beat("one") is False


def test_the_living_members_and_their_leases_are_listed(store):
    joined(store, "one", "two", "three")
    leases = [held(store, name, "one") for name in ("a", "b")]
    lost = held(store, "c", "three")
    store.leave("three")
    assert [member.id for member in store.list_members(10)] == ["one", "two"]
    assert store.list_leases(10) == leases
    assert lost not in store.list_leases(10)
    assert len(store.list_members(1)) == len(store.list_leases(1)) == 1


# Leases


def test_one_member_at_a_time_has_a_lease(store):
    joined(store, "one", "two")
    lease = held(store, "name", "one")
    assert (lease.name, lease.member) == ("name", "one")
    assert store.take_lease("name", "two") is None
    assert store.take_lease("name", "one") == lease
    assert store.find_lease("name") == lease
    assert store.find_lease("other") is None
    assert held(store, "other", "two").member == "two"


def test_many_that_take_a_lease_at_once_get_it_once(store):
    members = [f"m{place}" for place in range(9)]
    joined(store, *members)
    for name in ("a", "b", "c"):
        granted = [lease for lease in store.at_once(*(call("take_lease", name, member) for member in members)) if lease]
        assert len(granted) == 1
        assert store.find_lease(name) == granted[0]


def test_a_dropped_lease_is_free_and_drops_nothing_of_the_next(store):
    joined(store, "one", "two")
    first = held(store, "name", "one")
    store.drop_lease(first)
    store.drop_lease(first)
    assert store.find_lease("name") is None
    second = held(store, "name", "two")
    store.drop_lease(first)
    assert store.find_lease("name") == second


def test_a_member_that_leaves_frees_its_leases(store):
    joined(store, "one", "two")
    lost = held(store, "name", "one")
    store.leave("one")
    assert store.find_lease("name") is None
    assert held(store, "name", "two").epoch > lost.epoch


def test_the_lease_of_a_dead_member_is_free_to_take(place: Place):
    store = place.open()
    joined(store, "one", "two")
    lost = held(store, "name", "one")
    overdue(place, store, "one")
    taken = wait_until(lambda: store.take_lease("name", "two"))
    assert taken.epoch > lost.epoch
    assert refused(store, lost)
    assert not refused(store, taken)


def test_who_is_not_alive_gets_no_lease(store):
    joined(store, "one")
    store.leave("one")
    assert store.take_lease("name", "one") is None
    assert store.take_lease("name", "nobody") is None
    assert store.find_lease("name") is None


def test_no_epoch_of_a_lease_is_granted_twice(store):
    """Also when it is dropped, when its member leaves, and when the next one is the same member."""
    joined(store, "one", "two")
    epochs: list[int] = []
    for place in range(4):
        lease = held(store, "name", "one")
        epochs.append(lease.epoch)
        if place % 2:
            store.drop_lease(lease)
        else:
            store.leave("one")
            joined(store, "one")
        between = held(store, "name", "two")
        epochs.append(between.epoch)
        store.drop_lease(between)
    assert epochs == sorted(set(epochs))


def test_who_lost_a_lease_writes_nothing_with_it(store):
    joined(store, "one", "two")
    lost = held(store, "name", "one")
    assert not refused(store, lost)
    store.drop_lease(lost)
    put(store, "other")
    again = held(store, "name", "one")
    stale = Lease("name", "one", lost.epoch)
    assert refused(store, Lease("name", "two", again.epoch))
    store.drop_lease(again)
    assert refused(store, again)
    assert stale.epoch != again.epoch


def test_what_was_saved_with_a_lease_can_be_saved_again_without_it(store):
    """What became of the first attempt was not known, and the lease was lost since."""
    joined(store, "one")
    lease = held(store, "name", "one")
    store.save(ANN, record("r1", response=b"1"), items("in"), (), guard=lease)
    store.drop_lease(lease)
    store.save(ANN, record("r1", response=b"1"), items("in"), (), guard=lease)
    assert store.load(ANN, "r1").response == b"1"
