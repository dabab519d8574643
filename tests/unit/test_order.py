"""The legal order of events."""

import pytest

from toolwire.core.errors import OutOfOrder
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Note, TextDelta, TurnEnded, TurnStarted, Usage
from toolwire.core.order import TurnOrder


def seen(*events):
    order = TurnOrder()
    for event in events:
        order.check((event,))
    return order


def test_a_usual_turn_passes():
    order = seen(TurnStarted(), TextDelta("a"), CallStarted("c", "f"), CallArgs("c", "{}"), CallEnded("c"), Usage())
    assert order.feed(TurnEnded()) == (TurnEnded(),)
    assert order.end() == ()


def test_text_inside_a_call_is_out_of_order():
    with pytest.raises(OutOfOrder, match="TextDelta while CALLING"):
        seen(TurnStarted(), CallStarted("c", "search"), TextDelta("hi"))


@pytest.mark.parametrize("event", [CallArgs("call_2", "{}"), CallEnded("call_2")])
def test_the_events_of_a_call_name_the_call_that_is_open(event: Event):
    order = TurnOrder()
    order.check([TurnStarted("m"), CallStarted("call_1", "search"), CallArgs("call_1", "{}")])
    with pytest.raises(OutOfOrder, match=rf"{type(event).__name__} of 'call_2' while CALLING 'call_1'"):
        order.check([event])


def test_arguments_outside_a_call_are_out_of_order():
    with pytest.raises(OutOfOrder, match="CallArgs while TALKING"):
        seen(TurnStarted(), CallArgs("c", "{}"))


def test_nothing_comes_before_the_start_but_notes():
    seen(Note("retried"), TurnStarted())
    with pytest.raises(OutOfOrder, match="TextDelta while WAITING"):
        seen(TextDelta("hi"))


def test_nothing_follows_the_end():
    with pytest.raises(OutOfOrder, match="TextDelta while CLOSED"):
        seen(TurnStarted(), TurnEnded(), TextDelta("hi"))


def test_a_turn_without_an_end_is_out_of_order():
    with pytest.raises(OutOfOrder, match="end of stream while TALKING"):
        seen(TurnStarted()).end()
