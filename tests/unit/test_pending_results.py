"""Results of the gateway's own tools that wait for a client's have bounds in bytes, and each owner has a share."""

from toolwire.core.request import CallEntry, ResultEntry, TextPart
from toolwire.memory.pending_results import MAX_CACHED_BYTES, PendingResults

LARGE = MAX_CACHED_BYTES // 8


def turn(kept: PendingResults, owner: str, number: int, size: int) -> CallEntry:
    """A turn that calls a tool of ours and one of the client's; returns the client's."""
    ours, theirs = CallEntry(f"ours{number}", "weather", "{}"), CallEntry(f"theirs{number}", "find", "{}")
    answer = ResultEntry(ours.id, (TextPart("x" * size),))
    kept.keep(owner, (), (), [ours, theirs], [answer])
    return theirs


def waits(kept: PendingResults, owner: str, call: CallEntry) -> bool:
    return len(kept.merge_into((call,), owner)) > 1


def test_of_too_many_bytes_the_oldest_results_go():
    kept = PendingResults()
    calls = [turn(kept, "ann", number, LARGE) for number in range(20)]
    left = [waits(kept, "ann", call) for call in calls]
    assert left == [False] * 13 + [True] * 7


def test_nobody_loses_results_to_somebody_who_has_more():
    kept = PendingResults()
    first = turn(kept, "ann", 0, 1000)
    for number in range(20):
        turn(kept, "ben", number, LARGE)
    assert waits(kept, "ann", first)
    assert not waits(kept, "ben", first)
