"""A Responses client and a Responses server: what we do not know survives, and what leaves is lawful all the same."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.museum.clients import Json, Received, received, sound_response
from tests.support.chunks import in_any_chunking
from tests.unit.test_responses_encoding import ask
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.backends.responses import Conversation
from toolwire.core.collect import collect
from toolwire.core.events import Note, RawFrame
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.core.sse import Frame, FrameReader
from toolwire.dialects import responses

Change = Callable[[list[Json]], list[Json]]

RULES = ToolRules()


def sse(events: list[Json], separators: tuple[str, str] = (",", ":")) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event, separators=separators, ensure_ascii=False)}\n\n".encode()
        for event in events
    )


def carried(pieces: list[bytes], request: Request, rules: ToolRules = RULES) -> tuple[bytes, bytes]:
    """The stream that leaves and the plain answer, through all stages."""
    conversation, reader, order = Conversation(request, "S"), FrameReader(), TurnOrder()
    conversation.start()
    assembly = assemble_policies(request, rules, "S", conversation.stand_in)
    encoder = responses.StreamEncoder(request, "resp_7", 7, assembly.stats)
    frames = [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()
    events = [event for frame in frames for event in conversation.feed(frame)] + [*conversation.end()]
    passed = [out for event in events for out in assembly.policies.feed(event)]
    stream = b"".join(piece for event in passed for each in order.feed(event) for piece in encoder.feed(each))
    order.end()
    return stream, responses.encode_turn(collect(passed), request, "resp_7", 7)


def judged(stream: bytes, plain: bytes) -> Received:
    """A lawful stream, which ends as the plain answer does."""
    told = received(stream)
    assert sound_response(json.loads(plain)) == told.response
    return told


def through(events: list[Json], request: Request | None = None, rules: ToolRules = RULES) -> Received:
    """The same in any chunking."""
    asked = request or ask()
    return judged(*in_any_chunking(sse(events), lambda pieces: carried(pieces, asked, rules)))


def at_once(events: list[Json]) -> Received:
    return judged(*carried([sse(events)], ask()))


# A turn with something unknown at every level

REASONING = {"id": "rs_1", "type": "reasoning", "encrypted_content": "E", "x_item": "rs"}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "phase": "commentary", "x_item": "msg"}
FUNCTION = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "f", "x_item": "fc"}
CUSTOM = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_2", "name": "p", "x_item": "ctc"}
SEARCH = {"id": "ws_1", "type": "web_search_call", "action": {"type": "search", "query": "q"}, "x_item": "ws"}
CITED = {"type": "url_citation", "start_index": 0, "end_index": 2, "url": "https://x", "title": "X", "x_annotation": 1}
LOGPROBS = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]
SAID = {"type": "output_text", "text": "Hi there", "annotations": [CITED], "logprobs": LOGPROBS, "x_part": "text"}
THOUGHT = {"type": "summary_text", "text": "Hm."}
USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0, "x_details": 1},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 7,
    "x_usage": 1,
}
RESPONSE = {"id": "resp_up", "object": "response", "model": "m-2026", "x_response": {"a": [1]}}
ITEMS: list[Json] = [
    {**REASONING, "summary": [THOUGHT], "status": "completed"},
    {**SEARCH, "status": "completed"},
    {**MESSAGE, "content": [SAID], "status": "completed"},
    {**FUNCTION, "arguments": '{"x":1}', "status": "completed"},
    {**CUSTOM, "input": "*** raw", "status": "completed"},
]


def _events() -> list[Json]:
    """The whole turn as OpenAI sends it, every event with a field more."""

    def item(place: int, begun: Json, *inside: Json) -> list[Json]:
        return [
            {"type": "response.output_item.added", "output_index": place, "item": {**begun, "status": "in_progress"}},
            *({"item_id": begun["id"], "output_index": place, **event} for event in inside),
            {"type": "response.output_item.done", "output_index": place, "item": ITEMS[place]},
        ]

    def text(verb: str, **fields: Any) -> Json:
        return {"type": f"response.{verb}", "content_index": 0, **fields}

    def summary(verb: str, **fields: Any) -> Json:
        return {"type": f"response.reasoning_summary_{verb}", "summary_index": 0, **fields}

    begun = {**RESPONSE, "status": "in_progress", "output": []}
    told = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *item(
            0,
            {**REASONING, "summary": []},
            summary("part.added", part={**THOUGHT, "text": ""}),
            summary("text.delta", delta="Hm."),
            summary("text.done", text="Hm."),
            summary("part.done", part=THOUGHT),
        ),
        *item(
            1,
            SEARCH,
            {"type": "response.web_search_call.in_progress"},
            {"type": "response.web_search_call.searching"},
            {"type": "response.web_search_call.completed"},
        ),
        *item(
            2,
            {**MESSAGE, "content": []},
            text("content_part.added", part={**SAID, "text": "", "annotations": [], "logprobs": []}),
            text("output_text.delta", delta="Hi ", logprobs=LOGPROBS, obfuscation="ab"),
            text("output_text.delta", delta="there", logprobs=[], obfuscation="c"),
            text("output_text.annotation.added", annotation_index=0, annotation=CITED),
            text("output_text.done", text="Hi there", logprobs=LOGPROBS),
            text("content_part.done", part=SAID),
        ),
        *item(
            3,
            {**FUNCTION, "arguments": ""},
            {"type": "response.function_call_arguments.delta", "delta": '{"x":', "obfuscation": "abc"},
            {"type": "response.function_call_arguments.delta", "delta": "1}", "obfuscation": "d"},
            {"type": "response.function_call_arguments.done", "arguments": '{"x":1}', "name": "f"},
        ),
        *item(
            4,
            {**CUSTOM, "input": ""},
            {"type": "response.custom_tool_call_input.delta", "delta": "*** ", "obfuscation": "e"},
            {"type": "response.custom_tool_call_input.delta", "delta": "raw", "obfuscation": "f"},
            {"type": "response.custom_tool_call_input.done", "input": "*** raw"},
        ),
        {
            "type": "response.completed",
            "response": {**RESPONSE, "status": "completed", "output": ITEMS, "usage": USAGE},
        },
    ]
    return [{**event, "sequence_number": number, "x_event": number} for number, event in enumerate(told)]


EVENTS = _events()
DELTAS = [event for event in EVENTS if event["type"].endswith(".delta")]


OURS = ("sequence_number", "item_id", "output_index", "content_index", "summary_index")


def without(event: Json, *keys: str) -> Json:
    return {key: value for key, value in event.items() if key not in keys}


def test_a_turn_that_needs_nothing_of_us_goes_through_unchanged():
    told = through(EVENTS)
    assert [event["type"] for event in told.events] == [event["type"] for event in EVENTS]
    for ours, theirs in zip(told.events[2:-1], EVENTS[2:-1], strict=True):
        assert ours == theirs
    assert told.output == ITEMS


def test_what_a_response_says_beyond_our_words_survives_and_what_is_ours_stays_ours():
    told = through(EVENTS)
    for event in told.events:
        if "response" in event:
            assert event["response"]["x_response"] == {"a": [1]}
            assert (event["response"]["id"], event["response"]["model"]) == ("resp_7", "m")
    usage = told.response["usage"]
    assert (usage["x_usage"], usage["input_tokens_details"]["x_details"]) == (1, 1)
    assert usage["total_tokens"] == 7


def test_deltas_that_nobody_touched_go_out_as_they_came():
    data = sse(EVENTS)
    stream, _ = carried([data], ask())
    lines = [line for line in data.split(b"\n") if b'.delta","' in line and line.startswith(b"data: ")]
    assert len(lines) == len(DELTAS)
    for line in lines:
        assert line in stream


def test_a_part_of_reasoning_keeps_its_fields_as_a_part_of_a_message_does():
    thought = json.dumps(THOUGHT), json.dumps({**THOUGHT, "x_part": 1})
    told = through(json.loads(json.dumps(EVENTS).replace(*thought)))
    assert told.of("reasoning_summary_part.done")[0]["part"]["x_part"] == 1
    assert told.output[0]["summary"] == [{**THOUGHT, "x_part": 1}]


# Servers that do it otherwise


def renumbered(number: Callable[[int], Any]) -> Change:
    return lambda events: [{**event, "sequence_number": number(place)} for place, event in enumerate(events)]


def unnumbered(events: list[Json]) -> list[Json]:
    return [without(event, "sequence_number") for event in events]


def placed(place: Callable[[int], int | None]) -> Change:
    def change(events: list[Json]) -> list[Json]:
        changed = [
            {**event, "output_index": place(event["output_index"])} if "output_index" in event else event
            for event in events
        ]
        return [{key: value for key, value in event.items() if value is not None} for event in changed]

    return change


def renamed(name: Callable[[Json], str | None]) -> Change:
    """Every item by another id, or by none."""

    def new_item(item: Json) -> Json:
        id = name(item)
        return without(item, "id") if id is None else {**item, "id": id}

    def change(events: list[Json]) -> list[Json]:
        ids = {item["id"]: name(item) for item in ITEMS}
        out: list[Json] = []
        for event in events:
            new = dict(event)
            if "item" in new:
                new["item"] = new_item(new["item"])
            if "item_id" in new:
                new["item_id"] = ids[new["item_id"]]
            if new.get("response", {}).get("output"):
                new["response"] = {**new["response"], "output": [new_item(item) for item in new["response"]["output"]]}
            out.append({key: value for key, value in new.items() if value is not None})
        return out

    return change


def only(*keep: str) -> Change:
    """Only events whose type ends like this, between the first and the last."""
    return lambda events: [events[0], *(each for each in events[1:-1] if each["type"].endswith(keep)), events[-1]]


def dropping(*drop: str) -> Change:
    return lambda events: [event for event in events if not event["type"].endswith(drop)]


def with_empty_output(change: Change) -> Change:
    def empty(events: list[Json]) -> list[Json]:
        *before, last = change(events)
        return [*before, {**last, "response": {**last["response"], "output": []}}]

    return empty


def as_it_is(events: list[Json]) -> list[Json]:
    return events


def reordered(events: list[Json]) -> list[Json]:
    """The same events with their keys backwards, at every level."""

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(each) for each in value] if isinstance(value, list) else value

    return turned(events)


def nested_number(events: list[Json]) -> list[Json]:
    """An unknown field in front that has a number of its own, and other numbers than ours."""
    return [
        {"x_inner": {"sequence_number": place}, **event, "sequence_number": 100 + place}
        for place, event in enumerate(events)
    ]


def in_deltas(change: Callable[[Json, int], Json]) -> Change:
    """Something else in every second delta, the first of each item included."""

    def changed(events: list[Json]) -> list[Json]:
        seen: dict[str, int] = {}
        out: list[Json] = []
        for event in events:
            new = event
            if event["type"].endswith(".delta"):
                number = seen.setdefault(event["item_id"], 0)
                seen[event["item_id"]] += 1
                new = change(event, number) if number % 2 == 0 else event
            out.append({key: value for key, value in new.items() if value is not None})
        return out

    return changed


OTHERWISE: dict[str, Change] = {
    "wrong places in deltas": in_deltas(lambda event, _: {**event, "output_index": event["output_index"] + 5}),
    "the place of another item in deltas": in_deltas(lambda event, _: {**event, "output_index": 0}),
    "no places in deltas": in_deltas(lambda event, _: {**event, "output_index": None}),
    "a new id in every delta": in_deltas(lambda event, number: {**event, "item_id": f"{event['item_id']}{number}"}),
    "wrong parts in deltas": in_deltas(
        lambda event, _: {key: value + 3 if key == "summary_index" else value for key, value in event.items()}
    ),
    "numbers from 100": renumbered(lambda place: 100 + 3 * place),
    "all numbers 0": renumbered(lambda place: 0),
    "numbers null": renumbered(lambda place: None),
    "no numbers": unnumbered,
    "a number inside an unknown field": nested_number,
    "keys in another order": reordered,
    "places from 3": placed(lambda place: place + 3),
    "places with gaps": placed(lambda place: 2 * place),
    "no places": placed(lambda place: None),
    "ids of another kind": renamed(lambda item: f"item-{item['id']}"),
    "the id of a call is the id of its item": renamed(lambda item: item.get("call_id") or item["id"]),
    "no ids": renamed(lambda item: None),
    "no beginning": dropping("response.created", "response.in_progress"),
    "no items added": dropping("output_item.added"),
    "no parts": dropping("content_part.added", "content_part.done", "summary_part.added", "summary_part.done"),
    "no texts done": dropping("text.done", "arguments.done", "input.done"),
    "no items done": dropping("output_item.done"),
    "only deltas and the end": only(".delta"),
    "only items done": with_empty_output(only("output_item.done")),
    "only the end": only("nothing at all"),
    "an empty end": with_empty_output(as_it_is),
}


NEVER_ADDED = OTHERWISE["no items added"], OTHERWISE["only deltas and the end"]
NEVER_DONE = OTHERWISE["no items done"], OTHERWISE["only deltas and the end"]
"""Here the last of what an item is comes when it was closed long ago."""


@pytest.mark.parametrize("change", OTHERWISE.values(), ids=[name.replace(" ", "-") for name in OTHERWISE])
def test_however_a_server_tells_it_the_turn_is_lawful_and_whole(change: Change):
    told = through(change(EVENTS))
    said = told.said
    assert (said.text, said.reasoning) == ("Hi there", "Hm.")
    assert said.calls == (("call_1", "f", '{"x":1}'), ("call_2", "p", "*** raw"))
    assert told.response["usage"]["total_tokens"] == 7
    if change not in NEVER_DONE:
        assert [item["type"] for item in told.output] == [item["type"] for item in ITEMS]


@pytest.mark.parametrize("change", OTHERWISE.values(), ids=[name.replace(" ", "-") for name in OTHERWISE])
def test_however_a_server_tells_it_what_we_do_not_know_survives(change: Change):
    upstream = change(EVENTS)
    told = through(upstream)
    assert told.response["x_response"] == {"a": [1]}
    # A call that was not added has no name yet when its first deltas come, and they have to wait for it.
    held = "call" if change in NEVER_ADDED else "nothing"
    deltas = [event for event in upstream if event["type"].endswith(".delta") and held not in event["type"]]
    ours = [event for event in told.events if event["type"].endswith(".delta") and held not in event["type"]]
    if deltas:
        assert [without(event, *OURS) for event in ours] == [without(event, *OURS) for event in deltas]
    if change in NEVER_DONE:
        return
    assert {item["type"]: item.get("x_item") for item in told.output} == {
        item["type"]: item["x_item"] for item in ITEMS
    }
    [message] = [item for item in told.output if item["type"] == "message"]
    [part] = message["content"]
    assert (message["phase"], part["x_part"], part["annotations"]) == ("commentary", "text", [CITED])
    [thought] = [item for item in told.output if item["type"] == "reasoning"]
    assert thought["encrypted_content"] == "E"


def test_a_plain_reply_keeps_its_items_as_they_are_and_in_their_order():
    conversation = Conversation(ask(), "S")
    body = {**RESPONSE, "status": "completed", "output": ITEMS, "usage": USAGE}
    events = conversation.feed_plain(json.dumps(body).encode())
    assert json.loads(responses.encode_turn(collect([*events]), ask(), "resp_7", 7))["output"] == ITEMS


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,", " : ")])
def test_white_space_between_the_fields_of_a_frame_means_nothing(separators: tuple[str, str]):
    stream, _ = carried([sse(EVENTS, separators)], ask())
    assert received(stream).events == through(EVENTS).events


def test_tools_that_were_declared_cost_no_delta_its_fields():
    """The text is read for calls then; what is none goes on as it came."""
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "p"}]
    told = through(EVENTS, ask(tools=tools))
    spoken = [event for event in told.events if event["type"] == "response.output_text.delta"]
    assert [event.get("obfuscation") for event in spoken] == ["ab", "c"]
    assert told.output == ITEMS


RULED: dict[str, tuple[ToolRules, tuple[str, ...]]] = {
    "one call at most": (ToolRules(max_calls=1), ("reasoning", "web_search_call", "message", "function_call")),
    "no equal calls": (ToolRules(dedup=True), tuple(item["type"] for item in ITEMS)),
    "no text after calls": (ToolRules(suppress_tail=True), tuple(item["type"] for item in ITEMS)),
    "one call and no more": (
        ToolRules(stop_after=True, stop_after_mode="first"),
        ("reasoning", "web_search_call", "message", "function_call"),
    ),
}


@pytest.mark.parametrize(("rules", "types"), RULED.values(), ids=[name.replace(" ", "-") for name in RULED])
def test_a_policy_changes_what_it_decides_and_nothing_else(rules: ToolRules, types: tuple[str, ...]):
    told = through(EVENTS, rules=rules)
    assert tuple(item["type"] for item in told.output) == types
    assert all(item["x_item"] for item in told.output)
    spoken = [event for event in told.events if event["type"] == "response.output_text.delta"]
    assert [event["obfuscation"] for event in spoken] == ["ab", "c"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_frames_over_several_lines_leave_on_one(end: bytes):
    """However a server breaks them, deltas or not, and whatever stands in them."""

    def broken(event: Json) -> bytes:
        lines = json.dumps(event, indent=1, ensure_ascii=False).encode().split(b"\n")
        return b"event: " + event["type"].encode() + end + b"".join(b"data: " + line + end for line in lines) + end

    data = b"".join(map(broken, EVENTS))
    told = judged(*in_any_chunking(data, lambda pieces: carried(pieces, ask())))
    assert told.events == through(EVENTS).events


def test_a_plain_reply_over_several_lines_can_become_a_stream():
    request = ask()
    body = json.dumps({**RESPONSE, "status": "completed", "output": ITEMS, "usage": USAGE}, indent=1)
    encoder = responses.StreamEncoder(request, "resp_7", 7, TurnStats())
    events = Conversation(request, "S").feed_plain(body.encode())
    told = received(b"".join(piece for event in events for piece in encoder.feed(event)))
    assert told.output == ITEMS
    assert told.response["x_response"] == {"a": [1]}


def test_a_request_over_several_lines_is_repeated_on_one():
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
    given = {"model": "m", "input": "Hi", "stream": True, "tools": tools, "metadata": {"a": "b"}}
    request = responses.decode_request(json.dumps(given, indent=1).replace("\n", "\r\n").encode())
    told = judged(*carried([sse(EVENTS)], request))
    assert told.response["tools"][0]["parameters"] == tools[0]["parameters"]
    assert told.response["metadata"] == {"a": "b"}


def test_a_plain_reply_with_half_letters_is_answered():
    said = {**SAID, "text": "Hi \ud83d there", "x_part": "\ude00"}
    call = {**FUNCTION, "arguments": '{"x":"\ud83d\ude00 \ud83d"}', "status": "completed"}
    output = [{**MESSAGE, "content": [said], "status": "completed"}, call]
    body = json.dumps({**RESPONSE, "status": "completed", "output": output, "usage": USAGE})
    for indent in (None, 1):
        text = json.dumps(json.loads(body), indent=indent)
        events = Conversation(ask(), "S").feed_plain(text.encode())
        answered = json.loads(responses.encode_turn(collect([*events]), ask(), "resp_7", 7))
        [part] = answered["output"][0]["content"]
        assert (part["text"], part["x_part"]) == ("Hi \ufffd there", "\ufffd")
        assert answered["output"][1]["arguments"] == '{"x":"\U0001f600 \ufffd"}'
        assert events.count(Note("letter_replaced")) == 3


# Items that are cut


def test_a_message_that_its_server_calls_incomplete_is_incomplete():
    message = {**MESSAGE, "content": [SAID], "status": "incomplete"}
    cut = [json.loads(json.dumps(event).replace("completed", "incomplete")) for event in EVENTS[-1:]]
    cut[0]["response"] |= {"output": [message], "incomplete_details": {"reason": "max_output_tokens"}}
    spoken = [event for event in EVENTS if event.get("output_index") == 2]
    spoken[-1] = {**spoken[-1], "item": message}
    told = through([EVENTS[0], *spoken, *cut])
    assert told.of("output_item.done")[0]["item"]["status"] == "incomplete"
    assert (told.response["status"], told.output) == ("incomplete", [message])


def test_a_message_that_a_server_left_open_when_it_ran_out_of_tokens_is_incomplete():
    cut = json.loads(json.dumps(EVENTS[-1]).replace("completed", "incomplete"))
    cut["response"] |= {"output": [], "incomplete_details": {"reason": "max_output_tokens"}}
    spoken = [event for event in EVENTS if event.get("output_index") == 2][:-1]
    told = through([EVENTS[0], *spoken, cut])
    assert [item["status"] for item in told.output] == ["incomplete"]


# Messages that share an id


def test_messages_that_share_an_id_are_all_told():
    def message(text: str) -> Json:
        return {**MESSAGE, "content": [{**SAID, "text": text}], "status": "completed"}

    items = [message("One."), message("Two."), message("Two.")]
    last = EVENTS[-1]
    final = {**last, "response": {**last["response"], "output": items}}
    done = [
        {"type": "response.output_item.done", "output_index": place, "item": item} for place, item in enumerate(items)
    ]
    for events in ([EVENTS[0], final], [EVENTS[0], *done, final], [EVENTS[0], *done, {**final, "response": RESPONSE}]):
        told = through(events)
        assert [item["content"][0]["text"] for item in told.output] == ["One.", "Two.", "Two."]
        assert len({item["id"] for item in told.output}) == 3
    body = json.dumps({**RESPONSE, "status": "completed", "output": items})
    answered = json.loads(
        responses.encode_turn(collect([*Conversation(ask(), "S").feed_plain(body.encode())]), ask(), "r", 7)
    )
    assert [item["content"][0]["text"] for item in answered["output"]] == ["One.", "Two.", "Two."]


# Servers that name nothing


def test_items_without_ids_keep_what_is_theirs():
    calls = [
        {"type": "function_call", "call_id": f"c{number}", "name": f"f{number}", "arguments": "{}"} for number in (1, 2)
    ]
    first, second = (
        {"type": "response.output_item.added", "output_index": place, "item": {**item, "arguments": ""}}
        for place, item in enumerate(calls, 1)
    )
    done = [
        {"type": "response.output_item.done", "output_index": place, "item": item}
        for place, item in enumerate(calls, 1)
    ]
    spoken = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
    last = {**EVENTS[-1], "response": {**EVENTS[-1]["response"], "output": []}}
    for order in (
        [spoken, first, done[0], second, done[1]],
        [first, second, spoken, done[1], done[0]],
        [first, spoken, done[0], second, done[1]],
    ):
        told = through([EVENTS[0], *order, last])
        found = {item["call_id"]: item["name"] for item in told.output if item["type"] == "function_call"}
        assert found == {"c1": "f1", "c2": "f2"}
        [message] = [item for item in told.output if item["type"] == "message"]
        assert not {"call_id", "name", "arguments"} & set(message)


# Which calls may be made


def called(*names: str) -> list[Json]:
    items = [
        {"type": "function_call", "id": f"fc_{name}", "call_id": f"c_{name}", "name": name, "arguments": "{}"}
        for name in names
    ]
    done = [
        {"type": "response.output_item.done", "output_index": place, "item": item} for place, item in enumerate(items)
    ]
    return [EVENTS[0], *done, {**EVENTS[-1], "response": {**EVENTS[-1]["response"], "output": items}}]


@pytest.mark.parametrize(
    ("choice", "passed"),
    [
        (None, ["f", "g", "h"]),
        ("auto", ["f", "g", "h"]),
        ("required", ["f", "g", "h"]),
        ("none", []),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}, ["g"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}, ["g"]),
        ({"type": "allowed_tools", "tools": []}, []),
    ],
)
def test_a_tool_choice_is_enforced(choice: Any, passed: list[str]):
    tools = [{"type": "function", "name": name} for name in ("f", "g")]
    told = through(called("f", "g", "h"), ask(tools=tools, tool_choice=choice))
    assert [item["name"] for item in told.output] == passed
    assert told.response["status"] == "completed"
    assert ("required_action" in told.response) == bool(passed)


@pytest.mark.parametrize(
    ("item", "answers"),
    [
        ({"type": "function_call_output", "call_id": "x", "output": "unknown MCP server"}, "x"),
        ({"type": "custom_tool_call_output", "call_id": "x", "output": "y"}, "x"),
        ({"type": "function_call_output", "output": "z"}, ""),
        ({"type": "web_search_call", "id": "ws_1", "note": "not a function_call_output"}, None),
    ],
)
def test_an_item_names_the_call_that_it_answers(item: Json, answers: str | None):
    data = json.dumps({"type": "response.output_item.done", "output_index": 0, "item": item}).encode()
    body = json.dumps({"object": "response", "status": "completed", "output": [item]}).encode()
    streamed, whole = Conversation(ask(), "S"), Conversation(ask(), "S")
    for events in (streamed.feed(Frame(b"", data)), whole.feed_plain(body)):
        done = [each for each in events if isinstance(each, RawFrame) and each.type.endswith("item.done")]
        assert [each.answers for each in done] == [answers]
