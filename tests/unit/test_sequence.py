"""Interleaved calls are put in a row."""

from itertools import pairwise

import pytest

from toolwire.core.errors import BackendFault, Failure
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Note, TextDelta, TurnEnded, TurnFailed
from toolwire.core.sequence import OneCallAtATime


def row(*events):
    stage = OneCallAtATime()
    return [out for event in events for out in stage.feed(event)]


A, B = CallStarted("a", "f"), CallStarted("b", "g")


def test_a_call_in_one_piece_passes():
    events = [A, CallArgs("a", "{}"), CallEnded("a"), TextDelta("x"), TurnEnded()]
    assert row(*events) == events


def test_a_second_call_ends_a_first_one_whose_json_is_whole():
    assert row(A, CallArgs("a", "{}"), B, CallArgs("b", "{}"), CallEnded("a"), CallEnded("b")) == [
        A, CallArgs("a", "{}"), CallEnded("a"), B, CallArgs("b", "{}"), CallEnded("b"),
    ]  # fmt: skip


def test_what_begins_inside_an_unfinished_call_waits():
    assert row(A, CallArgs("a", "{"), B, TextDelta("x"), CallArgs("b", "{}"), CallArgs("a", "}"), CallEnded("a"),
               CallEnded("b")) == [
        A, CallArgs("a", "{"), CallArgs("a", "}"), CallEnded("a"), B, CallArgs("b", "{}"), CallEnded("b"), TextDelta("x"),
    ]  # fmt: skip


def test_an_unfinished_call_that_waited_goes_on_live():
    assert row(A, CallArgs("a", "{"), B, CallArgs("b", "{"), CallArgs("a", "}"), CallEnded("a"), CallArgs("b", "}"),
               CallEnded("b")) == [
        A, CallArgs("a", "{"), CallArgs("a", "}"), CallEnded("a"), B, CallArgs("b", "{"), CallArgs("b", "}"), CallEnded("b"),
    ]  # fmt: skip


def test_late_text_for_a_call_that_was_ended_early_is_noted_and_white_space_is_not():
    start = (A, CallArgs("a", "{}"), TextDelta("x"))
    assert row(*start, CallArgs("a", "more"))[-1] == Note("arguments_late", "a")
    assert row(*start, CallArgs("a", " "), CallEnded("a"))[-1] == TextDelta("x")


def test_a_custom_call_is_never_ended_early():
    patch = CallStarted("a", "patch", "custom")
    assert row(patch, CallArgs("a", "{}"), TextDelta("x")) == [patch, CallArgs("a", "{}")]


def test_a_failure_passes_an_open_call():
    failed = TurnFailed(Failure(502, "x", "y"))
    assert row(A, CallArgs("a", "{"), failed)[-1] == failed


def test_what_waits_is_bounded():
    stage = OneCallAtATime(limit=10)
    for event in (A, CallArgs("a", "{")):
        stage.feed(event)
    with pytest.raises(BackendFault, match="wait behind a call"):
        stage.feed(TextDelta("x" * 20))


def test_what_was_released_counts_no_longer():
    stage = OneCallAtATime(limit=10)
    opened = [CallStarted(str(number), "f") for number in range(9)]
    stage.feed(opened[0])
    for current, following in pairwise(opened):
        for event in (following, TextDelta("x"), CallArgs(following.id, "{ 1234"), CallEnded(current.id)):
            stage.feed(event)
