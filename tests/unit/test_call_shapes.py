"""Every shape of a call is read alike by the chat decoder, streamed and plain, and by the aggregator."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire import ToolCallAggregator
from toolwire.backends.chat.decode import Decoder
from toolwire.core.collect import Call, collect
from toolwire.core.sse import Frame

Json = dict[str, Any]
DONE = Frame(b"", b"[DONE]")


def decoded(chunks: list[Json], **given: Any) -> tuple[Call, ...]:
    decoder = Decoder("S", **given)
    events = [event for chunk in chunks for event in decoder.feed(Frame(b"", json.dumps(chunk).encode()))]
    return calls_of([*events, *decoder.feed(DONE)])


def decoded_plain(body: Json) -> tuple[Call, ...]:
    return calls_of([*Decoder("S").feed_plain(json.dumps(body).encode())])


def calls_of(events: list[Any]) -> tuple[Call, ...]:
    turn = collect(events)
    assert turn.failure is None
    return tuple(Call(*each) for each in bare([item for item in turn.items if isinstance(item, Call)]))


def bare(calls: Any) -> list[tuple[Any, ...]]:
    return [(call.id, call.name, same(call.arguments), call.kind, call.complete) for call in calls]


def same(arguments: str) -> str:
    """One text for all ways to write the same JSON."""
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


def aggregated(chunks: list[Json], *, whole: bool = False) -> tuple[Call, ...]:
    aggregator = ToolCallAggregator(seed="S")
    for chunk in chunks:
        aggregator.ingest_message(chunk) if whole else aggregator.ingest_delta(chunk)
    return tuple(Call(*each) for each in bare(aggregator.snapshot()))


def chunk(finish: str | None = None, **delta: Any) -> Json:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def completion(finish: str, **message: Any) -> Json:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


BESIDE = [
    {"id": "c", "type": "function", "function": {"name": "f"}, "arguments": '{"a":1}'},
    {"id": "c", "type": "function", "function": {"name": "f"}, "arguments": {"a": 1}},
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": None}, "arguments": '{"a":1}'},
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}, "arguments": '{"a":1}'},
    {"id": "c", "type": "function", "name": "f", "arguments": {"a": 1}},
    {"tool_call_id": "c", "function": {"tool_name": "f", "arguments_chunk": '{"a":1}'}},
    {"callId": "c", "tool": "f", "args": {"a": 1}},
    {"function": {"id": "c", "name": "f", "arguments": {"a": 1}}},
]


@pytest.mark.parametrize("call", BESIDE)
def test_arguments_are_found_wherever_they_stand(call):
    whole = (Call("c", "f", '{"a": 1}'),)
    assert decoded([chunk(tool_calls=[{"index": 0, **call}]), chunk("tool_calls")]) == whole
    assert decoded_plain(completion("tool_calls", tool_calls=[call])) == whole
    assert aggregated([chunk(tool_calls=[{"index": 0, **call}]), chunk("tool_calls")]) == whole
    assert aggregated([completion("tool_calls", tool_calls=[call])], whole=True) == whole


def test_arguments_beside_the_function_may_come_in_pieces():
    first = {"index": 0, "id": "c", "type": "function", "function": {"name": "f"}, "arguments": '{"a"'}
    chunks = [chunk(tool_calls=[first]), chunk(tool_calls=[{"index": 0, "arguments": ":1}"}]), chunk("tool_calls")]
    assert decoded(chunks) == decoded(chunks, keeps_frames=True) == aggregated(chunks) == (Call("c", "f", '{"a": 1}'),)


def test_numbers_of_object_arguments_stay_as_they_were_written():
    raw = b'{"choices":[{"delta":{"content":["x"],"tool_calls":[{"function":{"name":"f","arguments":{"a":1.50}}}]}}]}'
    decoder = Decoder("S")
    events = [*decoder.feed(Frame(b"", raw)), *decoder.feed(DONE)]
    [call] = [item for item in collect(events).items if isinstance(item, Call)]
    assert call.arguments == '{"a":1.50}'


def test_calls_of_a_message_beside_a_delta_are_not_lost():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    both = {"choices": [{"delta": {"content": ""}, "message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    assert decoded([both]) == aggregated([both]) == (Call("c", "f", '{"a": 1}'),)


def test_half_of_an_object_is_complete_for_nobody():
    half = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    for finish in ("length", "tool_calls"):
        body = completion(finish, tool_calls=[half])
        assert decoded_plain(body) == aggregated([body], whole=True) == (Call("c", "f", '{"a":', complete=False),)


# Generated shapes

IDS = ("id", "call_id", "tool_call_id", "toolCallId", "callId")
NAMES = ("name", "function_name", "tool_name", "call_name", "tool")
ARGUMENTS = ("arguments", "arguments_chunk", "argumentsChunk", "input", "args", "partial_json")
INDEXES = ("index", "tool_call_index", "toolCallIndex")
VALUES = st.dictionaries(
    st.sampled_from("ab"), st.one_of(st.integers(-9, 9), st.text("x{}\" é", max_size=3), st.none()), max_size=2
)  # fmt: skip


class Place:
    """Where one server puts the fields of a call."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.holder = draw(st.sampled_from(["function", "custom", "", "beside"]))
        self.name = draw(st.sampled_from(NAMES))
        self.arguments = draw(st.sampled_from(ARGUMENTS))
        self.id = draw(st.sampled_from([*IDS, "function.id", ""]))
        self.index = draw(st.sampled_from([*INDEXES, "text", ""]))
        self.list = draw(st.sampled_from(["tool_calls", "toolCalls"]))
        self.type = draw(st.sampled_from([None, "function", ""]))

    def entry(self, number: int, name: str, arguments: Any) -> Json:
        call: Json = {}
        if self.index == "text":
            call["index"] = str(number)
        elif self.index:
            call[self.index] = number
        if self.id and self.id != "function.id" and name:
            call[self.id] = f"c{number}"
        if self.type is not None and name:
            call["type"] = self.type
        inside = call if self.holder in ("", "beside") else call.setdefault(self.holder, {})
        names = call.setdefault("function", {}) if self.holder == "beside" else inside
        if name:
            names[self.name] = name
            if self.id == "function.id":
                call.setdefault("function", {})["id"] = f"c{number}"
        if arguments is not None:
            inside[self.arguments] = arguments
        return call


@st.composite
def streams(draw: st.DrawFn) -> list[Json]:
    place = Place(draw)
    chunks: list[Json] = [chunk(role="assistant", content=None)]
    for number in range(draw(st.integers(1, 3))):
        value = draw(VALUES)
        if draw(st.booleans()):
            chunks.append(chunk(**{place.list: [place.entry(number, f"f{number}", value)]}))
            continue
        text = json.dumps(value)
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        for turn, piece in enumerate(pieces):
            chunks.append(chunk(**{place.list: [place.entry(number, "" if turn else f"f{number}", piece)]}))
    return [*chunks, chunk(draw(st.sampled_from(["stop", "tool_calls", "length"])))]


@st.composite
def completions(draw: st.DrawFn) -> Json:
    place = Place(draw)
    calls: list[Json] = []
    for number in range(draw(st.integers(1, 3))):
        value = draw(VALUES)
        text = json.dumps(value)
        told = draw(st.sampled_from([value, text, text[: len(text) // 2], "", None]))
        calls.append(place.entry(number, f"f{number}", told))
    finish = draw(st.sampled_from(["stop", "tool_calls", "length"]))
    if draw(st.booleans()) and place.list == "tool_calls":
        return completion(finish, content=[{"type": "text", "text": "Hi"}], tool_calls=calls)
    return completion(finish, content=None, **{place.list: calls})


@given(streams())
@settings(max_examples=200, deadline=None)
def test_decoder_and_aggregator_read_every_stream_alike(chunks):
    assert decoded(chunks) == decoded(chunks, keeps_frames=True) == aggregated(chunks)


@given(completions())
@settings(max_examples=200, deadline=None)
def test_decoder_and_aggregator_read_every_completion_alike(body):
    assert decoded_plain(body) == aggregated([body], whole=True)


GROWING = st.sampled_from([{}, {"arguments": ""}, {"arguments": "{"}, {"arguments": "}"}, {"name": "f"}])


@given(st.lists(GROWING, max_size=3), st.sampled_from(["function_call", "functionCall"]))
@settings(max_examples=100, deadline=None)
def test_decoder_and_aggregator_read_legacy_calls_alike(parts, key):
    first = {"name": "f", "arguments": ""}
    chunks = [*(chunk(**{key: part}) for part in (first, *parts)), chunk("function_call")]
    assert decoded(chunks) == aggregated(chunks)


def test_a_call_of_which_nothing_is_said_is_none():
    for empty in ({"function_call": {}}, {"tool_calls": [{"index": 0}]}, {"tool_calls": [{}]}):
        chunks = [chunk(**empty), chunk("stop")]
        assert decoded(chunks) == aggregated(chunks) == ()
