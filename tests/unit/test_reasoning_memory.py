"""What is remembered of reasoning has bounds in bytes, and an owner's share of them is safe from others."""

import gc
import tracemalloc

from toolwire.core.request import CallEntry, ReasoningEntry, Request
from toolwire.memory.call_keys import CallKey
from toolwire.memory.reasoning import MAX_CACHED_BYTES, MAX_ORIGIN_BYTES, CallReasoning, ReasoningCache

MB = 1024 * 1024


def _key(owner: str, number: int) -> CallKey:
    return owner, f"call_{number}", "search", "", 1


def _fill(thoughts: ReasoningCache, owner: str, count: int, size: int) -> None:
    for number in range(count):
        signature = f"{number:08d}" * (size // 8)
        reasoning = (ReasoningEntry(signature=signature, origin="responses"),)
        thoughts.keep(_key(owner, number), CallReasoning("b", reasoning, signature, signature))
        thoughts.remember_signature(owner, signature, "b")
        thoughts.refuse("b", f"{number}{'m' * 1000}", "reasoning")


def test_reasoning_stays_within_the_bounds() -> None:
    thoughts = ReasoningCache()
    gc.collect()
    tracemalloc.start()
    try:
        _fill(thoughts, "loud", 50, MB)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < MAX_CACHED_BYTES + MAX_ORIGIN_BYTES  # the same text three times


def test_what_one_owner_keeps_is_not_pushed_out_by_another() -> None:
    thoughts = ReasoningCache()
    signature = "quiet" * 100
    reasoning = (ReasoningEntry(signature=signature, origin="responses"),)
    thoughts.keep(_key("quiet", 1), CallReasoning("elsewhere", reasoning))
    thoughts.remember_signature("quiet", signature, "elsewhere")
    _fill(thoughts, "loud", 60, MB)
    for number in range(60_000):
        thoughts.remember_signature("loud", f"signature {number}", "b")
    request = Request("m", (CallEntry("call_1", "search", "{}"),))
    [thought, _] = thoughts.restore_reasoning("quiet", request).entries
    assert isinstance(thought, ReasoningEntry)
    assert thought.signature == signature
    brought = Request("m", (thought, *request.entries))
    [dropped, _] = thoughts.fit_to_backend("b", "quiet", brought).entries
    assert isinstance(dropped, ReasoningEntry)
    assert not dropped.signature
