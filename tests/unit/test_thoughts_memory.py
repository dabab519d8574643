"""What is remembered of reasoning has bounds in bytes, and an owner's share of them is safe from others."""

import gc
import tracemalloc

from toolwire.core.request import CallEntry, ReasoningEntry, Request
from toolwire.runs.thoughts import KEPT_BYTES, MARKS_BYTES, CallKey, Made, Thoughts

MB = 1024 * 1024


def _key(owner: str, number: int) -> CallKey:
    return owner, f"call_{number}", "search", 0, 1


def _fill(thoughts: Thoughts, owner: str, count: int, size: int) -> None:
    for number in range(count):
        seal = f"{number:08d}" * (size // 8)
        thoughts.keep(_key(owner, number), (ReasoningEntry(seal=seal, issuer="responses"),))
        thoughts.keep_made(_key(owner, number), Made("b", seal))
        thoughts.keep_call_seal(_key(owner, number), seal)
        thoughts.issued(owner, seal, "b")
        thoughts.refuse("b", f"{number}{'m' * 1000}", "reasoning")


def test_reasoning_stays_within_the_bounds() -> None:
    thoughts = Thoughts()
    gc.collect()
    tracemalloc.start()
    try:
        _fill(thoughts, "loud", 50, MB)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < KEPT_BYTES + MARKS_BYTES  # the three tables hold the same texts here


def test_what_one_owner_keeps_is_not_pushed_out_by_another() -> None:
    thoughts = Thoughts()
    seal = "quiet" * 100
    thoughts.keep(_key("quiet", 1), (ReasoningEntry(seal=seal, issuer="responses"),))
    thoughts.issued("quiet", seal, "elsewhere")
    _fill(thoughts, "loud", 60, MB)
    for number in range(60_000):
        thoughts.issued("loud", f"seal {number}", "b")
    request = Request("m", (CallEntry("call_1", "search", "{}"),))
    [thought, _] = thoughts.restored("quiet", request).entries
    assert isinstance(thought, ReasoningEntry)
    assert thought.seal == seal
    brought = Request("m", (thought, *request.entries))
    [dropped, _] = thoughts.fit_for("b", "quiet", brought).entries
    assert isinstance(dropped, ReasoningEntry)
    assert not dropped.seal
