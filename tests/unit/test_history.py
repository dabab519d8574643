"""Every call has its result, every result its call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.adapt.history import NO_RESULT, repair_pairs
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.request import CallEntry, Entry, Message, ReasoningEntry, ResultEntry, TextPart

USER = Message("user", (TextPart("go on"),))


def call(id: str) -> CallEntry:
    return CallEntry(id, "f", "{}")


def result(id: str, text: str = "ok") -> ResultEntry:
    return ResultEntry(id, (TextPart(text),))


NO_ANSWER = ResultEntry("a", (TextPart(NO_RESULT),), failed=True)


def test_a_whole_history_is_left_alone():
    history = (USER, call("a"), call("b"), result("a"), result("b"), USER)
    assert repair_pairs(history, "strict") == (history, [])


def test_a_missing_result_is_put_right_after_its_batch():
    entries, notes = repair_pairs((call("a"), call("b"), result("b"), USER), "repair")
    assert entries == (call("a"), call("b"), result("b"), NO_ANSWER, USER)
    assert notes == [Note("result_missing", "a")]


def test_a_result_behind_other_messages_is_moved_to_its_call():
    entries, notes = repair_pairs((call("a"), USER, result("a")), "strict")
    assert (entries, notes) == ((call("a"), result("a"), USER), [Note("result_moved", "a")])


def test_an_id_may_be_used_again_once_its_call_is_answered():
    history = (call("a"), result("a"), USER, call("a"), result("a", "second"))
    assert repair_pairs(history, "strict") == (history, [])


@pytest.mark.parametrize("moves", [True, False])
def test_a_result_before_its_call_is_moved_behind_it(moves):
    for history in ((result("a"), call("a")), (USER, result("b"), call("a"), result("a"), call("b"))):
        entries, notes = repair_pairs(history, "repair", moves=moves)
        assert (
            sorted(entry.call_id for entry in entries if isinstance(entry, ResultEntry))
            == ["a", "b"][: len(history) // 2]
        )
        assert [note.code for note in notes] == ["result_moved"]
        assert repair_pairs(entries, "strict", moves=moves) == (entries, [])
    with pytest.raises(BadRequest, match="'a' comes before it"):
        repair_pairs((result("a"), call("a")), "strict", moves=moves)


def test_a_result_before_its_call_stands_behind_the_calls_made_with_it():
    entries, _ = repair_pairs((USER, result("a"), call("a"), call("b"), result("b")), "repair")
    assert entries == (USER, call("a"), call("b"), result("a"), result("b"))


def test_a_result_of_an_earlier_turn_is_not_that_of_a_later_call():
    entries, notes = repair_pairs((result("a"), USER, call("a")), "repair")
    assert entries == (USER, call("a"), NO_ANSWER)
    assert [note.code for note in notes] == ["result_dropped", "result_missing"]


def test_a_result_in_its_place_counts_before_one_that_came_too_early():
    later = ResultEntry("a", (TextPart("later"),))
    entries, notes = repair_pairs((result("a"), call("a"), later), "repair")
    assert (entries, [note.code for note in notes]) == ((call("a"), later), ["result_dropped"])


def test_a_missing_result_at_the_end_is_added_there():
    assert repair_pairs((USER, call("a")), "repair")[0] == (USER, call("a"), NO_ANSWER)


def test_an_orphan_result_is_left_out():
    assert repair_pairs((USER, result("x")), "repair") == ((USER,), [Note("result_dropped", "x")])


def test_a_second_result_for_one_call_is_left_out():
    entries, notes = repair_pairs((call("a"), result("a"), result("a", "again")), "repair")
    assert (entries, notes) == ((call("a"), result("a")), [Note("result_dropped", "a")])


@pytest.mark.parametrize(
    "history", [(USER, call("c9")), (USER, result("c9")), (call("c9"), result("c9"), result("c9"))]
)
def test_strict_refuses_and_names_the_call(history):
    with pytest.raises(BadRequest, match="c9"):
        repair_pairs(history, "strict")


SYSTEM = Message("system", (TextPart("be kind"),))


@pytest.mark.parametrize("before", [(), (SYSTEM,)], ids=["alone", "behind-the-system"])
def test_orphan_results_that_are_all_there_is_are_said_by_the_user(before):
    failed = ResultEntry("y", (TextPart("no luck"),), failed=True)
    entries, notes = repair_pairs((*before, result("x", "42"), failed), "repair")
    said = Message("user", (TextPart("42"),)), Message("user", (TextPart("Error: no luck"),))
    assert entries == (*before, *said)
    assert notes == [Note("result_as_message", "x"), Note("result_as_message", "y")]


def test_a_lone_orphan_result_that_says_nothing_is_refused():
    with pytest.raises(BadRequest, match="'x' is empty"):
        repair_pairs((SYSTEM, result("x", "")), "repair")


def test_a_lone_orphan_result_is_refused_where_histories_must_be_whole():
    with pytest.raises(BadRequest, match="'x'"):
        repair_pairs((result("x"),), "strict")


def test_the_same_call_again_before_its_result_is_one_call():
    entries, notes = repair_pairs((USER, call("a"), call("a"), result("a")), "repair")
    assert entries == (USER, call("a"), result("a"))
    assert [note.code for note in notes] == ["call_duplicate"]


def test_a_result_behind_the_next_call_of_the_same_id_is_not_taken_for_the_first():
    history = (call("a"), USER, call("a"), result("a"))
    entries, notes = repair_pairs(history, "repair")
    assert [type(entry).__name__ for entry in entries] == [
        "CallEntry",
        "ResultEntry",
        "Message",
        "CallEntry",
        "ResultEntry",
    ]
    assert "result_missing" in [note.code for note in notes]


entries = st.lists(
    st.one_of(
        st.builds(call, st.sampled_from("ab")),
        st.builds(result, st.sampled_from("ab")),
        st.sampled_from([USER, Message("assistant", (TextPart("Hi"),)), ReasoningEntry("r", ("why",))]),
    ),
    max_size=7,
)


@given(entries, st.booleans())
def test_a_history_that_is_recognised_as_paired_needs_no_repair(history: list[Entry], moves: bool):
    with pytest.MonkeyPatch.context() as patch:
        quick = repair_pairs(history, "repair", moves=moves)
        patch.setattr("toolwire.adapt.history._is_paired", lambda _: False)
        assert repair_pairs(history, "repair", moves=moves) == quick
