"""The properties behind the rows, for turns nobody thought of."""

import random
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.museum.lines import (
    RULES,
    SEED,
    Answer,
    answer_once,
    ask,
    carry,
    cc,
    in_responses,
    part,
    plain_answer,
    relay,
)
from tests.museum.texts import read_all
from tests.museum.turns import NAMES, Called, RawFrame, Spoken, Telling, cut, has_tags, letters, objects, turns, words
from tests.support.frames import rs
from toolwire import ToolCallAggregator
from toolwire.assembly import ToolRules
from toolwire.core.sse import FrameReader
from toolwire.core.text import is_json

ASKED = ask(tools=NAMES, stream_options={"include_usage": True})
BOTH = (ASKED, in_responses(ASKED))
"""The same, asked by clients of either dialect."""


def _folded(data: bytes, rules: ToolRules = RULES) -> Answer:
    return answer_once(data, ASKED, rules)


@given(turns(), st.randoms(use_true_random=False))
def test_any_chunking_gives_the_same_bytes(told: RawFrame, rnd: random.Random) -> None:
    data = told.data
    cuts = sorted(rnd.sample(range(len(data)), min(len(data), 20)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for asked in BOTH:
        assert carry(pieces, asked).data == carry([data], asked).data


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from((b"data: a", b"\n", b"\r", b"\r\n", b":", b"{", b"event: b", b"\xef\xbb\xbf")), max_size=14
    ).map(b"".join)
)
def test_any_bytes_are_framed_alike_whole_and_one_by_one(data: bytes) -> None:
    whole, single = FrameReader(), FrameReader()
    split_batch = [frame for place in range(len(data)) for frame in single.feed(data[place : place + 1])]
    assert [*split_batch, *single.end()] == [*whole.feed(data), *whole.end()]


_RULES = (
    RULES,
    ToolRules(output_mode="obsidian-xml"),
    ToolRules(dedup=True),
    ToolRules(max_calls=1),
    ToolRules(suppress_tail=True),
    ToolRules(stop_after=True, stop_after_mode="first"),
)


@given(turns(), st.sampled_from(_RULES))
def test_the_stream_folds_to_the_plain_answer(told: RawFrame, rules: ToolRules) -> None:
    answered = answer_once(told.data, ASKED, rules)  # compares the two
    assert answered.finish == ("tool_calls" if told.calls else "stop")


@given(turns())
def test_a_plain_reply_means_what_its_items_say(told: RawFrame) -> None:
    plain = plain_answer({"status": "completed", "output": told.output}, ASKED)
    spoken = "".join(item.text for item in told.items if isinstance(item, Spoken))
    content, calls = _said(plain)
    assert (content.replace("\n\n", ""), calls) == (spoken.replace("\n\n", ""), told.calls)
    assert [f"call_{place}" for place, item in enumerate(told.items) if isinstance(item, Called)] == [*_said(plain)[1]]


@given(turns())
def test_every_character_has_one_owner(told: RawFrame) -> None:
    _has_one_owner(told)


@given(turns(st.sampled_from(("item_id", "output_index"))))
def test_one_key_is_enough_to_know_an_item(told: RawFrame) -> None:
    """Servers leave out `output_index`, or the items' ids."""
    _has_one_owner(told)


@pytest.mark.parametrize("text", ["n", "null", " ", "\n", ""])
def test_any_text_is_the_input_of_a_custom_call(text: str) -> None:
    for telling in (Telling(), Telling(deltas=False), Telling(deltas=False, done=False)):
        item = Called("find", text, [text], telling, custom=True)
        frames = [rs(type, **fields) for type, fields in item.steps(0)]
        _has_one_owner(RawFrame([item], [*frames, rs("completed", response={"status": "completed"})]))


def _has_one_owner(told: RawFrame) -> None:
    answered = _folded(told.data)
    content, calls = _said(answered)
    assert (content.replace("\n\n", ""), calls) == (told.text.replace("\n\n", ""), told.calls)
    assert (answered.message.get("reasoning_content") or "").replace("\n\n", "") == told.thoughts
    assert answered.notes == ()


def _said(answered: Answer) -> tuple[str, dict[str, tuple[str, str]]]:
    return answered.content or "", {id: (name, arguments) for id, name, arguments in answered.calls}


_blocks = st.builds(
    lambda name, arguments: (f'<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>', (name, arguments)),
    st.sampled_from(NAMES),
    objects,
)
_prose = st.lists(letters | st.sampled_from(("<", "<tool", "</tool_call>", "\n", "{", "<use_tools>")), max_size=4).map(
    "".join
)


@given(st.lists(_prose | _blocks, max_size=5))
def test_every_character_of_a_text_is_prose_or_call(pieces: list[str | tuple[str, tuple[str, str]]]) -> None:
    text = "".join(piece if isinstance(piece, str) else piece[0] for piece in pieces)
    assume("`" not in text and "~" not in text)  # code is another matter
    assume(not has_tags("".join(piece if isinstance(piece, str) else "|" for piece in pieces)))
    found = read_all(text, NAMES)
    assert found.calls == [piece[1] for piece in pieces if not isinstance(piece, str)]
    assert found.text == "".join(_prose_of(pieces))


def _prose_of(pieces: list[str | tuple[str, tuple[str, str]]]) -> Iterator[str]:
    """The words of a text. White space between calls, and behind the last, is layout."""
    behind = False
    for is_prose, run in groupby(pieces, lambda piece: isinstance(piece, str)):
        words = "".join(piece for piece in run if isinstance(piece, str))
        if is_prose and (words.strip() or not behind):
            yield words
        behind = behind or not is_prose


@given(
    st.lists(
        letters
        | st.sampled_from(
            (
                "<tool_call>",
                "<use_tool>",
                "<name>",
                "</name>",
                "</use_tool>",
                "</tool_call>",
                "{",
                "}",
                '"name":"x"',
                "`",
                "\n```\n",
            )
        ),
        max_size=9,
    ).map("".join)
)
def test_a_text_without_declared_names_stays_as_it_is(text: str) -> None:
    assert read_all(text, ("declared",)).pieces == ((text,) if text else ())


_silence = st.sampled_from(("", None, "null", "None", "undefined"))


@given(
    st.lists(
        st.tuples(_silence | st.just("real"), _silence | st.just("find"), st.sampled_from(("", "x", '{"a":'))),
        min_size=1,
        max_size=8,
    )
)
def test_an_id_and_a_name_stay(pieces: list[tuple[Any, Any, str]]) -> None:
    aggregator = ToolCallAggregator(("find",), seed=SEED)
    known_id = known_name = ""
    for id, name, arguments in pieces:
        aggregator.ingest_delta(cc(part(arguments, index=0, id=id, name=name)))
        [call] = aggregator.snapshot() or [None]
        if call is None:
            continue
        assert not known_id or call.id == known_id
        assert not known_name or call.name == known_name
        known_id, known_name = call.id, call.name
    ids = {id for id, _, _ in pieces}
    assert known_name == ("find" if any(name == "find" for _, name, _ in pieces) else "")
    assert known_id in {"", "real", f"call_{SEED}01"} or "real" not in ids


@given(st.permutations(range(4)), st.lists(objects, min_size=4, max_size=4), st.data())
def test_indexes_are_dense_whatever_came_in(numbers: list[int], arguments: list[str], data: st.DataObject) -> None:
    """Calls under indexes with gaps, in any order, their pieces mixed."""
    queues = []
    for number, text in zip(numbers, arguments, strict=True):
        first, *rest = data.draw(cut(text))
        begun = cc(part(first, index=3 * number, id=f"c{number}", name="find"))
        queues.append([begun, *(cc(part(piece, index=3 * number)) for piece in rest)])
    chunks = []
    while any(queues):
        ready = [queue for queue in queues if queue]
        chunks.append(ready[data.draw(st.integers(0, len(ready) - 1))].pop(0))
    relayed = relay(*chunks)  # the folding insists on 0, 1, 2, 3
    expected = {f"c{number}": text for number, text in zip(numbers, arguments, strict=True)}
    assert {id: text for id, _, text in relayed.calls} == expected
    assert {call.id: call.arguments for call in _aggregated(chunks)} == expected


def _aggregated(chunks: list[Any]) -> Any:
    aggregator = ToolCallAggregator()
    for chunk in chunks:
        aggregator.ingest_delta(chunk)
    return aggregator.snapshot()


@given(turns(), st.data())
def test_a_stream_that_is_cut_ends_once_and_with_an_error(told: RawFrame, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(told.data) - len(told.frames[-1])))
    answered = _folded(told.data[:kept])
    assert answered.finish is None
    assert answered.error is not None
    assert answered.error["code"] in ("stream_cut", "bad_encoding")  # it may be cut inside a character


@given(turns(), st.sampled_from(("length", "content_filter")))
def test_an_incomplete_turn_keeps_its_reason(told: RawFrame, finish: str) -> None:
    reason = {"length": "max_output_tokens"}.get(finish, finish)
    ending = rs("incomplete", response={"status": "incomplete", "incomplete_details": {"reason": reason}})
    # A call of which nothing came may have been cut, and a cut item can only be the last.
    assume(all(item.is_told and item.arguments for item in told.items if isinstance(item, Called)))
    answered = _folded(b"".join([*told.frames[:-1], ending]))
    assert answered.finish == finish
    for call in answered.turn.calls:
        assert call.kind == "custom" or not call.complete or is_json(call.arguments)


@given(turns(), st.data())
def test_what_follows_the_end_changes_nothing(told: RawFrame, data: st.DataObject) -> None:
    late = data.draw(st.lists(st.sampled_from(told.frames), max_size=4))
    for asked in BOTH:
        assert carry([told.data, *late], asked).data == carry([told.data], asked).data


@given(turns(), st.data())
def test_nothing_is_lost_in_silence(told: RawFrame, data: st.DataObject) -> None:
    """Frames that cannot be read and items chat has no place for: dropped, and each one noted."""
    hosted = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    strange = {
        "frame_skipped": b"data: : what is this\n\n",
        "item_dropped": rs("output_item.done", output_index=99, item=hosted),
    }
    code = data.draw(st.sampled_from(tuple(strange)))
    place = data.draw(st.integers(1, len(told.frames) - 1))
    frames = [*told.frames[:place], strange[code], *told.frames[place:]]
    answered, undisturbed = _folded(b"".join(frames)), _folded(told.data)
    assert answered.message == undisturbed.message
    assert answered.notes == (code,)
    passed = [item for item in answered.response["output"] if item["type"] == hosted["type"]]
    assert passed == ([hosted] if code == "item_dropped" else [])  # there is a place for it in Responses


@given(turns(), st.integers(1, 3))
def test_a_cap_is_exact_and_says_what_it_took(told: RawFrame, most: int) -> None:
    answered = _folded(told.data, ToolRules(max_calls=most))
    assert len(answered.calls) == min(most, len(told.calls))
    assert answered.notes.count("call_capped") == max(0, len(told.calls) - most)


@given(turns())
def test_what_goes_out_is_bounded_by_what_came_in(told: RawFrame) -> None:
    chat, responses = (carry([told.data], asked).data for asked in BOTH)
    assert len(chat) <= 2 * len(told.data) + 2000
    assert len(responses) <= 12 * len(told.data) + 6000  # three response objects, and every item told four times


@given(st.lists(words, max_size=30))
def test_the_reader_of_text_sends_nothing_twice(pieces: list[str]) -> None:
    told = [rs("output_text.delta", item_id="m", output_index=0, content_index=0, delta=piece) for piece in pieces]
    ending = rs("completed", response={"status": "completed", "output": []})
    events = carry([*told, ending], ASKED).events
    sent = sum(len(text) for event in events if isinstance(text := getattr(event, "text", None), str))
    assert sent == sum(map(len, pieces))
