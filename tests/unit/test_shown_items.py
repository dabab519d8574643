"""What a log has shown of a response, when nobody knows more than the log."""

import json
from typing import Any

from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnFailed,
    TurnStarted,
)
from toolwire.core.notes import TurnStats
from toolwire.dialects import responses
from toolwire.gateway.responses.shown import ShownItems

BODY = json.dumps({"model": "m", "input": "Go."}).encode()
DELIVERED: tuple[Event, ...] = (
    TurnStarted(),
    ReasoningDelta("I must ", "summary"),
    ReasoningDelta("look.", "summary"),
    ReasoningEnded(id="rs_1", signature="SIGNED"),
    TextDelta("Once "),
    TextDelta('upon \n a "time"'),
    CallStarted("c1", "find"),
    CallArgs("c1", '{"q":'),
    CallArgs("c1", '"x"}'),
    CallEnded("c1"),
    TextDelta("And "),
    TextDelta("then"),
    CallStarted("c2", "find"),
    CallArgs("c2", '{"q"'),
)


def logged(events: tuple[Event, ...]) -> tuple[ShownItems, list[Any]]:
    """The items of a log that ends after these events, and those of the response that fails there."""
    request = responses.read_request(BODY).request()
    encoder = responses.StreamEncoder(request, "resp_1", 0, TurnStats())
    shown = ShownItems()
    for event in events:
        for piece in encoder.feed(event):
            shown.feed(piece)
    encoder.feed(TurnFailed(Failure(500, "x", "x")))
    return shown, [json.loads(bytes(item)) for item in encoder.output]


def test_a_log_that_ends_anywhere_shows_the_items_that_the_response_has_then():
    for end in range(1, len(DELIVERED) + 1):
        shown, output = logged(DELIVERED[:end])
        assert [json.loads(bytes(item)) for item in shown.all] == output, DELIVERED[end - 1]


def test_only_items_that_are_closed_are_complete():
    shown, output = logged(DELIVERED)
    complete = [json.loads(bytes(item)) for item in shown.complete]
    assert complete == output[:-1]
    assert {item["status"] for item in complete} == {"completed"}
