"""Nothing that a server sends makes the rules raise, or keeps them busy for long."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check import chat_turns, gemini_turns, messages_turns, responses_turns
from tests.check.streams import Frame, Frames, framed_as, read, wire
from tests.support.chunks import chunkings
from toolwire.check.turns.rule import RequestFacts
from toolwire.check.turns.streams import check_plain

MODULES: dict[str, Any] = {
    "chat": chat_turns,
    "messages": messages_turns,
    "responses": responses_turns,
    "gemini": gemini_turns,
}
apis = st.sampled_from([*MODULES])

numbers = st.integers() | st.just(10**300) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
values = st.recursive(
    leaves | st.sampled_from(["assistant", "stop", "error", "response.failed", "tool_use", "completed", "[DONE]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "text", "x"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def streams_of(api: str) -> st.SearchStrategy[Callable[[], Frames]]:
    module = MODULES[api]
    return st.sampled_from([module.sound, module.spoken, module.failed])


def indexes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as its owner and the key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        yield from indexes(inner)


def survives(data: bytes, facts: RequestFacts) -> None:
    """The rules have something to say, or nothing, and what they point at is there."""
    found, received = read(data, facts)
    assert {index for finding in found for index in finding.frames} <= {each.position for each in received}
    assert all(str(finding) for finding in found)


@given(st.data())
def test_any_value_may_stand_in_any_place(data: st.DataObject):
    api = data.draw(apis)
    frames = data.draw(streams_of(api))()
    for _ in range(data.draw(st.integers(1, 3))):
        frame = data.draw(st.sampled_from(frames))
        holes = [(frame, "data"), (frame, "name"), *indexes(frame.data)]
        owner, key = data.draw(st.sampled_from(holes))
        value = data.draw(values)
        if isinstance(owner, Frame):
            framed_as(owner, key, value)
        else:
            owner[key] = value
    survives(wire(frames), MODULES[api].ASKED)


@given(st.data())
def test_any_key_may_be_missing(data: st.DataObject):
    api = data.draw(apis)
    frames = data.draw(streams_of(api))()
    frame = data.draw(st.sampled_from([frame for frame in frames if frame.data != "[DONE]"]))
    owner, key = data.draw(st.sampled_from([*indexes(frame.data)] or [({"x": 1}, "x")]))
    del owner[key]
    survives(wire(frames), MODULES[api].ASKED)


@given(st.data())
def test_frames_may_come_in_any_order_and_number(data: st.DataObject):
    api = data.draw(apis)
    frames = data.draw(streams_of(api))()
    chosen = data.draw(st.lists(st.integers(0, len(frames) - 1), max_size=2 * len(frames)))
    survives(wire(frames[index] for index in chosen), MODULES[api].ASKED)


@given(st.data())
def test_frames_of_another_api_may_come_between(data: st.DataObject):
    mixed = [frame for api in MODULES for frame in data.draw(streams_of(api))()]
    shuffled = data.draw(st.permutations(mixed))
    survives(wire(shuffled), MODULES[data.draw(apis)].ASKED)


@given(st.binary(max_size=200), apis)
def test_any_bytes_may_come(data: bytes, api: str):
    survives(data, MODULES[api].ASKED)
    check_plain(data, MODULES[api].ASKED)


lines = st.sampled_from(
    [b"data: {}", b"data", b"data:", b"data: [DONE]", b"event: error", b"event", b": hi", b":", b"", b"{}", b"id: 1", b"\xff"]
)  # fmt: skip


@given(st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\r"]))), apis)
def test_any_lines_mean_the_same_in_any_chunking(pieces: list[tuple[bytes, bytes]], api: str):
    data = b"".join(line + end for line, end in pieces)
    survives(data, MODULES[api].ASKED)
    first, *others = [read(each, MODULES[api].ASKED) for each in chunkings(data, tries=3)]
    assert all(other == first for other in others)


@given(st.data())
def test_bytes_may_be_lost_or_added_anywhere(data: st.DataObject):
    api = data.draw(apis)
    whole = wire(data.draw(streams_of(api))())
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    survives(whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:], MODULES[api].ASKED)


@given(values, apis)
def test_any_value_may_be_an_answer(value: Any, api: str):
    check_plain(json.dumps(value).encode(), MODULES[api].ASKED)


@given(st.data())
def test_any_value_may_stand_in_any_place_of_an_answer(data: st.DataObject):
    api = data.draw(apis)
    body = MODULES[api].plain()
    for _ in range(data.draw(st.integers(1, 3))):
        owner, key = data.draw(st.sampled_from([*indexes(body)]))
        owner[key] = data.draw(values)
    found, _ = check_plain(json.dumps(body).encode(), MODULES[api].ASKED)
    assert all(str(finding) for finding in found)


# Length


MANY = 8000


def many_choices() -> Frames:
    return [
        chat_turns.chunk({}, choices=[{"index": index, "delta": {}, "finish_reason": None}]) for index in range(MANY)
    ]


def many_chat_calls() -> Frames:
    return [frame for index in range(MANY) for frame in (chat_turns.opening(index, str(index)), chat_turns.more(index))]


def many_blocks() -> Frames:
    use = [messages_turns.start(index, type="tool_use", id=str(index), name="look", input={}) for index in range(MANY)]
    return [frame for index, start in enumerate(use) for frame in (start, messages_turns.stop(index))]


def many_items() -> Frames:
    frames = responses_turns.stream(*(responses_turns.call(index, str(index), "Paris") for index in range(MANY // 4)))
    for frame in frames:
        if frame.type == "response.output_item.done":
            frame.data["item"]["status"] = "incomplete"
    return frames


def many_parts() -> Frames:
    where = {"item_id": "msg_1", "output_index": 0}
    part = {"type": "output_text", "text": ""}
    begun = responses_turns.message(0)[:1]
    added = [
        responses_turns.event("content_part.added", **where, content_index=index, part=part) for index in range(MANY)
    ]
    return [responses_turns.framed(each) for each in (*begun, *added)]


def endless_text() -> Frames:
    return [chat_turns.chunk({"content": "<tool_"}) for _ in range(MANY)]


LONG: dict[str, tuple[Callable[[], Frames], str]] = {
    "choices": (many_choices, "chat"),
    "calls": (many_chat_calls, "chat"),
    "text": (endless_text, "chat"),
    "blocks": (many_blocks, "messages"),
    "items": (many_items, "responses"),
    "parts": (many_parts, "responses"),
}  # fmt: skip


@pytest.mark.parametrize("what", LONG)
def test_a_long_stream_takes_time_in_proportion(what: str):
    make, api = LONG[what]
    data = wire(make())
    began = time.process_time()
    survives(data, MODULES[api].ASKED)
    assert time.process_time() - began < 10, "a second is more than enough"
