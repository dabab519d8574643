"""A turn collected from its events, and the numbers told about it."""

import json

from toolwire.core.collect import Call, CallAssembler, Collector, Reasoning, Refusal, Text, collect, collect_calls
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import MAX_STORED_NOTES, TurnStats
from toolwire.note_texts import NOTE_TEXTS


def test_items_keep_the_models_order():
    turn = collect([
        TurnStarted("r", "m"), ReasoningDelta("a"), ReasoningDelta("b", part=1), ReasoningEnded("rs", "signature"),
        TextDelta("x"), TextDelta("y"), CallStarted("c", "f"), CallArgs("c", "{"), CallArgs("c", "}"), CallEnded("c"),
        TextDelta("z"), RefusalDelta("no"), Usage(1, 2), Note("retried"), TurnEnded("calls"),
    ])  # fmt: skip
    assert turn.items == (
        Reasoning(("a", "b"), id="rs", signature="signature"),
        Text("xy"),
        Call("c", "f", "{}"),
        Text("z"),
        Refusal("no"),
    )
    assert (turn.id, turn.model, turn.text, turn.refusal, turn.reasoning) == ("r", "m", "xyz", "no", "a\n\nb")
    assert (turn.usage, turn.notes, turn.reason) == (Usage(1, 2), (Note("retried"),), "calls")


def test_the_size_of_a_turn_is_in_bytes_and_not_in_characters():
    for delta in (TextDelta, RefusalDelta, ReasoningDelta, lambda text: CallArgs("c", text)):
        sizes: list[int] = []
        for text in ("", "aaaa", "aa€", "😀", "a\ud83d"):
            collector = Collector()
            for event in (TurnStarted(), CallStarted("c", "f"), delta(text)):
                collector.feed(event)
            sizes.append(collector.size)
        assert [size - sizes[0] for size in sizes] == [0, 4, 5, 4, 4]


def test_reasoning_without_an_end_is_kept():
    assert collect([TurnStarted(), ReasoningDelta("a"), TextDelta("x")]).items == (Reasoning(("a",)), Text("x"))


def test_a_call_without_an_end_is_incomplete():
    failure = Failure(502, "stream_cut", "gone")
    turn = collect([TurnStarted(), CallStarted("c", "f"), CallArgs("c", "{"), TurnFailed(failure)])
    assert turn.calls == (Call("c", "f", "{", complete=False),)
    assert turn.failure == failure


def test_an_assembler_gives_each_call_whole_and_once():
    assembler = CallAssembler()
    started = CallStarted("c", "f", "custom", "space", "item", "signature")
    assert [assembler.feed(event) for event in (started, CallArgs("c", "{"), TextDelta("x"))] == [None, None, None]
    assert assembler.open == started
    whole = Call("c", "f", "{}", "custom", True, "space", "item", "signature")
    assert [assembler.feed(event) for event in (CallArgs("c", "}"), CallEnded("c"))] == [None, whole]
    assert (assembler.open, assembler.feed(CallEnded("c"))) == (None, None)


def test_a_call_that_is_cut_leaves_nothing_to_the_next():
    events = [CallStarted("c", "f"), CallArgs("c", "{"), CallStarted("d", "g"), CallArgs("d", "[]"), CallEnded("d")]
    assert collect_calls(events) == [Call("d", "g", "[]")]


def test_a_collector_gives_nothing_before_the_end():
    assert Collector().feed(TextDelta("x")) == ()


def test_the_comment_and_the_headers_tell_the_same_numbers():
    stats = TurnStats("first")
    for event in (CallStarted("c", "f"), Note("call_capped", "d"), TurnEnded("calls")):
        stats.feed(event)
    comment = json.loads(stats.comment())
    headers = {name.decode(): value.decode() for name, value in stats.headers()}
    assert comment == {
        "tool_call_count": 1,
        "tool_call_truncated": True,
        "stop_after_tools_mode": "first",
        "notes": [{"code": "call_capped", "subject": "d"}],
    }
    assert headers["x-codex-tool-call-count"] == "1"
    assert headers["x-codex-tool-call-truncated"] == "true"
    assert headers["x-codex-stop-after-tools-mode"] == "first"
    assert json.loads(headers["x-toolwire-notes"]) == comment["notes"]


def test_notes_are_bounded_and_fit_a_header():
    stats = TurnStats()
    for number in range(MAX_STORED_NOTES + 10):
        stats.add_note(Note("text_block_kept", f"é\n{number}" * 50))
    assert len(stats.notes) == MAX_STORED_NOTES
    assert stats.counts["text_block_kept"] == MAX_STORED_NOTES + 10
    value = dict(stats.headers())[b"x-toolwire-notes"]
    assert value.isascii()
    assert b"\n" not in value
    assert len(value) < 4096


def test_every_note_code_in_the_source_is_explained():
    import re
    from pathlib import Path

    source = Path(__file__).parent.parent.parent / "src"
    used = {code for path in source.rglob("*.py") for code in re.findall(r'Note\("(\w+)"', path.read_text())}
    assert used == set(NOTE_TEXTS)
