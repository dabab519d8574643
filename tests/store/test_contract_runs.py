"""Background runs: one process at a time writes a run, everybody of its owner can read it, and nothing is lost."""

import random
from collections import Counter

import pytest

from tests.store.examples import (
    ANN,
    BEN,
    appended,
    events,
    find_member,
    ids_of,
    item,
    items,
    joined,
    put,
    queued,
    record,
)
from tests.store.place import Place, Users, call, wait_until
from toolwire.memory.store import Append, Effects, Fence, Follow, Followed, Member, Overtaken, RunLimits, TooManyRuns


def followed(store: Users, id: str, next: int = 0, owner: str = ANN) -> Followed:
    (answer,) = store.follow([Follow(owner, id, next)])
    return answer


def frames(store: Users, id: str, owner: str = ANN) -> bytes:
    return b"".join(chunk.frames for chunk in followed(store, id, owner=owner).chunks)


def taken_over(store: Users, member: str) -> Fence:
    """The only run without a process."""
    (claimed,) = store.claim(member, 10)
    return claimed.fence


@pytest.fixture
def run(store: Users) -> Fence:
    """A run of the member `one`; `two` is alive too."""
    joined(store, "one", "two")
    return queued(store, "r1", "one")


# From queue to end


def test_a_queued_response_is_there_before_it_runs(store, run):
    assert store.load(ANN, "r1").status == "queued"
    assert ids_of(store.load_input(ANN, "r1")) == ["r1-in"]
    assert followed(store, "r1") == Followed((), is_over=False)
    assert store.stats().runs == 1


def test_a_run_ends_with_its_last_events_and_its_output(store, run):
    assert appended(store, run, events(0, "a", "b"))
    store.save(ANN, record("r1", response=b"2"), None, items("out"), guard=run, last=events(2, "c"))
    assert store.load(ANN, "r1") == record("r1", response=b"2")
    assert (ids_of(store.load_input(ANN, "r1")), ids_of(store.load_output(ANN, "r1"))) == (["r1-in"], ["out"])
    assert followed(store, "r1") == Followed((events(0, "a", "b"), events(2, "c")), is_over=True)
    assert store.stats().runs == 0


def test_a_state_in_between_does_not_end_a_run(store, run):
    store.save(ANN, record("r1", status="in_progress"), None, (), guard=run)
    assert store.load(ANN, "r1").status == "in_progress"
    assert not followed(store, "r1").is_over
    assert appended(store, run, events(0, "a"))


def test_a_response_with_a_run_is_written_with_its_fence_only(store, run):
    with pytest.raises(Overtaken):
        store.save(ANN, record("r1", response=b"other"), None, ())
    assert store.load(ANN, "r1").status == "queued"
    assert not followed(store, "r1").is_over


def test_what_was_queued_has_its_effects(store):
    joined(store, "one")
    put(store, "r0")
    effects = Effects(link=("r0", "r1"))
    store.queue(ANN, record("r1", "r0", status="queued"), items("in"), effects, plan=b"", member="one")
    assert store.load(ANN, "r0").continuation == "r1"


def limited(store: Users, id: str, owner: str, limits: RunLimits) -> Fence:
    return store.queue(
        owner, record(id, status="queued"), items(f"{id}-in"), Effects(), plan=b"", member="one", limits=limits
    )


def test_unfinished_runs_are_limited_for_each_owner_and_in_all(store):
    joined(store, "one")
    limits = RunLimits(in_all=3, per_owner=2)
    first, _ = limited(store, "a1", ANN, limits), limited(store, "a2", ANN, limits)
    with pytest.raises(TooManyRuns) as refused:
        limited(store, "a3", ANN, limits)
    assert "2 per key" in refused.value.failure.message
    assert store.load(ANN, "a3") is None
    assert limited(store, "a1", ANN, limits) == first, "the same again is no further run"
    limited(store, "b1", BEN, limits)
    with pytest.raises(TooManyRuns) as refused:
        limited(store, "b2", BEN, limits)
    assert "3 (server.max_background_runs)" in refused.value.failure.message
    store.save(ANN, record("a1"), None, (), guard=first, last=events(0, "end"))
    limited(store, "b2", BEN, limits)


@pytest.mark.parametrize(("in_all", "per_owner"), [(7, 1000), (1000, 3)], ids=["in-all", "per-owner"])
def test_limits_are_exact_for_runs_that_are_queued_together(store, in_all, per_owner):
    joined(store, "one")
    limits, together = RunLimits(in_all, per_owner), 150
    calls = [
        call(
            "queue", owner, record(f"{owner}{n}", status="queued"), (), Effects(), plan=b"", member="one", limits=limits
        )
        for n in range(together)
        for owner in (ANN, BEN)
    ]
    done = store.at_once(*calls)
    admitted = min(in_all, 2 * per_owner)
    assert Counter(map(type, done)) == {Fence: admitted, TooManyRuns: 2 * together - admitted}
    assert store.stats().runs == admitted
    for owner, fences in ((ANN, done[::2]), (BEN, done[1::2])):
        ids = {each.id for each in fences if isinstance(each, Fence)}
        assert len(ids) <= per_owner
        assert {id for n in range(together) if store.load(owner, id := f"{owner}{n}")} == ids, (
            "nothing is kept of others"
        )


def test_a_queue_under_a_lost_lease_queues_nothing(store):
    joined(store, "one")
    lease = store.take_lease("conversation", "one")
    store.drop_lease(lease)
    with pytest.raises(Overtaken):
        store.queue(ANN, record("r1", status="queued"), (), Effects(), plan=b"", member="one", guard=lease)
    assert store.load(ANN, "r1") is None
    assert followed(store, "r1").is_over


# Again


def test_a_run_queued_again_is_the_same_run(store, run):
    assert appended(store, run, events(0, "a"))
    assert queued(store, "r1", "one") == run
    assert frames(store, "r1") == events(0, "a").frames
    assert ids_of(store.load_input(ANN, "r1")) == ["r1-in"]


def test_a_run_queued_again_after_it_was_taken_over_is_lost(store, run):
    store.leave("one")
    taken_over(store, "two")
    with pytest.raises(Overtaken):
        queued(store, "r1", "one")


def test_the_same_append_again_changes_nothing(store, run):
    append = Append(ANN, run, events(0, "a", "b"))
    for _ in range(3):
        assert not store.append([append]).lost
    assert not store.append([append, Append(ANN, run, events(2, "c"))]).lost
    assert frames(store, "r1") == events(0, "a", "b", "c").frames


def test_committed_events_are_never_replaced(store, run):
    assert appended(store, run, events(0, "a"))
    assert appended(store, run, events(0, "x", "y"))
    twice = Append(ANN, run, events(1, "b"))
    assert not store.append([twice, twice]).lost
    assert frames(store, "r1") == events(0, "a", "b").frames


def test_an_end_again_changes_nothing(store, run):
    for _ in range(3):
        store.save(ANN, record("r1", response=b"2"), None, items("out"), guard=run, last=events(0, "a"))
    assert ids_of(store.load_output(ANN, "r1")) == ["out"]
    assert frames(store, "r1") == events(0, "a").frames


def test_an_end_that_another_process_made_is_no_end_of_ours(store, run):
    store.leave("one")
    theirs = taken_over(store, "two")
    store.save(ANN, record("r1", status="failed", response=b"lost"), None, (), guard=theirs)
    with pytest.raises(Overtaken):
        store.save(ANN, record("r1", response=b"2"), None, items("out"), guard=run)
    assert store.load(ANN, "r1").response == b"lost"
    assert store.load_output(ANN, "r1") == []


# Taking over


def test_a_run_of_a_living_member_cannot_be_claimed(store, run):
    assert store.claim("two", 10) == []
    assert store.claim("one", 10) == []


def test_a_claimed_run_comes_with_all_that_is_needed(store, run):
    assert store.start(run)
    assert store.cancel(ANN, "r1")
    assert appended(store, run, events(0, "a", "b"))
    assert appended(store, run, events(2, "c"))
    store.leave("one")
    (claimed,) = store.claim("two", 10)
    assert (claimed.owner, claimed.plan, claimed.next_event) == (ANN, b"plan", 3)
    assert claimed.record == record("r1", status="queued")
    assert (claimed.is_started, claimed.is_cancelled) == (True, True)
    assert claimed.fence.epoch > run.epoch
    assert store.claim("two", 10) == []


def test_a_run_that_nothing_came_of_is_claimed_as_new(store, run):
    store.leave("one")
    (claimed,) = store.claim("two", 10)
    assert (claimed.next_event, claimed.is_started, claimed.is_cancelled) == (0, False, False)


def test_a_run_is_claimed_when_the_heartbeat_of_its_process_is_overdue(place: Place):
    store = place.open()
    joined(store, "one", "two")
    lost = queued(store, "r1", "one")
    place.join_briefly(Member("one"))
    (claimed,) = wait_until(lambda: store.claim("two", 10))
    assert claimed.fence.epoch > lost.epoch
    assert not appended(store, lost, events(0, "late"))
    assert store.beat("one") is False


def test_a_late_beat_and_a_claim_exclude_each_other(place: Place):
    store = place.open()
    joined(store, "two")
    for n in range(15):
        joined(store, f"one{n}")
        run = queued(store, f"r{n}", f"one{n}")
        place.join_briefly(Member(f"one{n}"))
        wait_until(lambda n=n: find_member(store, f"one{n}") is None)
        beat, claim = call("beat", f"one{n}"), call("claim", "two", 10)
        is_back, claimed = store.at_once(beat, claim) if n % 2 else store.at_once(claim, beat)[::-1]
        assert is_back or claimed
        assert store.start(run) is not bool(claimed)
        assert claimed or wait_until(lambda: store.claim("two", 10))
        assert store.beat(f"one{n}") is False


def test_a_member_that_is_not_alive_claims_nothing(store, run):
    store.leave("one")
    assert store.claim("one", 10) == []
    assert store.claim("nobody", 10) == []
    assert len(store.claim("two", 10)) == 1


def test_no_more_runs_are_claimed_than_asked_for(store):
    joined(store, "one", "two")
    for place in range(5):
        queued(store, f"r{place}", "one")
    store.leave("one")
    claimed = [store.claim("two", 2) for _ in range(4)]
    assert [len(each) for each in claimed] == [2, 2, 1, 0]
    assert sorted(run.fence.id for each in claimed for run in each) == [f"r{place}" for place in range(5)]


def test_many_that_claim_at_once_share_the_runs(store):
    joined(store, "one", "two", "three", "four")
    for place in range(12):
        queued(store, f"r{place}", "one")
    store.leave("one")
    calls = [call("claim", member, 12) for member in ("two", "three", "four") for _ in range(2)]
    claimed = [run.fence for each in store.at_once(*calls) for run in each]
    assert len(claimed) == 12
    assert len({fence.id for fence in claimed}) == 12


def test_claims_of_one_process_at_once_share_the_runs(store):
    joined(store, "one", "two")
    for place in range(12):
        queued(store, f"r{place}", "one")
    store.leave("one")
    results = store.at_once(*(call("claim", "two", 3) for _ in range(6 * len(store.stores))))
    claimed = [run.fence.id for each in results for run in each]
    assert sorted(claimed) == sorted(f"r{place}" for place in range(12))


def test_who_lost_a_run_cannot_write_it(store, run):
    assert appended(store, run, events(0, "a"))
    store.leave("one")
    theirs = taken_over(store, "two")
    assert not appended(store, run, events(1, "stale"))
    assert store.start(run) is False
    with pytest.raises(Overtaken):
        store.save(ANN, record("r1"), None, items("stale"), guard=run, last=events(1, "stale"))
    assert appended(store, theirs, events(1, "b"))
    assert frames(store, "r1") == events(0, "a", "b").frames
    assert store.load_output(ANN, "r1") == []


def test_no_epoch_of_a_run_is_given_twice(store, run):
    epochs = [run.epoch]
    member = "one"
    for place in range(5):
        store.leave(member)
        member = f"next{place}"
        joined(store, member)
        epochs.append(taken_over(store, member).epoch)
    assert epochs == sorted(set(epochs))


def test_one_append_of_many_runs_loses_only_those_that_are_lost(store):
    joined(store, "one", "two")
    fences = [queued(store, f"r{place}", "one" if place % 2 else "two") for place in range(6)]
    store.leave("one")
    joined(store, "three")
    store.claim("three", 10)
    found = store.append([Append(ANN, fence, events(0, fence.id)) for fence in fences])
    assert found.lost == {fence for place, fence in enumerate(fences) if place % 2}
    for place, fence in enumerate(fences):
        assert frames(store, fence.id) == (b"" if place % 2 else events(0, fence.id).frames)


def test_nobody_appends_to_the_run_of_another_owner(store, run):
    assert not appended(store, run, events(0, "x"), owner=BEN)
    assert frames(store, "r1") == b""


# Cancel and delete


def test_a_cancelled_run_is_told_to_whoever_has_it(store, run):
    assert store.list_cancelled("one") == []
    assert store.cancel(ANN, "r1") is True
    assert store.list_cancelled("one") == [run]
    assert store.list_cancelled("two") == []
    found = store.append([Append(ANN, run, events(0, "a"))])
    assert (found.lost, found.cancelled) == (frozenset(), {run})
    assert frames(store, "r1") == events(0, "a").frames
    store.save(ANN, record("r1", status="cancelled"), None, (), guard=run)
    assert store.list_cancelled("one") == []
    assert store.cancel(ANN, "r1") is False


def test_nobody_cancels_the_run_of_another_owner(store, run):
    assert store.cancel(BEN, "r1") is False
    assert store.cancel(ANN, "nothing") is False
    assert store.list_cancelled("one") == []


def test_a_deleted_run_is_lost_and_over(store, run):
    assert appended(store, run, events(0, "a"))
    assert store.delete(ANN, "r1") is True
    assert not appended(store, run, events(1, "b"))
    assert store.start(run) is False
    with pytest.raises(Overtaken):
        store.save(ANN, record("r1"), None, items("out"), guard=run)
    assert followed(store, "r1") == Followed((), is_over=True)
    assert store.load(ANN, "r1") is None
    store.leave("one")
    assert store.claim("two", 10) == []


# Following


def test_a_follower_gets_what_it_waits_for(store, run):
    assert appended(store, run, events(0, "a", "b"))
    assert appended(store, run, events(2, "c"))
    assert followed(store, "r1", 0).chunks == (events(0, "a", "b"), events(2, "c"))
    assert followed(store, "r1", 1).chunks == (events(0, "a", "b"), events(2, "c"))
    assert followed(store, "r1", 2).chunks == (events(2, "c"),)
    assert followed(store, "r1", 3) == Followed((), is_over=False)
    assert followed(store, "r1", 99).chunks == ()


def test_many_followers_are_answered_in_their_order(store):
    joined(store, "one")
    for place in range(5):
        assert appended(store, queued(store, f"r{place}", "one"), events(0, f"r{place}"))
    wanted = [Follow(ANN, f"r{place}", 0) for place in (3, 1, 4, 1)]
    wanted.insert(2, Follow(ANN, "nothing", 0))
    answers = store.follow(wanted)
    assert [answer.is_over for answer in answers] == [False, False, True, False, False]
    names = [f"r{place}" for place in (3, 1)] + [""] + ["r4", "r1"]
    expected = [(events(0, name),) if name else () for name in names]
    assert [answer.chunks for answer in answers] == expected


def test_a_follower_of_another_owner_sees_nothing(store, run):
    assert appended(store, run, events(0, "a"))
    assert followed(store, "r1", owner=BEN) == Followed((), is_over=True)
    assert store.load_events(BEN, "r1", 0) is None


def test_a_response_without_a_run_is_over_for_a_follower(store):
    put(store, "r1")
    assert followed(store, "r1") == Followed((), is_over=True)


def test_the_answers_are_bounded_and_each_has_a_chunk(store):
    joined(store, "one")
    chunks = [events(place, "x" * 1000) for place in range(5)]
    for id in ("r1", "r2"):
        fence = queued(store, id, "one")
        for chunk in chunks:
            assert appended(store, fence, chunk)
        store.save(ANN, record(id), None, (), guard=fence)
    first, second = store.follow([Follow(ANN, "r1", 0), Follow(ANN, "r2", 0)], 2500)
    assert first == Followed(tuple(chunks[:2]), is_over=False)
    assert second == Followed(tuple(chunks[:1]), is_over=False)
    assert followed(store, "r2", 1) == Followed(tuple(chunks[1:]), is_over=True)


def test_events_are_read_by_number_chunk_by_chunk(store, run):
    chunks = [events(0, "a", "b"), events(2, "c")]
    store.append([Append(ANN, run, chunk) for chunk in chunks])
    assert [store.load_events(ANN, "r1", number) for number in range(4)] == [chunks[0], chunks[0], chunks[1], chunks[1]]
    assert store.load_events(ANN, "nothing", 0) is None


def test_followers_of_a_run_that_goes_on_see_no_gap(store):
    """While runs are written, followers that come at any time see a beginning of what is there in the end."""
    joined(store, "one")
    fences = [queued(store, f"r{place}", "one") for place in range(3)]
    seen: dict[str, list[bytes]] = {fence.id: [] for fence in fences}
    chooses = random.Random(3)
    for place in range(20):
        appends = [Append(ANN, fence, events(place * 2, f"{place}", f"{fence.id}-{place}")) for fence in fences]
        chooses.shuffle(appends)
        follows = [call("follow", [Follow(ANN, fence.id, 0) for fence in fences]) for _ in range(3)]
        *_, result = store.at_once(*follows, call("append", appends))
        assert not result.lost
        for fence, answer in zip(fences, store.follow([Follow(ANN, f.id, 0) for f in fences]), strict=True):
            numbers = [number for chunk in answer.chunks for number in range(chunk.first, chunk.first + chunk.count)]
            assert numbers == list(range(len(numbers)))
            seen[fence.id].append(b"".join(chunk.frames for chunk in answer.chunks))
    for fence in fences:
        store.save(ANN, record(fence.id), None, (), guard=fence)
        final = frames(store, fence.id)
        assert all(final.startswith(earlier) for earlier in seen[fence.id])
        assert final.count(b"\n\n") == 40


def test_an_ended_run_is_over_with_all_its_events_for_whoever_looks(store):
    """Nobody sees the end before the last events."""
    joined(store, "one")
    for place in range(20):
        id = f"r{place}"
        fence = queued(store, id, "one")
        assert appended(store, fence, events(0, "a"))
        end = call("save", ANN, record(id), None, (), guard=fence, last=events(1, "end"))
        follows = [call("follow", [Follow(ANN, id, 0)]) for _ in range(4)]
        answers = store.at_once(*follows[:2], end, *follows[2:])
        for (answer,) in [each for each in answers if each is not None]:
            if answer.is_over:
                assert len(answer.chunks) == 2


def test_a_run_counts_as_bytes_of_its_owner_when_it_is_over(store, run):
    before = store.stats().bytes
    store.save(ANN, record("r1"), None, [item("out", 1000)], guard=run, last=events(0, "x" * 1000))
    assert store.stats().bytes - before >= 2000
