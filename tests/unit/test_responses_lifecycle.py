"""Whatever happens in a turn, its Responses stream is lawful, and its last word is the turn itself."""

import pytest
from hypothesis import given

from tests.museum.clients import Json, received, received_messages, sound_response
from tests.unit.test_responses_encoding import ASKED, finished, said, streamed, written
from tests.unit.walks import FAILED, told, turns
from toolwire.core.collect import Call, Reasoning, Refusal, Text, collect, events_of
from toolwire.core.events import Event, MessageEnded, Note, ReasoningDelta, TurnEnded, TurnStarted, Usage
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.dialects import responses


def check(events: list[Event]) -> None:
    """A lawful stream by every rule and schema, whose last word is the collected turn."""
    stream = streamed(events)
    if events[-1] is FAILED:
        assert stream.types[-2:] == ["error", "failed"]
        return
    plain = finished(events)
    assert sound_response(plain) == {**stream.response, "completed_at": plain["completed_at"]}
    ended = next(event for event in events if isinstance(event, TurnEnded))
    status = "incomplete" if ended.reason in ("length", "filter") else "completed"
    assert (stream.response["status"], stream.types[-1]) == (status, status)


@given(turns(same_dialect=False))
def test_any_turn_of_another_dialect_is_a_lawful_stream(events: list[Event]):
    check(events)


@given(turns(same_dialect=True))
def test_any_turn_of_the_same_dialect_is_a_lawful_stream(events: list[Event]):
    check(events)


@pytest.mark.parametrize("is_early", [True, False])
def test_an_empty_message_with_the_id_of_an_open_thought_is_in_neither_the_stream_nor_the_turn(is_early: bool):
    done = told("output_item.done", "msg_1", item={"type": "message", "id": "msg_1", "content": []})
    thought = ReasoningDelta("Hm.", "summary", 0, "msg_1")
    events = said(*((done, thought) if is_early else (thought, done)), MessageEnded("msg_1"))
    check(events)
    assert [item["type"] for item in streamed(events).response["output"]] == ["reasoning"]


@given(turns(same_dialect=False))
def test_nothing_is_lost_or_told_twice(events: list[Event]):
    output = streamed(events).response["output"]
    turn = collect(events)
    spoken = [part for item in output if item["type"] == "message" for part in item["content"]]
    assert "".join(part.get("text", "") for part in spoken) == turn.text
    assert "".join(part.get("refusal", "") for part in spoken) == turn.refusal
    calls = [item for item in output if item["type"] in ("function_call", "custom_tool_call")]
    assert [(item["call_id"], item.get("arguments", item.get("input"))) for item in calls] == [
        (call.id, call.arguments) for call in turn.calls
    ]
    assert [item.get("namespace", "") for item in calls] == [call.namespace for call in turn.calls]
    thoughts = [item for item in output if item["type"] == "reasoning"]
    assert "".join(part["text"] for item in thoughts for part in (*item["summary"], *item.get("content", ()))) == (
        "".join("".join(item.parts) for item in turn.items if isinstance(item, Reasoning))
    )
    signatures = [item.signature for item in turn.items if isinstance(item, Reasoning) and item.signature]
    assert [item["encrypted_content"] for item in thoughts if "encrypted_content" in item] == signatures


@given(turns(same_dialect=True))
def test_a_turn_of_its_own_events_is_the_same_turn(events: list[Event]):
    turn = collect(events)
    again = list(events_of(turn))
    order = TurnOrder()
    for event in again:
        order.check((event,))
    order.end()
    assert collect(again) == turn


@given(turns(same_dialect=False))
def test_a_socket_tells_the_same_without_names_comments_and_marker(events: list[Event]):
    encoder = responses.StreamEncoder(ASKED, "resp_7", 7, TurnStats(), lambda: 9, socket=True)
    messages = [piece.decode() for event in events for piece in encoder.feed(event)]
    on_socket, on_stream = received_messages(messages), streamed(events)
    *before, last = on_socket.events
    assert [_bare(event) for event in before] == [_bare(event) for event in on_stream.events[:-1]]
    telemetry = last["response"].pop("toolwire")
    assert last == on_stream.events[-1]
    assert telemetry["tool_call_count"] == 0


def _bare(event: Json) -> Json:
    return {key: value for key, value in event.items() if key != "status"} if event["type"] == "error" else event


@given(turns(same_dialect=False))
def test_extended_events_are_lawful_where_they_were_asked_for(events: list[Event]):
    stream = received(written(events, extended=True), extended=True)
    waits = "required_action" in stream.response
    assert stream.types.count("required_action") == waits
    if waits:
        assert stream.response["status"] == "incomplete"


def test_a_collected_turn_and_its_events_are_inverse():
    items = (
        Reasoning(("a", "b"), ("c",), "rs_1", "signature"),
        Text("Hi", "msg_1", 0),
        Text("there", "msg_1", 1),
        Refusal("no", "msg_2", 0),
        MessageEnded("msg_2"),
        Call("c", "f", "{}", namespace="n", item="fc_1"),
        Call("d", "p", "", "custom", complete=False),
    )
    events = [*events_of(collect([TurnStarted("r", "m"), Usage(1), Note("retried"), TurnEnded("length")]))]
    assert events == [TurnStarted("r", "m"), Usage(1), Note("retried"), TurnEnded("length")]
    turn = collect(events)
    whole = type(turn)("r", "m", items, Usage(1), (Note("retried"),), "length")
    assert collect([*events_of(whole)]) == whole
