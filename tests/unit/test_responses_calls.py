"""Calls of Responses servers that leave out, repeat, reorder or respell what they say of them.

Every stream is read by the backend's decoder, in any chunking, and by the public aggregator: both must make the same
calls of it.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.chunks import in_any_chunking
from tests.support.frames import completed, created, sse, stream
from toolwire import ToolCallAggregator
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.backends.responses import Conversation
from toolwire.core.collect import Call, Turn, collect
from toolwire.core.events import Note
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request, Tool
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline

Json = dict[str, Any]

ARGUMENTS = '{"q":"x"}'
FOUND = Call("c1", "find", ARGUMENTS)
TOOLS = (Tool("find"), Tool("look"))


def turn(events: Sequence[Json], end: bytes | None = None, tools: tuple[Tool, ...] = TOOLS) -> Turn:
    """The turn that a chat client is told of."""
    data = stream(created(), *map(sse, events), completed() if end is None else end)

    def run(pieces: list[bytes]) -> Turn:
        request = Request("m", (), tools=tools)
        conversation = Conversation(request, "S")
        assembly = assemble_policies(request, ToolRules(), "S", conversation.stand_in)
        line = Pipeline(FrameReader(), conversation, assembly.policies, TurnOrder())
        made = collect([event for piece in pieces for event in line.feed(piece)] + list(line.end()))
        return replace(made, notes=tuple(assembly.stats.notes))

    return in_any_chunking(data, run)


def aggregated(events: Sequence[Json]) -> tuple[Call, ...]:
    aggregator = ToolCallAggregator([tool.name for tool in TOOLS], seed="S")
    for event in (*events, {"type": "response.completed", "response": {"output": []}}):
        aggregator.ingest_delta(event)
    return aggregator.snapshot()


def calls(events: Sequence[Json]) -> tuple[Call, ...]:
    """The calls of a stream, of which decoder and aggregator agree."""
    made = turn(events)
    assert made.failure is None
    assert made.calls == tuple(
        Call(each.id, each.name, each.arguments, each.kind, each.complete) for each in made.calls
    )
    # A call that waits for its name is delivered behind those that do not.
    assert sorted(aggregated(events), key=_by_id) == sorted(made.calls, key=_by_id)
    return made.calls


def _by_id(call: Call) -> str:
    return call.id


def added(item: Json, place: int | None = 0) -> Json:
    return _placed({"type": "response.output_item.added", "item": {"type": "function_call", **item}}, place)


def ended(item: Json, place: int | None = 0) -> Json:
    return _placed({"type": "response.output_item.done", "item": {"type": "function_call", **item}}, place)


def delta(text: str, item: str = "fc_1", place: int | None = 0, **fields: Any) -> Json:
    event = {"type": "response.function_call_arguments.delta", "item_id": item, "delta": text, **fields}
    return _placed(event, place)


def done(arguments: Any, item: str = "fc_1", place: int | None = 0, **fields: Any) -> Json:
    event = {"type": "response.function_call_arguments.done", "item_id": item, "arguments": arguments, **fields}
    return _placed(event, place)


def _placed(event: Json, place: int | None) -> Json:
    return event if place is None else {**event, "output_index": place}


NAMED = {"id": "fc_1", "call_id": "c1", "name": "find"}
EMPTY = ({}, {"arguments": ""}, {"arguments": None})

# The order of what is said


@pytest.mark.parametrize("arguments", EMPTY, ids=str)
@pytest.mark.parametrize(
    "later",
    [
        [done(ARGUMENTS)],
        [delta('{"q":'), delta('"x"}')],
        [delta('{"q":'), delta('"x"}'), done(ARGUMENTS)],
        [delta('{"q":'), done(ARGUMENTS)],
        [ended({**NAMED, "arguments": ARGUMENTS})],
    ],
    ids=len,
)
def test_an_item_that_is_done_without_arguments_waits_for_them(arguments: Json, later: list[Json]):
    for first in ([], [added(NAMED)]):
        assert calls([*first, ended({**NAMED, **arguments}), *later]) == (FOUND,)


def test_calls_that_wait_for_arguments_do_not_take_each_other_s():
    one, other = {"id": "fc_1", "call_id": "c1", "name": "find"}, {"id": "fc_2", "call_id": "c2", "name": "look"}
    expected = (FOUND, Call("c2", "look", '{"y":2}'))
    late = (done(ARGUMENTS), done('{"y":2}', "fc_2", 1))
    for order in permutations(late):
        assert calls([ended(one), ended(other, 1), *order]) == expected


@pytest.mark.parametrize("arguments", EMPTY, ids=str)
def test_a_call_that_is_never_given_arguments_has_none(arguments: Json):
    nothing = Call("c1", "find", "{}")
    assert calls([ended({**NAMED, **arguments})]) == (nothing,)
    assert calls([added(NAMED), done(""), ended({**NAMED, **arguments})]) == (nothing,)
    assert calls([ended({**NAMED, **arguments}), done("")]) == (nothing,)


def test_no_more_arguments_end_a_call_at_once():
    order = TurnOrder()
    conversation = Conversation(Request("m", (), tools=TOOLS), "S")
    told = FrameReader().feed(stream(created(), *map(sse, [added(NAMED), ended(NAMED), done("")])))
    names = [type(event).__name__ for frame in told for event in conversation.feed(frame) for _ in order.feed(event)]
    assert names[-1] == "CallEnded"


def test_an_empty_object_at_the_beginning_is_only_a_place_for_the_arguments():
    for empty in ("{}", {}, "{ }", " {}"):
        opened = added({**NAMED, "arguments": empty})
        assert calls([opened, delta('{"q":'), delta('"x"}'), done(ARGUMENTS)]) == (FOUND,)
        assert calls([opened, ended({**NAMED, "arguments": "{}"})]) == (Call("c1", "find", "{}"),)


def test_an_item_that_was_cut_does_not_wait():
    [cut] = turn([added(NAMED), ended({**NAMED, "status": "incomplete"}), done(ARGUMENTS)]).calls
    assert not cut.complete


# Several calls under one item

PAIRS: dict[str, tuple[Json, Json]] = {
    "call ids": ({"call_id": "c1"}, {"call_id": "c2"}),
    "names": ({"name": "find"}, {"name": "look"}),
    "call ids and names": ({"call_id": "c1", "name": "find"}, {"call_id": "c2", "name": "look"}),
    "ids": ({"id": "c1", "name": "find"}, {"id": "c2", "name": "look"}),
    "places": ({"output_index": 0}, {"output_index": 1}),
    "nothing": ({}, {}),
}
ONE, OTHER = {"id": "i", "call_id": "c1", "name": "find"}, {"id": "i", "call_id": "c2", "name": "look"}
BOTH = (FOUND, Call("c2", "look", '{"y":2}'))


@pytest.mark.parametrize("own", PAIRS.values(), ids=PAIRS)
def test_several_ends_under_one_item_are_as_many_calls(own: tuple[Json, Json]):
    one, other = (done(text, "i", None, **said) for text, said in zip((ARGUMENTS, '{"y":2}'), own, strict=True))
    full = [ended({**ONE, "arguments": ARGUMENTS}, None), ended({**OTHER, "arguments": '{"y":2}'}, None)]
    blank = [ended(ONE, None), ended(OTHER, None)]
    parts = [
        {"type": "response.content_part.added", "item_id": "i", "part": {"type": "tool_use", "id": id, "name": name}}
        for id, name in (("c1", "find"), ("c2", "look"))
    ]
    for events in ([one, other, *full], [one, other, *full[::-1]], [one, other, *blank], [*parts, one, other]):
        made = calls(events)
        assert sorted((call.name, call.arguments) for call in made) == [(call.name, call.arguments) for call in BOTH]
        assert {call.id for call in made} == {"c1", "c2"}
        assert all(call.complete for call in made)


def test_one_name_for_all_items_and_a_place_for_each():
    """A server whose item ids are all the same, streaming two calls side by side."""
    events = [
        added(ONE, 0),
        added(OTHER, 1),
        delta('{"q":', "i", 0),
        delta('{"y":', "i", 1),
        delta('"x"}', "i", 0),
        delta("2}", "i", 1),
        done(ARGUMENTS, "i", 0),
        done('{"y":2}', "i", 1),
    ]
    assert calls(events) == BOTH


def test_call_ids_in_deltas_decide_over_the_item():
    texts = (("c1", "find", '{"q":'), ("c2", "look", '{"y":'), ("c1", "find", '"x"}'), ("c2", "look", "2}"))
    assert calls([delta(text, "i", None, call_id=id, name=name) for id, name, text in texts]) == BOTH


def test_an_end_that_is_told_twice_is_one_call():
    assert calls([added(NAMED), done(ARGUMENTS), done(ARGUMENTS), done('{"q": "x"}'), ended(NAMED)]) == (FOUND,)


# Spellings

NAMES: dict[str, Json] = {
    "name": {"name": "find"},
    "function_name": {"function_name": "find"},
    "tool_name": {"tool_name": "find"},
    "call_name": {"call_name": "find"},
    "function.name": {"function": {"name": "find"}},
}
IDS: dict[str, Json] = {"call_id": {"call_id": "c1"}, "id": {"id": "c1"}, "function.id": {"function": {"id": "c1"}}}


def merged(*given: Json) -> Json:
    out: Json = {}
    for each in given:
        function = {**out.get("function", {}), **each.get("function", {})}
        out |= each
        if function:
            out["function"] = function
    return out


@pytest.mark.parametrize("id", IDS.values(), ids=IDS)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_and_an_id_may_be_written_in_many_ways(name: Json, id: Json):
    said = merged(name, id)
    assert calls([done(ARGUMENTS, **said)]) == (FOUND,)
    assert calls([delta('{"q":'), delta('"x"}'), done(ARGUMENTS, **said)]) == (FOUND,)
    assert calls([delta('{"q":', **said), delta('"x"}', **said)]) == (FOUND,)
    assert calls([delta('{"q":', **said), delta('"x"}'), done(ARGUMENTS)]) == (FOUND,)


@pytest.mark.parametrize("type", ["function_call", "tool_call", "function", "tool_use"])
@pytest.mark.parametrize("id", IDS.values(), ids=IDS)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_an_item_may_be_written_in_many_ways(name: Json, id: Json, type: str):
    item = merged(name, id, {"type": type})
    key = item.get("id", "fc_1")
    inside = merged(item, {"function": {"arguments": ARGUMENTS}})
    for whole in (
        {**item, "arguments": ARGUMENTS},
        {**item, "arguments": {"q": "x"}},
        {**item, "input": {"q": "x"}},
        inside,
    ):
        assert calls([ended(whole)]) == (FOUND,)
        assert calls([added({"id": key, **item}), ended({"id": key, **whole})]) == (FOUND,)
        streamed = [delta('{"q":', key), delta('"x"}', key), done(ARGUMENTS, key)]
        assert calls([added({"id": key, **item}), *streamed, ended({"id": key, **whole})]) == (FOUND,)
        final = completed([whole])
        assert turn([], final).calls == (FOUND,)


def test_the_id_of_a_call_comes_before_any_other():
    assert calls([done(ARGUMENTS, id="evt_1", name="find", function={"id": "x"}), ended(NAMED)]) == (FOUND,)
    assert calls(
        [delta('{"q":', id="evt_1"), delta('"x"}', id="evt_2"), done(ARGUMENTS, id="evt_3"), ended(NAMED)]
    ) == (FOUND,)
    assert calls([done(ARGUMENTS, call_id="c1", id="x", name="find")]) == (FOUND,)


def test_numbers_in_object_arguments_stay_as_they_were_written():
    for item in ({**NAMED, "arguments": {}}, {**NAMED, "function": {"arguments": {}}}):
        event = json.dumps(ended(item)).replace('"arguments": {}', '"arguments": {"n": 1.50}')
        data = stream(created(), f"data: {event}\n\n".encode(), completed())
        line = Pipeline(FrameReader(), Conversation(Request("m", ()), "S"))
        [call] = collect([*line.feed(data), *line.end()]).calls
        assert call.arguments == '{"n":1.50}'


# What is no call


def test_argument_text_of_an_item_that_never_comes_is_no_call():
    for texts in (('{"q":', '"x"}'), (ARGUMENTS,), ('{"q":',)):
        for tools in (TOOLS, TOOLS[:1]):
            made = turn([delta(text, "ghost", 7) for text in texts], tools=tools)
            assert (made.calls, made.failure, made.reason) == ((), None, "stop")
            assert made.notes == (Note("arguments_unclaimed", "ghost"),)


def test_a_stray_delta_costs_the_calls_of_the_turn_nothing():
    ghost = delta("{}", "ghost", 7)
    real = [added(NAMED), delta('{"q":'), delta('"x"}'), done(ARGUMENTS), ended({**NAMED, "arguments": ARGUMENTS})]
    for place in range(len(real) + 1):
        made = turn([*real[:place], ghost, *real[place:]])
        assert (made.calls, made.reason) == ((FOUND,), "calls")
        assert made.notes == (Note("arguments_unclaimed", "ghost"),)


def test_argument_text_waits_for_the_item_that_names_it():
    texts = [delta('{"q":'), delta('"x"}')]
    assert calls([*texts, ended(NAMED)]) == (FOUND,)
    assert turn(texts, completed([{"type": "function_call", **NAMED}])).calls == (FOUND,)


def test_arguments_that_are_done_and_never_named_fail_the_turn_unless_one_name_is_possible():
    events = [done(ARGUMENTS, id="c1")]
    failure = turn(events).failure
    assert failure is not None
    assert (failure.code, "c1" in failure.message) == ("tool_name_missing", True)
    made = turn(events, tools=TOOLS[:1])
    assert (made.calls, made.notes) == ((FOUND,), (Note("name_inferred", "c1"),))


# Any of it


@st.composite
def told(draw: st.DrawFn) -> list[Json]:
    """One call, told in any order and any spelling, with all that is needed to know it."""
    name, id = draw(st.sampled_from([*NAMES.values()])), draw(st.sampled_from([*IDS.values()]))
    said = merged(name, id)
    key = said.get("id", "fc_1")
    place = draw(st.sampled_from([0, None]))
    item = {"id": key, **said, "type": draw(st.sampled_from(["function_call", "tool_call", "function"]))}
    whole = {**item, "arguments": draw(st.sampled_from([ARGUMENTS, {"q": "x"}]))}
    silent = {**item, **draw(st.sampled_from(EMPTY))}
    texts = [delta(text, key, place) for text in ('{"q"', ":", '"x"}')]
    final = done(draw(st.sampled_from([ARGUMENTS, {"q": "x"}])), key, place)
    named = done(ARGUMENTS, key, place, **{**said, "id": said.get("id", "c1")})
    ways: list[list[Json]] = [
        [added(silent, place), *texts],
        [added(silent, place), *texts, final],
        [added(silent, place), final],
        [*texts, final, ended(whole, place)],
        [*texts, ended(silent, place)],
        [ended(silent, place), *texts, final],
        [ended(silent, place), final],
        [final, ended(silent, place)],
        [*texts, named],
        [named],
        [ended(whole, place)],
    ]
    way = draw(st.sampled_from(ways))
    return [*way, *draw(st.sampled_from([[], [final], [ended(whole, place)], [final, ended(silent, place)]]))]


@given(told())
def test_however_a_call_is_told_decoder_and_aggregator_make_the_same_of_it(events: list[Json]):
    assert calls(events) == (FOUND,)


def _events_of(text: str) -> Iterator[Json]:
    """Events that mean something or nothing, from letters."""
    items = {"a": ONE, "b": OTHER, "c": NAMED}
    for letter, number in zip(text[::2], text[1::2], strict=False):
        place = int(number) if number != "3" else None
        match letter:
            case "a" | "b" | "c":
                yield added(items[letter], place)
            case "A" | "B" | "C":
                yield ended(items[letter.lower()], place)
            case "d":
                yield delta('{"q":', "i", place)
            case "e":
                yield delta('"x"}', "i", place)
            case "f":
                yield done(ARGUMENTS, "i", place)
            case "g":
                yield done('{"y":2}', "i", place)
            case _:
                yield done(ARGUMENTS, "fc_1", place, name="find")


@given(st.text("abcABCdefgh", max_size=5), st.text("0123", min_size=5, max_size=5))
def test_whatever_a_server_tells_decoder_and_aggregator_agree(letters: str, places: str):
    events = [*_events_of("".join(pair for pairs in zip(letters, places, strict=False) for pair in pairs))]
    aggregate = [call for call in aggregated(events) if call.name]
    made = turn(events)
    if made.failure is None:
        assert sorted((call.id, call.name, call.arguments) for call in made.calls) == sorted(
            (call.id, call.name, call.arguments) for call in aggregate
        )
