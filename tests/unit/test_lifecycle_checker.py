"""The checkers of Responses streams find nothing in sound streams and every fault that is put into them."""

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest

from tests.support.lifecycle import violations
from tests.support.schemas import HAS_SPECS, OPEN_RESPONSES, event_errors, load, response_errors

Json = dict[str, Any]
Change = Callable[[list[Json]], None]

needs_specs = pytest.mark.skipif(not HAS_SPECS, reason="needs the specifications beside the repository")

RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1700000000,
    "completed_at": None,
    "status": "in_progress",
    "incomplete_details": None,
    "model": "demo",
    "previous_response_id": None,
    "instructions": None,
    "output": [],
    "error": None,
    "tools": [
        {"type": "function", "name": "weather", "description": None, "parameters": {"type": "object"}, "strict": None},
        {"type": "custom", "name": "run", "description": "Runs a line."},
    ],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": "low", "summary": "auto"},
    "usage": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": False,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 39,
}


def event(type: str, **fields: Any) -> Json:
    return {"type": f"response.{type}", **fields}


def growing(kind: str, where: Json, key: str, *pieces: str, **done: Any) -> list[Json]:
    """Deltas and the done event that repeats them together."""
    return [
        *(event(f"{kind}.delta", **where, delta=piece) for piece in pieces),
        event(f"{kind}.done", **where, **{key: "".join(pieces)}, **done),
    ]


def item(place: int, begun: Json, ended: Json, *between: list[Json]) -> list[Json]:
    """Everything that a stream says of one item."""
    return [
        event("output_item.added", output_index=place, item={**begun, "status": "in_progress"}),
        *(event for events in between for event in events),
        event("output_item.done", output_index=place, item={**begun, "status": "completed", **ended}),
    ]


def reasoning(place: int = 0) -> list[Json]:
    begun = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
    summary = {"type": "summary_text", "text": "Two cities."}
    thought = {"type": "reasoning_text", "text": "Ask twice."}
    first = {"item_id": "rs_1", "output_index": place, "summary_index": 0}
    second = {"item_id": "rs_1", "output_index": place, "content_index": 0}
    return item(
        place,
        begun,
        {"summary": [summary], "content": [thought]},
        [event("reasoning_summary_part.added", **first, part={**summary, "text": ""})],
        growing("reasoning_summary_text", first, "text", "Two ", "cities."),
        [event("reasoning_summary_part.done", **first, part=summary)],
        [event("content_part.added", **second, part={**thought, "text": ""})],
        growing("reasoning_text", second, "text", "Ask ", "twice."),
        [event("content_part.done", **second, part=thought)],
    )


def message(place: int = 1, **ended: Any) -> list[Json]:
    begun = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}
    where = {"item_id": "msg_1", "output_index": place, "content_index": 0}
    return item(
        place,
        begun,
        {"content": [part], **ended},
        [event("content_part.added", **where, part={**part, "text": ""})],
        growing("output_text", {**where, "logprobs": []}, "text", "Let me", " look", "."),
        [event("content_part.done", **where, part=part)],
    )


def call(place: int, id: str, city: str) -> list[Json]:
    begun = {"type": "function_call", "id": f"fc_{id}", "call_id": f"call_{id}", "name": "weather", "arguments": ""}
    where = {"item_id": f"fc_{id}", "output_index": place}
    pieces = ('{"city":', f'"{city}"', "}")
    return item(
        place,
        begun,
        {"arguments": "".join(pieces)},
        growing("function_call_arguments", where, "arguments", *pieces, name="weather"),
    )


def custom(place: int = 4) -> list[Json]:
    begun = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_c", "name": "run", "input": ""}
    where = {"item_id": "ctc_1", "output_index": place}
    return item(place, begun, {"input": "ls -l"}, growing("custom_tool_call_input", where, "input", "ls", " -l"))


def search(place: int = 0) -> list[Json]:
    begun = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "Paris"}}
    where = {"item_id": "ws_1", "output_index": place}
    steps = [event(f"web_search_call.{step}", **where) for step in ("in_progress", "searching", "completed")]
    return item(place, begun, {}, steps)


def stream(*items: list[Json], closing: str = "completed", **final: Any) -> list[Json]:
    """A numbered stream around the items, each event a copy of its own."""
    output = [events[-1]["item"] for events in items]
    events = [
        event("created", response=RESPONSE),
        event("in_progress", response=RESPONSE),
        *(event for events in items for event in events),
        event(closing, response={**RESPONSE, "status": closing, "output": output, "usage": USAGE, **final}),
    ]
    return numbered([deepcopy(each) for each in events])


def numbered(events: list[Json]) -> list[Json]:
    for number, each in enumerate(events):
        each["sequence_number"] = number
    return events


def faults_of(events: list[Json]) -> list[str]:
    return [error for each in events for error in event_errors(each)]


def sound() -> list[Json]:
    """Reasoning, text, two parallel calls and a custom call, without a fault."""
    return stream(reasoning(), message(), call(2, "a", "Paris"), call(3, "b", "Rome"), custom())


def check(events: list[Json], *, done: bool | None = True, extended: bool = False) -> list[str]:
    return violations([(each["type"], each) for each in events], done=done, extended=extended)


def rules(found: list[str]) -> set[str]:
    return {violation.partition(":")[0] for violation in found}


# What can be done to a stream. Whatever moves events numbers them anew, so that only the intended fault is left.


def place_of(events: list[Json], kind: str, nth: int = 0) -> int:
    return [place for place, each in enumerate(events) if each["type"] == f"response.{kind}"][nth]


def inside(event: Json, path: tuple[Any, ...]) -> Any:
    return reduce(lambda value, step: value[step], path, event)


def change(kind: str, *path: Any, to: Any, nth: int = 0) -> Change:
    def mutate(events: list[Json]) -> None:
        inside(events[place_of(events, kind, nth)], path[:-1])[path[-1]] = to

    return mutate


def remove(kind: str, *path: Any, nth: int = 0) -> Change:
    def mutate(events: list[Json]) -> None:
        del inside(events[place_of(events, kind, nth)], path[:-1])[path[-1]]

    return mutate


def drop(kind: str, nth: int = 0) -> Change:
    def mutate(events: list[Json]) -> None:
        del events[place_of(events, kind, nth)]
        numbered(events)

    return mutate


def repeat(kind: str, nth: int = 0) -> Change:
    def mutate(events: list[Json]) -> None:
        place = place_of(events, kind, nth)
        events.insert(place, deepcopy(events[place]))
        numbered(events)

    return mutate


def move(kind: str, *, behind: str, nth: int = 0) -> Change:
    def mutate(events: list[Json]) -> None:
        moved = events.pop(place_of(events, kind, nth))
        events.insert(place_of(events, behind) + 1, moved)
        numbered(events)

    return mutate


def insert(new: Json, *, before: str) -> Change:
    def mutate(events: list[Json]) -> None:
        events.insert(place_of(events, before), deepcopy(new))
        numbered(events)

    return mutate


def all_of(*changes: Change) -> Change:
    def mutate(events: list[Json]) -> None:
        for each in changes:
            each(events)

    return mutate


def append(new: Json) -> Change:
    return lambda events: events.append({**deepcopy(new), "sequence_number": len(events)})


def from_one(events: list[Json]) -> None:
    for each in events:
        each["sequence_number"] += 1


ERROR = {"code": "server_error", "message": "Gone.", "param": None}
ERROR_EVENT: Json = {"type": "error", **ERROR, "error": {"type": "server_error", **ERROR}}
CITATION = {"type": "url_citation", "url": "http://paris.test", "title": "Paris", "start_index": 0, "end_index": 3}
ANNOTATION = event(
    "output_text.annotation.added",
    item_id="msg_1",
    output_index=1,
    content_index=0,
    annotation_index=0,
    annotation=CITATION,
)
LATE_TEXT = event("output_text.delta", item_id="msg_1", output_index=1, content_index=0, delta="!", logprobs=[])
EARLY_TEXT = event("output_text.delta", item_id="msg_1", output_index=7, content_index=0, delta="!", logprobs=[])
FINAL = ("response", "output")
DONE = "output_item.done"
ADDED = "output_item.added"
ARGUMENTS = "function_call_arguments"

FAULTS: dict[str, tuple[str, Change]] = {
    "a number is skipped": ("sequence", change("output_text.done", "sequence_number", to=99)),
    "a number comes twice": ("sequence", change("in_progress", "sequence_number", to=0)),
    "a number is text": ("sequence", change("in_progress", "sequence_number", to="1")),
    "a number is missing": ("sequence", remove("completed", "sequence_number")),
    "numbers begin with one": ("sequence", from_one),
    "created is missing": ("opening", drop("created")),
    "created comes twice": ("opening", repeat("created")),
    "in_progress is missing": ("opening", drop("in_progress")),
    "in_progress comes first": ("opening", move("created", behind="in_progress")),
    "in_progress comes after an item": ("opening", move("in_progress", behind=ADDED)),
    "queued comes late": ("opening", insert(event("queued", response={**RESPONSE, "status": "queued"}), before=ADDED)),
    "the closing event is missing": ("closing", drop("completed")),
    "there are two closing events": ("closing", repeat("completed")),
    "there are two different closing events": (
        "closing",
        insert(event("failed", response={**RESPONSE, "status": "failed"}), before="completed"),
    ),
    "something follows the closing event": ("closing", append(event("in_progress", response=RESPONSE))),
    "an error is followed by completed": ("error-event", insert(ERROR_EVENT, before="completed")),
    "an error comes in the middle": ("error-event", insert(ERROR_EVENT, before=DONE)),
    "the response id changes": ("response-id", change("completed", "response", "id", to="resp_2")),
    "the response id is missing": ("response-id", remove("in_progress", "response", "id")),
    "created says completed": ("response-status", change("created", "response", "status", to="completed")),
    "created says queued and nothing is": ("response-status", change("created", "response", "status", to="queued")),
    "completed says incomplete": ("response-status", change("completed", "response", "status", to="incomplete")),
    "completed says in_progress": ("response-status", change("completed", "response", "status", to="in_progress")),
    "ping is sent": ("unknown-event", insert({"type": "ping"}, before=ADDED)),
    "an event with a prefix is sent": ("unknown-event", insert({"type": "toolwire:ping"}, before=ADDED)),
    "reasoning has the other name": ("unknown-event", insert(event("reasoning.delta"), before=ADDED)),
    "an item is not announced": ("item-added final-output", drop(ADDED, 4)),
    "text comes before its item": ("item-added", insert(EARLY_TEXT, before=ADDED)),
    "an item is announced twice": ("output-index", repeat(ADDED, 2)),
    "an index is skipped": ("output-index item-added item-closed", change(ADDED, "output_index", to=7, nth=4)),
    "an index is text": ("output-index item-added final-output", change(ADDED, "output_index", to="4", nth=4)),
    "two items have one id": ("item-id item-identity", change(ADDED, "item", "id", to="fc_a", nth=3)),
    "an event has the id of another item": ("item-id", change("output_text.delta", "item_id", to="rs_1")),
    "an event has no item id": ("item-id", remove(f"{ARGUMENTS}.done", "item_id")),
    "an event has the index of another item": (
        "closed-item text-agrees",
        change(f"{ARGUMENTS}.delta", "output_index", to=2, nth=3),
    ),
    "an item has no id": ("item-keys item-id item-identity", remove(ADDED, "item", "id", nth=1)),
    "an item has no status": ("item-keys item-status final-output", remove(DONE, "item", "status")),
    "a message has no role": ("item-keys item-identity", remove(ADDED, "item", "role", nth=1)),
    "a call is announced without its name": ("item-keys item-identity", remove(ADDED, "item", "name", nth=2)),
    "an item begins completed": ("item-status", change(ADDED, "item", "status", to="completed")),
    "an item ends in progress": ("item-status final-output", change(DONE, "item", "status", to="in_progress")),
    "a part is not announced": ("part-order text-agrees", drop("content_part.added", 1)),
    "a summary part is not announced": ("part-order text-agrees", drop("reasoning_summary_part.added")),
    "a part is announced after its text": (
        "part-order text-agrees",
        move("content_part.added", behind="output_text.delta", nth=1),
    ),
    "a part has the wrong index": ("part-order", change("content_part.added", "content_index", to=1, nth=1)),
    "text has the wrong part index": ("part-order text-agrees", change("output_text.delta", "content_index", to=1)),
    "a part begins with text": ("part-begins-empty", change("content_part.added", "part", "text", to="Let", nth=1)),
    "a part of the wrong type is announced": (
        "part-order",
        change("content_part.added", "part", "type", to="summary_text", nth=1),
    ),
    "a part changes its type": (
        "part-order text-agrees",
        change("content_part.done", "part", "type", to="refusal", nth=1),
    ),
    "a part is not closed": ("part-order", drop("content_part.done", 1)),
    "a part is closed before its text": ("part-order", move("content_part.done", behind="output_text.delta", nth=1)),
    "a part begins inside another": ("part-order", move("reasoning_summary_part.done", behind="content_part.added")),
    "text has no done": ("part-order", drop("output_text.done")),
    "text comes after its done": ("part-order text-agrees", move("output_text.delta", behind="output_text.done")),
    "text is done twice": ("part-order", repeat("output_text.done")),
    "a delta of text is lost": ("text-agrees", drop("output_text.delta", 1)),
    "a delta of text comes twice": ("text-agrees", repeat("output_text.delta")),
    "a delta is no string": ("text-agrees", change("output_text.delta", "delta", to=None)),
    "a letter differs in done": ("text-agrees", change("output_text.done", "text", to="Let me look!")),
    "a letter differs in the summary": ("text-agrees", change("reasoning_summary_text.done", "text", to="Two Cities.")),
    "a letter differs in the thought": ("text-agrees", change("reasoning_text.delta", "delta", to="ask ")),
    "a letter differs in the part": (
        "text-agrees",
        change("content_part.done", "part", "text", to="Let me look!", nth=1),
    ),
    "a letter differs in the closed item": (
        "text-agrees final-output",
        change(DONE, "item", "content", 0, "text", to="Let me look!", nth=1),
    ),
    "a letter differs in the final output": (
        "final-output",
        change("completed", *FINAL, 1, "content", 0, "text", to="Let me look!"),
    ),
    "a closed item lacks a part": ("text-agrees final-output", change(DONE, "item", "summary", to=[], nth=0)),
    "a delta of arguments is lost": ("text-agrees", drop(f"{ARGUMENTS}.delta")),
    "all deltas of input are lost": ("call-order text-agrees", all_of(*[drop("custom_tool_call_input.delta")] * 2)),
    "a letter differs in arguments.done": (
        "text-agrees",
        change(f"{ARGUMENTS}.done", "arguments", to='{"city":"paris"}'),
    ),
    "a letter differs in input.done": ("text-agrees", change("custom_tool_call_input.done", "input", to="ls -L")),
    "a letter differs in the closed call": (
        "text-agrees final-output",
        change(DONE, "item", "arguments", to="{}", nth=2),
    ),
    "a call has no arguments.done": ("call-order", drop(f"{ARGUMENTS}.done")),
    "a call has two arguments.done": ("call-order", repeat(f"{ARGUMENTS}.done")),
    "a delta comes after arguments.done": (
        "call-order text-agrees",
        move(f"{ARGUMENTS}.delta", behind=f"{ARGUMENTS}.done"),
    ),
    "a custom call is told as a function": (
        "call-order text-agrees",
        change("custom_tool_call_input.delta", "type", to=f"response.{ARGUMENTS}.delta"),
    ),
    "a call begins with its arguments": ("item-begins-empty", change(ADDED, "item", "arguments", to="{}", nth=2)),
    "a message begins with its content": (
        "item-begins-empty",
        change(ADDED, "item", "content", to=[{"type": "output_text"}], nth=1),
    ),
    "arguments are an object": (
        "arguments-string text-agrees final-output",
        change(DONE, "item", "arguments", to={"city": "Paris"}, nth=2),
    ),
    "arguments are an object in done": (
        "arguments-string",
        change(f"{ARGUMENTS}.done", "arguments", to={"city": "Paris"}),
    ),
    "arguments begin as null": ("arguments-string", change(ADDED, "item", "arguments", to=None, nth=2)),
    "two calls have one call id": ("call-id item-identity", change(ADDED, "item", "call_id", to="call_a", nth=3)),
    "id and call id are the same": ("call-id item-identity", change(ADDED, "item", "call_id", to="fc_a", nth=2)),
    "the type changes": ("item-identity final-output", change(DONE, "item", "type", to="custom_tool_call", nth=2)),
    "the id changes": ("item-identity final-output", change(DONE, "item", "id", to="fc_z", nth=2)),
    "the call id changes": ("item-identity final-output", change(DONE, "item", "call_id", to="call_z", nth=2)),
    "the name changes": ("item-identity final-output", change(DONE, "item", "name", to="wether", nth=2)),
    "the name changes in arguments.done": ("item-identity", change(f"{ARGUMENTS}.done", "name", to="wether")),
    "an item is not closed": ("item-closed", drop(DONE, 4)),
    "an item is closed twice": ("closed-item", repeat(DONE, 1)),
    "text comes after its item": ("closed-item", insert(LATE_TEXT, before="completed")),
    "an item is closed after the end": ("closing", move(DONE, behind="completed", nth=4)),
    "the final output lacks an item": ("final-output", remove("completed", *FINAL, 4)),
    "the final output is empty": ("final-output", change("completed", *FINAL, to=[])),
    "the final output is in another order": ("final-output", lambda events: events[-1]["response"]["output"].reverse()),
    "the final output has another status": ("final-output", change("completed", *FINAL, 2, "status", to="in_progress")),
    "an incomplete item is in a completed response": (
        "incomplete-item",
        all_of(
            change(DONE, "item", "status", to="incomplete", nth=4),
            change("completed", *FINAL, 4, "status", to="incomplete"),
        ),
    ),
}


def test_a_sound_stream_breaks_no_rule():
    assert check(sound()) == []


def test_a_sound_stream_fits_the_schemas():
    assert faults_of(sound()) == []


@pytest.mark.parametrize(("broken", "mutate"), FAULTS.values(), ids=[name.replace(" ", "-") for name in FAULTS])
def test_a_fault_breaks_exactly_its_rules(broken: str, mutate: Change):
    events = sound()
    mutate(events)
    assert rules(check(events)) == set(broken.split())


@pytest.mark.parametrize("place", range(len(sound())), ids=lambda place: f"{place}-{sound()[place]['type']}")
def test_an_event_that_is_lost_without_a_gap_is_missed(place: int):
    events = sound()
    del events[place]
    assert check(numbered(events))


def test_neighbours_of_one_item_cannot_change_places():
    for place, (first, second) in enumerate(pairwise(sound())):
        events = sound()
        events[place : place + 2] = [second, first]
        assert check(numbered(events)) or first.get("output_index") != second.get("output_index")


def test_an_item_may_begin_before_another_ends():
    events = stream(call(0, "a", "Paris"), call(1, "b", "Rome"))
    move(ADDED, behind=ADDED, nth=1)(events)
    assert check(events) == []


def test_the_wrong_event_name_is_found():
    frames = [(each["type"], each) for each in sound()]
    frames[3] = ("message", frames[3][1])
    assert rules(violations(frames, done=True)) == {"event-name"}


def test_a_missing_event_name_is_found():
    assert rules(violations([(None, each) for each in sound()], done=True)) == {"event-name"}


def test_a_websocket_needs_neither_names_nor_a_marker():
    assert violations([(None, each) for each in sound()], done=None) == []


def test_a_missing_done_marker_is_found():
    assert rules(check(sound(), done=False)) == {"done-marker"}


def test_an_empty_stream_is_found():
    assert rules(check([])) == {"opening", "closing"}


def test_in_progress_may_be_repeated_to_keep_the_connection():
    events = sound()
    insert(event("in_progress", response=RESPONSE), before=DONE)(events)
    assert check(events) == []


def test_a_response_may_wait_in_a_queue():
    events, queued = sound(), {**RESPONSE, "status": "queued"}
    insert(event("queued", response=queued), before="in_progress")(events)
    change("created", "response", "status", to="queued")(events)
    assert check(events) == []


def test_text_may_be_annotated_inside_its_part():
    events = sound()
    insert(ANNOTATION, before="output_text.done")(events)
    assert check(events) == []
    assert faults_of(events) == []


def test_an_annotation_after_its_part_is_found():
    events = sound()
    events.insert(place_of(events, "content_part.done", 1) + 1, deepcopy(ANNOTATION))
    assert rules(check(numbered(events))) == {"part-order"}


def test_hosted_tools_have_events_of_their_own():
    events = stream(search(), message())
    assert check(events) == []
    assert faults_of(events) == []


def test_hosted_tools_keep_the_rules_of_items():
    events = stream(search(), message())
    change("web_search_call.searching", "item_id", to="ws_2")(events)
    assert rules(check(events)) == {"item-id"}


@pytest.mark.parametrize("closing", ["incomplete", "failed"])
def test_the_last_item_may_be_incomplete_when_the_response_is_not_completed(closing: str):
    details = {"incomplete_details": {"reason": "max_output_tokens"}} if closing == "incomplete" else {}
    events = stream(reasoning(), message(status="incomplete"), closing=closing, **details)
    assert check(events) == []
    assert faults_of(events) == []


def test_an_incomplete_item_that_is_not_the_last_is_found():
    events = stream(message(0, status="incomplete"), call(1, "a", "Paris"), closing="incomplete")
    assert rules(check(events)) == {"incomplete-item"}


def test_a_failure_is_an_error_and_a_failed_response():
    events = stream(message(0), closing="failed", error={"code": "server_error", "message": "Gone."}, usage=None)
    insert(ERROR_EVENT, before="failed")(events)
    assert check(events) == []
    assert faults_of(events) == []


def test_half_a_call_need_not_be_declared_done():
    events = stream(call(0, "a", "Paris"), closing="incomplete")
    change(DONE, "item", "status", to="incomplete")(events)
    change("incomplete", *FINAL, 0, "status", to="incomplete")(events)
    drop(f"{ARGUMENTS}.done")(events)
    assert check(events) == []


@pytest.mark.parametrize("type", ["ping", "response.required_action", "toolwire:required_action"])
def test_an_extended_stream_may_have_further_events(type: str):
    events = sound()
    insert({"type": type}, before="completed")(events)
    assert check(events, extended=True) == []


def test_an_extended_stream_may_not_have_any_event():
    events = sound()
    insert({"type": "response.pong"}, before="completed")(events)
    assert rules(check(events, extended=True)) == {"unknown-event"}


def test_an_extended_response_is_incomplete_while_calls_wait():
    assert check(stream(call(0, "a", "Paris"), status="incomplete"), extended=True) == []


def test_an_extended_response_without_calls_is_not_incomplete():
    assert rules(check(stream(message(0), status="incomplete"), extended=True)) == {"response-status"}


def test_nothing_in_a_stream_makes_the_checker_fail():
    for seed in range(2000):
        rnd = random.Random(seed)
        events = sound()
        owner, key = rnd.choice([*leaves(rnd.choice(events))])
        owner[key] = rnd.choice([None, 0, True, "", "x", [], {}, [None], {"type": []}])
        check(events)


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as its owner and the key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        yield from leaves(inner)


def changed(**fields: Any) -> Json:
    return {**RESPONSE, **fields}


def test_the_response_object_fits_the_schemas():
    assert response_errors(RESPONSE) == []


@needs_specs
def test_the_response_object_has_the_31_required_keys():
    required = load(OPEN_RESPONSES)["components"]["schemas"]["ResponseResource"]["required"]
    assert len(required) == 31
    assert set(RESPONSE) == set(required)


@needs_specs
@pytest.mark.parametrize("key", RESPONSE)
def test_a_missing_key_of_the_response_object_is_found(key: str):
    incomplete = {name: value for name, value in RESPONSE.items() if name != key}
    expected = f"Open Responses: $: '{key}' is a required property"
    assert expected in response_errors(incomplete)
    for type in ("created", "in_progress", "completed", "failed", "incomplete"):
        whole = event(type, sequence_number=0, response=incomplete)
        assert expected.replace("$", "$.response") in event_errors(whole)


@needs_specs
@pytest.mark.parametrize(
    "key",
    [
        *(
            "temperature",
            "top_p",
            "presence_penalty",
            "frequency_penalty",
            "top_logprobs",
            "truncation",
            "text",
            "store",
        ),
        *("background", "service_tier", "tools", "tool_choice", "parallel_tool_calls"),
    ],
)
def test_a_key_that_may_not_be_null_is_found(key: str):
    assert any(f"$.{key}: None is not" in error for error in response_errors(changed(**{key: None})))


def test_the_package_alone_finds_a_missing_key():
    incomplete = {key: value for key, value in RESPONSE.items() if key != "tools"}
    assert "openai package: $: 'tools' is a required property" in response_errors(incomplete)


def test_a_response_may_tell_which_action_it_requires():
    assert response_errors(changed(required_action={"type": "submit_tool_outputs"})) == []


def test_a_response_may_have_no_usage():
    assert response_errors(changed(usage=None)) == []


def test_usage_that_is_there_is_judged():
    assert response_errors(changed(usage=USAGE)) == []
    assert response_errors(changed(usage={"input_tokens": 1}))


@needs_specs
def test_usage_needs_the_written_cache_tokens():
    details = {"input_tokens_details": {"cached_tokens": 0}}
    errors = response_errors(changed(usage={**USAGE, **details}))
    assert "OpenAI document: $.usage.input_tokens_details: 'cache_write_tokens' is a required property" in errors


@pytest.mark.parametrize("type", ["response.reasoning.delta", "ping", "toolwire:ping", None])
def test_an_event_that_nobody_knows_is_found(type: str | None):
    assert event_errors({"type": type, "sequence_number": 0}) == [f"openai package: there is no event {str(type)!r}"]


def test_a_fault_in_an_item_is_told_by_the_schema_of_its_type():
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": {}}
    errors = response_errors(changed(output=[item]))
    assert errors[0] == "openai package: $.output[0].arguments: {} is not of type 'string'"


@needs_specs
def test_each_side_finds_its_own_half_of_an_error_missing():
    flat = {key: value for key, value in ERROR_EVENT.items() if key != "error"}
    nested = {"type": "error", "error": ERROR_EVENT["error"]}
    assert event_errors({**ERROR_EVENT, "sequence_number": 0}) == []
    assert event_errors({**flat, "sequence_number": 0}) == ["Open Responses: $: 'error' is a required property"]
    assert "OpenAI document: $: 'code' is a required property" in event_errors({**nested, "sequence_number": 0})


@needs_specs
@pytest.mark.parametrize(
    ("kind", "key"),
    [("function_call_arguments.done", "name"), ("output_text.delta", "logprobs"), ("output_text.done", "logprobs")],
)
def test_what_only_openai_needs_is_found_missing(kind: str, key: str):
    events = sound()
    remove(kind, key)(events)
    errors = event_errors(events[place_of(events, kind)])
    assert f"OpenAI document: $: '{key}' is a required property" in errors


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "status": "completed", "input": ""},
        {"type": "pigeon", "id": "pg_1", "status": "completed"},
    ],
    ids=["custom-call-without-a-name", "unknown-item"],
)
def test_items_that_open_responses_does_not_describe_are_still_judged(item: Json):
    assert event_errors(event("output_item.done", sequence_number=0, output_index=0, item=item))
    assert response_errors(changed(output=[item]))


@needs_specs
@pytest.mark.parametrize(("place", "key"), [(0, "encrypted_content"), (1, "phase")])
def test_null_for_what_should_be_left_out_is_found(place: int, key: str):
    events = sound()
    events[-1]["response"]["output"][place][key] = None
    assert any(error.startswith("Open Responses: ") for error in event_errors(events[-1]))


@pytest.mark.parametrize("choice", ["none", {"type": "function", "name": "weather"}, {"type": "custom", "name": "run"}])
def test_every_form_of_tool_choice_fits(choice: Any):
    assert response_errors(changed(tool_choice=choice)) == []


def test_allowed_tools_need_a_mode():
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "run"}]}
    assert response_errors(changed(tool_choice=allowed)) == []
    del allowed["mode"]
    assert response_errors(changed(tool_choice=allowed))
