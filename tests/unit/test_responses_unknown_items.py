"""Items and events of a Responses server that nobody here knows: passed on where there is a place, and never in the way."""

import json

import pytest

from tests.museum.clients import Json
from tests.support.checked import responses_faults
from tests.unit.test_responses_encoding import ask
from tests.unit.test_responses_same_dialect import EVENTS, at_once, carried, sse


def strange(place: int, id: str = "bn_1") -> list[Json]:
    item = {"id": id, "type": "brand_new_call", "x": {"y": 1}}
    where = {"item_id": id, "output_index": place}
    return [
        {"type": "response.output_item.added", "output_index": place, "item": {**item, "status": "in_progress"}},
        {"type": "response.brand_new_call.progress", "percent": 5, **where},
        {"type": "response.output_item.done", "output_index": place, "item": {**item, "status": "completed"}},
    ]


def lawful(data: bytes) -> list[Json]:
    """Events of a stream that is lawful but for having events that nobody knows."""
    frames = []
    for block in data.decode().split("\n\n"):
        lines = block.split("\n")
        name = next((line[7:] for line in lines if line.startswith("event: ")), None)
        frames += [(name, json.loads(line[6:])) for line in lines if line.startswith("data: {")]
    broken = responses_faults(frames, done=data.endswith(b"data: [DONE]\n\n"))
    assert [rule for rule in broken if not rule.startswith("responses.unknown-event")] == []
    return [event for _, event in frames]


def test_items_of_unknown_types_are_passed_on_with_their_events():
    first, last = EVENTS[0], EVENTS[-1]
    message = [event for event in EVENTS if event.get("output_index") == 2]
    for events in (
        [first, *strange(0), *message, last],
        [first, *message, *strange(3), last],
        [first, *message, *strange(3), *strange(4, "bn_2"), last],
        [first, *message, *strange(3)[1:], last],
        [first, *message, *strange(3)[2:], last],
    ):
        turn = [*events[:-1], {**last, "response": {**last["response"], "output": []}}]
        stream, plain = carried([sse(turn)], ask())
        told = lawful(stream)
        output = told[-1]["response"]["output"]
        known = [item for item in output if item["type"] == "brand_new_call"]
        given = [event["item"] for event in events if event.get("item", {}).get("status") == "completed"]
        assert known == [item for item in given if item["type"] == "brand_new_call"]
        assert json.loads(plain)["output"] == output
        progress = [event for event in told if event["type"] == "response.brand_new_call.progress"]
        for event in progress:
            assert event["percent"] == 5
            assert output[event["output_index"]]["id"] == event["item_id"]


def test_unknown_items_without_ids_are_all_passed_on():
    items = [{"type": "brand_new_call", "x": number, "status": "completed"} for number in range(3)]
    done = [
        {"type": "response.output_item.done", "output_index": place, "item": item} for place, item in enumerate(items)
    ]
    last = {**EVENTS[-1], "response": {**EVENTS[-1]["response"], "output": []}}
    for events in ([EVENTS[0], *done, last], [EVENTS[0], {**last, "response": {**last["response"], "output": items}}]):
        stream, plain = carried([sse(events)], ask())
        for output in (lawful(stream)[-1]["response"]["output"], json.loads(plain)["output"]):
            assert [item["x"] for item in output] == [0, 1, 2]
            assert len({item["id"] for item in output}) == 3


UNKNOWN: list[Json] = [
    {"type": "response.brand_new"},
    {"type": "response.brand_new.delta", "delta": "x"},
    {"type": "response.brand_new.delta", "item_id": "msg_1", "output_index": 2, "delta": "x"},
    {"type": "response.brand_new.done", "item_id": "nobody", "output_index": 9},
    {"type": "response.output_text.brand_new", "item_id": "fc_1", "output_index": 3, "content_index": 0},
    {"type": "response.rate_limits.updated", "rate_limits": []},
    {"type": "keepalive"},
    {"type": "brand_new"},
]


@pytest.mark.parametrize("event", UNKNOWN, ids=[event["type"] for event in UNKNOWN])
def test_unknown_events_disturb_nothing_wherever_they_stand(event: Json):
    expected = at_once(EVENTS)
    for place in range(len(EVENTS)):
        told = at_once([*EVENTS[:place], event, *EVENTS[place:]])
        assert told.output == expected.output
        assert told.types == expected.types


def test_an_unknown_item_in_the_middle_of_another_costs_neither():
    for place in range(3, len(EVENTS) - 1):
        events = [*EVENTS[:place], *strange(9), *EVENTS[place:]]
        events[-1] = {**events[-1], "response": {**events[-1]["response"], "output": []}}
        stream, plain = carried([sse(events)], ask())
        output = lawful(stream)[-1]["response"]["output"]
        assert json.loads(plain)["output"] == output
        calls = [(item["call_id"], item.get("arguments", item.get("input"))) for item in output if "call_id" in item]
        assert calls == [("call_1", '{"x":1}'), ("call_2", "*** raw")]
        words = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
        assert "".join(words) == "Hi there"
        assert [item["x"] for item in output if item["type"] == "brand_new_call"] == [{"y": 1}]
