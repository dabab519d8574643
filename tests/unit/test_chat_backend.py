"""The chat backend: what is asked, and what is made of the answers of many servers."""

import json
from typing import Any

import msgspec
import pytest

from tests.support.chunks import in_any_chunking
from toolwire.adapt.lowering import lower_request
from toolwire.adapt.names import Limits
from toolwire.backends.chat import OPENAI, Conversation, Profile, profile_from
from toolwire.backends.chat.encode import OPENING, encode_request
from toolwire.backends.chat.reasoning import MAX_REASONING_CHARS
from toolwire.core.collect import Call, Reasoning, Refusal, Text, collect
from toolwire.core.errors import MAX_CALLS, TooManyCalls
from toolwire.core.events import Note, Usage
from toolwire.core.order import TurnOrder
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Caller,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OtherEntry,
    OutputFormat,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
    ToolsEntry,
)
from toolwire.core.signatures import UNKNOWN_THOUGHT_SIGNATURE
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.dialects import chat

SCHEMA = msgspec.Raw(b'{"type":"object"}')
DONE = b"data: [DONE]\n\n"


def sent(**payload) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def cc(fr=None, **delta) -> bytes:
    """One chunk."""
    return sent(id="x", model="m", choices=[{"index": 0, "delta": delta, "finish_reason": fr}])


def tc(name=None, arguments=None, **fields):
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    return {**fields, "function": function}


def calls(*each, fr=None) -> bytes:
    return cc(fr, tool_calls=list(each))


def turn(*chunks: bytes, tools=(), profile: Profile = OPENAI):
    """The turn a stream makes: legal, and the same in any chunking."""
    request = Request(
        "m", (), stream=True, tools=tuple(Tool(each) if isinstance(each, str) else each for each in tools)
    )

    def run(pieces: list[bytes]):
        line = Pipeline(FrameReader(), Conversation(request, "S", profile), TurnOrder())
        return collect([event for piece in pieces for event in line.feed(piece)] + list(line.end()))

    return in_any_chunking(b"".join(chunks), run)


def plain(message=None, fr="stop", tools=(), **fields):
    body = {"id": "x", "model": "m", **fields}
    if message is not None:
        body["choices"] = [{"index": 0, "message": message, "finish_reason": fr}]
    conversation = Conversation(Request("m", (), tools=tuple(tools)), "S")
    line = Pipeline(TurnOrder())
    events = line.feed_all(list(conversation.feed_plain(json.dumps(body).encode())))
    line.end()
    return collect(list(events))


def made(result):
    return [(call.id, call.name, call.arguments) for call in result.calls]


def codes(result):
    return [note.code for note in result.notes]


def asked(profile: Profile = OPENAI, **fields):
    body, notes = encode_request(Request("m", fields.pop("entries", ()), **fields), profile, stream=False)
    return json.loads(body), [note.subject for note in notes]


def told(*entries, profile: Profile = OPENAI, **fields):
    return asked(profile, entries=entries, **fields)[0]["messages"]


def posted(profile: Profile = OPENAI, **fields):
    """The body as a conversation posts it: lowered."""
    return json.loads(Conversation(Request("m", fields.pop("entries", ()), **fields), "S", profile).start().body)


def user(text):
    return Message("user", (TextPart(text),))


def assistant(text):
    return Message("assistant", (TextPart(text),))


def result(id, text="ok"):
    return ResultEntry(id, (TextPart(text),))


def written(id, name="f", arguments="{}"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


# Reading: which call a fragment belongs to


A, B = '{"p":"a"}', '{"p":"b"}'


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([[tc("f", "", index=0, id="a")], [tc(None, '{"p":', index=0)], [tc(None, '"a"}', index=0)]], [("a", "f", A)], id="openai"),
        pytest.param([[tc("f", A, index=0, id="a")], [tc("f", B, index=0, id="b")]], [("a", "f", A), ("b", "f", B)], id="BM-003 one index"),
        pytest.param([[tc("f1", "{}", id="a")], [tc("f2", "{}", id="b")], [tc("f3", "{}", id="c")]],
                     [("a", "f1", "{}"), ("b", "f2", "{}"), ("c", "f3", "{}")], id="BM-005 no index"),
        pytest.param([[tc("f", '{"x":', index=0, id="a")], [tc("g", '{"y":', index=1, id="b")], [tc(None, "1}", index=0)], [tc(None, "2}", index=1)]],
                     [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')], id="BM-006 interleaved"),
        pytest.param([[tc("f", A, index=0, id="a")], [tc("f", B, index=0)]], [("a", "f", A), ("call_S02", "f", B)], id="BM-009 begins again"),
        pytest.param([[tc("f", "{}", index=0, id="a")], [tc("f", "{}", index=1, id="b")]], [("a", "f", "{}"), ("b", "f", "{}")], id="BM-013 equal calls"),
        pytest.param([[tc("f", A, id="a")], [tc("f", B, index=1, id="b")]], [("a", "f", A), ("b", "f", B)], id="BM-014 ollama"),
        pytest.param([[tc("f", A, index=0, id="a"), tc("f", B, index=0, id="b")]], [("a", "f", A), ("b", "f", B)], id="ollama, one chunk"),
        pytest.param([[tc("f", "{", index=0, id="a", type="function")], [tc("", '"e":1}', index=0, id="")]], [("a", "f", '{"e":1}')], id="BM-017 empty"),
        pytest.param([[tc("f", "", index=0, id="a")], [tc("f", "{}", index=0, id="a")]], [("a", "f", "{}")], id="BM-018 repeated name"),
        pytest.param([[tc("f", '{"a"', index=0, id="a")], [tc("f", ":1}", index=0, id="a")]], [("a", "f", '{"a":1}')], id="name in every chunk"),
        pytest.param([[tc("edit_ex", index=0, id="a")], [tc("isting", index=0)], [tc(None, "{}", index=0)]], [("a", "edit_existing", "{}")], id="BM-019 pieces"),
        pytest.param([[tc("f", "{", index=0, id="a")], [{"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "}"}}]],
                     [("a", "f", "{}")], id="BM-023 nulls"),
        pytest.param([[tc("f", "{}", index=0)]], [("call_S01", "f", "{}")], id="BM-024 never an id"),
        pytest.param([[tc("f", A), tc("g", B)]], [("call_S01", "f", A), ("call_S02", "g", B)], id="neither id nor index"),
        pytest.param([[tc("f", A, id="", index=0)], [tc("g", B, id="", index=1)]], [("call_S01", "f", A), ("call_S02", "g", B)], id="empty ids"),
        pytest.param([[tc("f", "", index=0, id="abc123def")], [tc("", "{}", index=0, id="null")]], [("abc123def", "f", "{}")], id="BM-026 word null"),
        pytest.param([[tc("f", A, index=0, id="0")], [tc("f", B, index=1, id="0")]], [("0", "f", A), ("call_S02", "f", B)], id="one id twice"),
        pytest.param([[tc("f", {"b": 1, "a": 10, "n": 12345678901234567890}, index=0, id="a")]],
                     [("a", "f", '{"b":1,"a":10,"n":12345678901234567890}')], id="BM-039 object"),
        pytest.param([[{"index": 0, "id": "a", "name": "f", "arguments": "{}"}]], [("a", "f", "{}")], id="flat"),
        pytest.param([[tc("f", "{}", index="0", id=7)]], [("7", "f", "{}")], id="other types"),
        pytest.param([[tc("f", index=0, id="a")]], [("a", "f", "{}")], id="BM-032 no arguments"),
        pytest.param([[tc("f", "null", index=0, id="a")]], [("a", "f", "{}")], id="null for arguments"),
        pytest.param([[tc("f", '{"limit":10,"f":1.10}', index=0, id="a")]], [("a", "f", '{"limit":10,"f":1.10}')], id="BM-042 verbatim"),
    ],
)  # fmt: skip
def test_fragments_find_their_call(chunks, expected):
    got = turn(*(calls(*each) for each in chunks), cc("tool_calls"), DONE)
    assert made(got) == expected
    assert all(call.complete for call in got.calls)
    assert (got.reason, got.failure) == ("stop", None)


def test_control_tokens_in_a_name_are_cut_off():
    name = "search<|channel|>commentary"
    assert made(turn(calls(tc(name, "{}", index=0, id="a")), DONE, tools=["search"]))[0][1] == "search"
    assert made(turn(calls(tc("functions.search", "{}", index=0, id="a")), DONE, tools=["search"]))[0][1] == "search"


def test_text_around_calls_keeps_its_place():
    got = turn(cc(role="assistant", content=""), cc(content="Let me "), cc(content="look.", tool_calls=None),
               calls(tc("f", "{}", index=0, id="a")), cc(content="done"), cc("tool_calls"), DONE)  # fmt: skip
    assert got.items == (Text("Let me look."), Call("a", "f", "{}"), Text("done"))


def test_the_turn_has_the_name_of_the_first_chunk():
    got = turn(
        sent(id="1", model="m", choices=[{"delta": {"content": "a"}}]),
        sent(id="2", choices=[{"delta": {"content": "b"}}]),
        DONE,
    )
    assert (got.id, got.model, got.text) == ("1", "m", "ab")


def test_other_choices_are_not_mixed_in():
    other = sent(id="x", choices=[{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}])
    got = turn(other, cc(content="A"), cc("stop"), DONE)
    assert (got.text, got.reason) == ("A", "stop")


def test_other_choices_are_not_mixed_in_when_oddly_typed():
    other = sent(id="x", choices=[{"index": 1, "delta": {"content": [{"type": "text", "text": "B"}]}}])
    assert turn(cc(content="A"), other, cc("stop"), DONE).text == "A"


# Reading: the end


CALL = tc("f", "{}", index=0, id="a")


@pytest.mark.parametrize(
    ("chunks", "reason", "notes"),
    [
        pytest.param([calls(CALL), cc("stop"), DONE], "stop", [], id="BM-049 stop after calls"),
        pytest.param([calls(CALL, fr="tool_calls"), DONE], "stop", [], id="BM-035 together"),
        pytest.param([calls(CALL, fr="tool_calls"), cc("stop", content="done"), DONE], "stop", [], id="BM-051 in every chunk"),
        pytest.param([calls(CALL, fr="None"), cc("", content="a"), cc("stop"), DONE], "stop", [], id="BM-057 None"),
        pytest.param([calls(CALL), DONE], "stop", ["reason_missing"], id="BM-054 only [DONE]"),
        pytest.param([calls(CALL), cc("tool_calls")], "stop", [], id="no [DONE]"),
        pytest.param([calls(CALL), cc("function_call"), DONE], "stop", [], id="legacy word"),
        pytest.param([calls(CALL), cc("length"), DONE], "length", [], id="length"),
        pytest.param([calls(CALL), cc("length"), cc("stop"), DONE], "length", [], id="length stays"),
        pytest.param([calls(CALL), cc("MAX_TOKENS"), DONE], "length", [], id="gemini"),
        pytest.param([calls(CALL), cc("content_filter"), DONE], "filter", [], id="filter"),
        pytest.param([calls(CALL), cc("sensitive"), DONE], "filter", [], id="GLM filter"),
        pytest.param([calls(CALL), cc("brand_new"), DONE], "stop", ["reason_unknown"], id="BM-060 unknown"),
        pytest.param([calls(CALL), cc("length"), cc("brand_new"), DONE], "length", ["reason_unknown"], id="unknown hides nothing"),
    ],
)  # fmt: skip
def test_a_turn_ends_once_and_truly(chunks, reason, notes):
    got = turn(*chunks)
    assert made(got) == [("a", "f", "{}")]
    assert (got.reason, codes(got), got.failure) == (reason, notes, None)


def test_the_last_fragment_beside_the_finish_is_not_lost():
    got = turn(calls(tc("f", '{"a":[1,', index=0, id="a")), calls(tc(None, "3]}", index=0), fr="stop"), DONE)
    assert made(got) == [("a", "f", '{"a":[1,3]}')]


def test_a_call_cut_by_length_is_incomplete():
    got = turn(calls(tc("w", '{"t":"abc', index=0, id="a")), cc("length"), DONE)
    assert (got.calls, got.reason) == ((Call("a", "w", '{"t":"abc', complete=False),), "length")


@pytest.mark.parametrize("last", [cc(content="hal"), calls(tc("f", '{"a', index=0, id="a")), calls(CALL)])
def test_a_cut_stream_is_a_failure(last):
    got = turn(cc(content="x"), last)
    assert got.failure is not None
    assert (got.failure.status, got.failure.code, got.failure.retryable) == (502, "stream_cut", True)


@pytest.mark.parametrize("data", [b"", DONE, b"data: <html>\n\n"])
def test_a_stream_without_a_turn_is_a_failure(data):
    assert turn(data).failure.code == "stream_cut"


def test_nothing_counts_after_done():
    assert turn(cc("stop", content="a"), DONE, cc(content="b"), DONE).text == "a"


@pytest.mark.parametrize(
    ("payload", "status", "message"),
    [
        ({"error": {"message": "boom", "type": "server_error", "code": 500}}, 502, "boom"),
        ({"error": {"message": "slow", "code": "rate_limit_exceeded"}}, 429, "slow"),
        ({"error": "boom"}, 502, "boom"),
        ({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, None, "too long"),
    ],
)
def test_an_error_in_the_stream_fails_the_turn(payload, status, message):
    got = turn(cc(content="a"), sent(**payload), DONE)
    assert got.failure is not None
    assert got.failure.message == message
    assert status is None or got.failure.status == status
    whole = Conversation(Request("m", ()), "S").feed_plain(json.dumps(payload).encode())
    assert collect(list(whole)).failure is not None


@pytest.mark.parametrize(
    "odd",
    [b"data: {oops\n\n", b"data: []\n\n", b"data: 7\n\n", sent(choices=5), sent(choices={"a": 1}), sent(choices=[7])],
)
def test_an_unreadable_frame_breaks_nothing(odd):
    got = turn(cc(content="a"), odd, cc("stop", content="b"), DONE)
    assert (got.text, got.failure) == ("ab", None)


# Reading: usage


COUNTS = {"prompt_tokens": 10, "completion_tokens": 5}


@pytest.mark.parametrize(
    "last",
    [
        pytest.param([cc("stop"), sent(id="x", choices=[], usage=COUNTS)], id="openai"),
        pytest.param([cc("stop"), sent(id="x", usage=COUNTS)], id="BM-065 choices absent"),
        pytest.param([cc("stop"), sent(id="x", choices=None, usage=COUNTS)], id="choices null"),
        pytest.param([sent(choices=[{"delta": {"content": ""}, "finish_reason": "stop"}], usage=COUNTS)], id="deepseek"),
        pytest.param([sent(choices=[{"delta": {}}], usage={"prompt_tokens": 10, "completion_tokens": 1}), sent(choices=[{"delta": {}, "finish_reason": "stop"}], usage=COUNTS)], id="running"),
        pytest.param([sent(choices=[{"delta": {}, "finish_reason": "stop"}], usage=COUNTS), sent(choices=[], usage=None)], id="null later"),
        pytest.param([sent(choices=[{"delta": {}, "finish_reason": "stop", "usage": COUNTS}])], id="kimi, in the choice"),
        pytest.param([sent(choices=[{"delta": {"content": [{"type": "text", "text": ""}]}, "finish_reason": "stop"}], usage=COUNTS)], id="beside parts"),
        pytest.param([cc("stop"), sent(choices=[], usage={**COUNTS, "prompt_tokens_details": None, "completion_tokens_details": None})], id="details null"),
    ],
)  # fmt: skip
def test_usage_is_found(last):
    assert turn(cc(content="a", role="assistant"), *last, DONE).usage == Usage(10, 5)


def test_details_of_usage():
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3}}
    assert plain({"content": "a"}, usage={**COUNTS, **details}).usage == Usage(10, 5, 4, 0, 3)
    assert plain({"content": "a"}, usage={**COUNTS, "prompt_cache_hit_tokens": 6}).usage == Usage(10, 5, 6)
    assert plain({"content": "a"}).usage is None


# Reading: the rest of a message


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_comes_before_the_answer(field):
    got = turn(cc(**{field: "th"}, content=None), cc(**{field: "ink"}), cc("stop", content="Hi"), DONE)
    assert got.items == (Reasoning(content=("think",)), Text("Hi"))


def test_reasoning_told_twice_is_one():
    assert turn(cc(reasoning="a", reasoning_content="a"), cc("stop", content="b"), DONE).reasoning == "a"


def reasoning(*chunks: bytes) -> Any:
    """The reasoning as it must go back, the same in any chunking."""

    def run(pieces: list[bytes]) -> str:
        conversation = Conversation(Request("m", (), stream=True), "S")
        line = Pipeline(FrameReader(delta_fields=conversation.delta_fields), conversation)
        for piece in pieces:
            line.feed(piece)
        return conversation.decoder.encode_reasoning()

    written = in_any_chunking(b"".join(chunks), run)
    return json.loads(written) if written else None


def detail(index: int | None = 0, type: str = "text", **fields) -> dict:
    return {"type": f"reasoning.{type}", **({} if index is None else {"index": index}), **fields}


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param([{"content": "a"}], None, id="none"),
        pytest.param([{"reasoning_content": "", "content": "a"}], {"reasoning_content": ""}, id="empty"),
        pytest.param([{"reasoning_content": "a"}, {"reasoning_content": "a"}, {"reasoning_content": "b"}], {"reasoning_content": "aab"}, id="text"),
        pytest.param([{"reasoning": "a", "reasoning_content": None}, {"reasoning": "b"}], {"reasoning": "ab"}, id="other field"),
        pytest.param([{"reasoning": "a", "reasoning_content": "a"}], {"reasoning_content": "a", "reasoning": "a"}, id="both"),
        pytest.param([{"reasoning": "a", "reasoning_details": [detail(text="a")]}] * 3, {"reasoning": "aaa", "reasoning_details": [detail(text="aaa")]}, id="equal pieces"),
        pytest.param([{"reasoning_details": [detail(text="a")]}, {"reasoning_details": [detail(signature="S", text=None)]}], {"reasoning_details": [detail(text="a", signature="S")]}, id="signature"),
        pytest.param([{"reasoning_details": [detail(0, text="a"), detail(1, "summary", summary="b")]}, {"reasoning_details": [detail(1, "summary", summary="c")]}],
                     {"reasoning_details": [detail(0, text="a"), detail(1, "summary", summary="bc")]}, id="by index"),
        pytest.param([{"reasoning_details": [detail(0, text="a")]}, {"reasoning_details": [detail(0, "encrypted", data="E")]}],
                     {"reasoning_details": [detail(0, text="a"), detail(0, "encrypted", data="E")]}, id="by type"),
        pytest.param([{"reasoning_details": [detail(0, "encrypted", data="E", id="x")]}, {"reasoning_details": [detail(0, "encrypted", data="F", id="y")]}],
                     {"reasoning_details": [detail(0, "encrypted", data="E", id="x"), detail(0, "encrypted", data="F", id="y")]}, id="by id"),
        pytest.param([{"reasoning_details": [detail(None, text="a")]}] * 2, {"reasoning_details": [detail(None, text="a")] * 2}, id="no index"),
        pytest.param([{"reasoning_details": ["odd", 7]}, {"reasoning_details": None}, {"reasoning_details": "x"}], {"reasoning_details": ["odd", 7]}, id="odd"),
        pytest.param([{"content": [{"type": "text", "text": "a"}], "reasoning_content": "b"}], {"reasoning_content": "b"}, id="beside odd types"),
    ],
)  # fmt: skip
def test_reasoning_is_kept_as_it_was_written(deltas, expected):
    assert reasoning(*(cc(**delta) for delta in deltas), cc("stop"), DONE) == expected


def test_reasoning_of_a_plain_reply_is_kept_as_it_was_written():
    details = [detail(text="a"), detail(1, "encrypted", data="E")]
    message = {"content": "x", "reasoning": "a", "reasoning_details": details}
    conversation = Conversation(Request("m", ()), "S")
    conversation.feed_plain(json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
    assert json.loads(conversation.decoder.encode_reasoning()) == {"reasoning": "a", "reasoning_details": details}


def test_too_much_reasoning_is_not_kept():
    conversation = Conversation(Request("m", ()), "S")
    message = {"content": "x", "reasoning": "a" * (MAX_REASONING_CHARS + 1)}
    conversation.feed_plain(json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
    assert conversation.decoder.encode_reasoning() == ""


def test_a_refusal():
    assert turn(cc(refusal="No"), cc(refusal="."), cc("stop"), DONE).items == (Refusal("No."),)
    assert plain({"content": None, "refusal": "No."}).items == (Refusal("No."),)


def test_a_legacy_function_call():
    got = turn(cc(function_call={"name": "f", "arguments": ""}), cc(function_call={"arguments": '{"a"'}),
               cc(function_call={"name": None, "arguments": ":1}"}), cc("function_call"), DONE)  # fmt: skip
    assert made(got) == [("call_S01", "f", '{"a":1}')]
    whole = plain({"content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}}, "function_call")
    assert whole.items == got.items


def test_content_in_parts():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert turn(cc(content=parts), cc("stop", content="c"), DONE).text == "abc"
    got = plain({"content": parts}, usage=COUNTS)
    assert (got.text, got.usage, got.id, got.model) == ("ab", Usage(10, 5), "x", "m")


def test_thinking_in_parts():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}, {"type": "text", "text": "a"}]
    got = turn(cc(content=parts), cc("stop"), DONE)
    assert (got.reasoning, got.text) == ("why", "a")


def test_an_oddly_typed_chunk_loses_nothing():
    got = turn(cc(content=[{"type": "text", "text": "a"}], reasoning_content="why"), cc("stop"), DONE)
    assert (got.id, got.model, got.reasoning, got.text) == ("x", "m", "why", "a")


def test_an_error_beside_odd_types_is_an_error():
    assert turn(cc(content="a"), sent(id=7, error={"message": "boom"}), DONE).failure is not None


# Reading: plain replies


def test_a_plain_reply_is_what_the_stream_folds_to():
    whole = [tc("f", A, id="a", type="function"), tc("g", B, id="b", type="function")]
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "why", "tool_calls": whole}
    streamed = turn(cc(role="assistant", reasoning_content="why"), cc(content="Hi"),
                    calls(tc("f", A[:4], index=0, id="a")), calls(tc(None, A[4:], index=0)), calls(tc("g", B, index=1, id="b")),
                    cc("tool_calls"), sent(choices=[], usage=COUNTS), DONE)  # fmt: skip
    assert plain(message, "tool_calls", usage=COUNTS) == streamed


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([tc("f", A, id="a")], [("a", "f", A)]),
        ([tc("f", {"t": 1}, id="a")], [("a", "f", '{"t":1}')]),
        ([tc("f", A, id="")], [("call_S01", "f", A)]),
        ([tc("f", A), tc("f", A)], [("call_S01", "f", A), ("call_S02", "f", A)]),
        ([tc("f", "", id="a")], [("a", "f", "{}")]),
        ([tc("f", A, id="a", index=0), tc("f", B, id="b", index=0)], [("a", "f", A), ("b", "f", B)]),
        ([{"id": "a", "name": "f", "arguments": {}}], [("a", "f", "{}")]),
    ],
)
def test_plain_calls(given, expected):
    got = plain({"content": None, "tool_calls": given})
    assert made(got) == expected
    assert (got.reason, got.failure) == ("stop", None)


def test_plain_calls_with_one_id_stay_apart():
    got = plain({"tool_calls": [tc("f", {"t": "T1"}, id="0"), tc("f", {"t": "T2"}, id="0")]})
    assert [call.arguments for call in got.calls] == ['{"t":"T1"}', '{"t":"T2"}']
    assert len({call.id for call in got.calls}) == 2


def test_a_plain_reply_that_is_none():
    assert plain().failure.code == "bad_reply"
    assert plain(choices=[]).failure.code == "bad_reply"
    assert Conversation(Request("m", ()), "S").feed_plain(b"<html>")[0].failure.code == "bad_reply"


def test_a_plain_reply_cut_by_length():
    got = plain({"content": None, "tool_calls": [tc("f", '{"a', id="a")]}, "length")
    assert got.reason == "length"
    assert not got.calls[0].complete


# Asking: the history


def test_nothing_is_asked_that_was_not():
    assert asked()[0] == {"model": "m", "messages": [], "stream": False}


def test_parallel_calls_stand_in_one_message_and_their_results_behind_it():
    got = told(user("U"), assistant("Look."), CallEntry("c1", "f", '{"a":1}'), CallEntry("c2", "g", " "),
               result("c1", "one"), result("c2", "two"), assistant("Done."), user("Thanks"), instructions="I")  # fmt: skip
    assert got == [
        {"role": "system", "content": "I"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "Look.", "tool_calls": [written("c1", "f", '{"a":1}'), written("c2", "g")]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks"},
    ]


def test_two_turns_of_calls_stay_two():
    got = told(CallEntry("c1", "f", "{}"), result("c1"), CallEntry("c2", "f", "{}"), result("c2"))
    assert [message["role"] for message in got] == ["assistant", "tool", "assistant", "tool"]


def test_images_of_results_come_behind_all_results():
    image = ImagePart("data:image/png;base64,AA", "low")
    got = told(CallEntry("c1", "f", "{}"), CallEntry("c2", "f", "{}"),
               ResultEntry("c1", (TextPart("see"), image)), result("c2"), user("U"))  # fmt: skip
    assert [message["role"] for message in got] == ["assistant", "tool", "tool", "user", "user"]
    assert got[1]["content"].startswith("see")
    assert got[3]["content"][-1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,AA", "detail": "low"},
    }
    assert "c1" in got[3]["content"][0]["text"]


def test_a_result_that_cannot_be_shown_promises_nothing():
    got, dropped = asked(entries=(CallEntry("c1", "f", "{}"), ResultEntry("c1", (ImagePart("", id="file_1"),))))
    assert dropped == ["image"]
    assert [message["role"] for message in got["messages"]] == ["assistant", "tool"]


def test_parts_of_a_user():
    parts = (TextPart("U"), ImagePart("https://x/i.png"), FilePart(id="f1"), AudioPart("AA", "wav"))
    assert told(Message("user", parts, "ann")) == [
        {"role": "user", "name": "ann", "content": [
            {"type": "text", "text": "U"},
            {"type": "image_url", "image_url": {"url": "https://x/i.png", "detail": "auto"}},
            {"type": "file", "file": {"file_id": "f1"}},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        ]},
    ]  # fmt: skip


def test_a_developer_is_a_system_where_the_role_is_unknown():
    entry = Message("developer", (TextPart("D"),))
    assert told(entry)[0]["role"] == "system"
    assert told(entry, profile=Profile(developer=True))[0]["role"] == "developer"


def test_a_refusal_in_the_history():
    assert told(Message("assistant", (RefusalPart("No"),))) == [{"role": "assistant", "refusal": "No"}]


THOUGHT = ReasoningEntry("rs", content=("why",))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_where_the_server_wants_it(field):
    got = told(user("U"), THOUGHT, CallEntry("c1", "f", "{}"), result("c1"), profile=Profile(reasoning=field))
    assert got[1] == {"role": "assistant", field: "why", "content": None, "tool_calls": [written("c1")]}


def test_reasoning_that_is_not_wanted_is_noted():
    body, dropped = asked(entries=(THOUGHT, assistant("A")))
    assert body["messages"] == [{"role": "assistant", "content": "A"}]
    assert dropped == ["rs"]


def test_two_thoughts_in_a_row_are_both_kept():
    got = told(THOUGHT, ReasoningEntry(content=("and",)), assistant("A"), profile=Profile(reasoning="reasoning"))
    assert len(got) == 1
    assert "why" in got[0]["reasoning"]
    assert "and" in got[0]["reasoning"]


def test_a_thought_between_parallel_calls_does_not_part_them_from_their_results():
    got = told(CallEntry("c1", "f", "{}"), THOUGHT, CallEntry("c2", "f", "{}"), result("c1"), result("c2"),
               profile=Profile(reasoning="reasoning"))  # fmt: skip
    assert [message["role"] for message in got] == ["assistant", "tool", "tool"]


def test_reasoning_alone_is_no_message():
    assert told(THOUGHT, user("U"), profile=Profile(reasoning="reasoning")) == [{"role": "user", "content": "U"}]


@pytest.mark.parametrize(("rule", "expected"), [("null", {"content": None}), ("empty", {"content": ""}), ("omit", {})])
def test_no_text_beside_calls(rule, expected):
    got = told(CallEntry("c1", "f", "{}"), result("c1"), profile=Profile(content_beside_calls=rule))
    assert got[0] == {"role": "assistant", "tool_calls": [written("c1")], **expected}


@pytest.mark.parametrize("rule", ["null", "omit"])
def test_empty_text_beside_calls_is_no_text(rule):
    got = told(assistant(""), CallEntry("c1", "f", "{}"), result("c1"), profile=Profile(content_beside_calls=rule))
    assert got[0].get("content") is None


def test_an_empty_result_is_kept():
    entries = (CallEntry("c1", "f", "{}"), ResultEntry("c1", ()))
    assert told(*entries)[1] == {"role": "tool", "tool_call_id": "c1", "content": ""}
    assert told(*entries, profile=Profile(empty_result="(no output)"))[1]["content"] == "(no output)"


def test_an_entry_without_a_word_is_noted():
    body, dropped = asked(entries=(OtherEntry("item_reference", SCHEMA), user("U")))
    assert (len(body["messages"]), dropped) == (1, ["item_reference"])


# Asking: tools and the rest


def test_tools():
    tools = (Tool("a", "A", SCHEMA), Tool("b", strict=True))
    hosted = (HostedTool("web_search", msgspec.Raw(b'{"type":"web_search"}')),)
    empty = {"type": "object", "properties": {}}
    assert asked(tools=tools, hosted_tools=hosted)[0]["tools"] == [
        {"type": "function", "function": {"name": "a", "description": "A", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "b", "parameters": empty, "strict": True}},
        {"type": "web_search"},
    ]
    assert "strict" not in asked(Profile(strict=False), tools=tools)[0]["tools"][1]["function"]


def test_without_tools_nothing_is_said_of_them():
    body = asked(tool_choice=ToolChoice("auto"), parallel_calls=False)[0]
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("auto"), "auto"),
        (ToolChoice("none"), "none"),
        (ToolChoice("required"), "required"),
        (ToolChoice("required", "f"), {"type": "function", "function": {"name": "f"}}),
        (ToolChoice("required", "p", "custom"), {"type": "function", "function": {"name": "p"}}),
    ],
)
def test_a_tool_choice_keeps_its_meaning(choice, expected):
    assert posted(tools=(Tool("f"), Tool("p", kind="custom")), tool_choice=choice)["tool_choice"] == expected


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_may_be_called(mode):
    body = posted(tools=(Tool("f"), Tool("g")), tool_choice=ToolChoice(mode, allowed=("f",), limited=True))
    offered = [tool["function"]["name"] for tool in body["tools"]]
    if isinstance(body["tool_choice"], dict):
        assert body["tool_choice"]["type"] == "allowed_tools"
        assert body["tool_choice"]["allowed_tools"] == {
            "mode": mode, "tools": [{"type": "function", "function": {"name": "f"}}]}  # fmt: skip
    else:
        assert (offered, body["tool_choice"]) == (["f"], mode)


def test_parameters_are_carried_and_the_rest_is_noted():
    body, dropped = asked(
        Profile(max_tokens="max_completion_tokens", refuses=("top_p", "metadata", "user")),
        tools=(Tool("f"),),
        parallel_calls=False,
        output_format=OutputFormat(SCHEMA, "answer", strict=True, description="D"),
        sampling=Sampling(0.5, 0.9, 100, ("END",), "high", "low", "flex"),
        caller=Caller(None, "s", "k", msgspec.Raw(b'{"a":"b"}')),
        extra={"truncation": msgspec.Raw(b'"auto"')},
    )
    assert dropped == ["truncation", "top_p", "metadata"]
    del body["tools"]
    assert body == {
        "model": "m", "messages": [], "stream": False, "parallel_tool_calls": False, "temperature": 0.5,
        "max_completion_tokens": 100, "stop": ["END"], "reasoning_effort": "high", "verbosity": "low",
        "service_tier": "flex", "safety_identifier": "s", "prompt_cache_key": "k",
        "response_format": {"type": "json_schema", "json_schema": {
            "name": "answer", "schema": {"type": "object"}, "strict": True, "description": "D"}},
    }  # fmt: skip


def test_the_field_for_the_most_tokens():
    assert asked(sampling=Sampling(max_tokens=5))[0]["max_tokens"] == 5
    assert asked(output_format=OutputFormat())[0]["response_format"] == {"type": "json_object"}


def test_a_wish_for_one_call_at_a_time_is_not_dropped_silently():
    body, dropped = asked(Profile(parallel=False), tools=(Tool("f"),), parallel_calls=False)
    assert "parallel_tool_calls" not in body
    assert dropped == ["parallel_tool_calls"]


def test_a_stream_is_asked_for_with_its_usage():
    post = Conversation(Request("m", (), stream=True), "S").start()
    body = json.loads(post.body)
    assert (post.path, post.headers["accept"]) == ("/chat/completions", "text/event-stream")
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in posted(Profile(usage=False), stream=True)


def test_notes_of_the_request_are_told_with_the_turn():
    conversation = Conversation(Request("m", (), extra={"seed": msgspec.Raw(b"7")}), "S")
    conversation.start()
    body = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'
    assert collect(list(conversation.feed_plain(body))).notes == (Note("field_dropped", "seed"),)


def test_a_profile_takes_facts_from_the_settings():
    assert profile_from({"id_exact": 9}).limits.id_exact == 9
    with pytest.raises(msgspec.ValidationError):
        profile_from({"nonsense": 1})


# Lowering


PATCH = Tool(
    "apply_patch", "Patches.", kind="custom", format=msgspec.Raw(b'{"type":"grammar","definition":"start: X"}')
)


def test_a_custom_tool_becomes_a_function_with_one_input():
    function = posted(tools=(PATCH,))["tools"][0]["function"]
    assert function["name"] == "apply_patch"
    assert function["parameters"]["required"] == ["input"]
    assert function["description"].startswith("Patches.")
    assert "start: X" in function["description"]


def test_a_text_format_is_no_grammar():
    tool = Tool("p", "P.", kind="custom", format=msgspec.Raw(b'{"type":"text"}'))
    assert posted(tools=(tool,))["tools"][0]["function"]["description"] == "P."


def test_a_custom_call_comes_back_as_text():
    text = '*** Begin "Patch"\n\\é😀'
    arguments = json.dumps({"input": text})
    pieces = [calls(tc(None, arguments[at : at + 3], index=0)) for at in range(0, len(arguments), 3)]
    got = turn(calls(tc("apply_patch", "", index=0, id="c")), *pieces, cc("tool_calls"), DONE, tools=[PATCH])
    assert got.calls == (Call("c", "apply_patch", text, "custom"),)
    assert plain({"tool_calls": [tc("apply_patch", arguments, id="c")]}, tools=[PATCH]).calls == got.calls


def test_custom_calls_in_the_history_are_wrapped():
    entries = (CallEntry("c", "apply_patch", "x", "custom"), ResultEntry("c", (TextPart("ok"),), "custom"))
    got = posted(tools=(PATCH,), entries=entries)["messages"]
    assert json.loads(got[0]["tool_calls"][0]["function"]["arguments"]) == {"input": "x"}
    assert got[1] == {"role": "tool", "tool_call_id": "c", "content": "ok"}


def test_namespaces_are_flattened_and_restored():
    tools = (Tool("search", namespace="mcp__docs__"), Tool("search", namespace="web"), Tool("search"))
    body = posted(tools=tools, entries=(CallEntry("c", "search", "{}", namespace="web"), result("c")))
    names = [tool["function"]["name"] for tool in body["tools"]]
    assert len(set(names)) == 3
    assert body["messages"][0]["tool_calls"][0]["function"]["name"] == names[1]
    got = turn(*(calls(tc(name, "{}", index=at, id=name)) for at, name in enumerate(names)), DONE, tools=tools)
    assert [(call.name, call.namespace) for call in got.calls] == [
        ("search", "mcp__docs__"),
        ("search", "web"),
        ("search", ""),
    ]


def test_a_flattened_name_is_never_another_tools_name():
    tools = (Tool("a__b"), Tool("b", namespace="a"))
    names = [tool["function"]["name"] for tool in posted(tools=tools)["tools"]]
    assert len(set(names)) == 2


def test_names_that_do_not_fit_are_renamed_one_to_one():
    head = "mcp_atlassian-rovo-mcp-server-cloud_"
    tail = "ConfluencePageWithAttachmentsAndPermissions"
    tools = tuple(map(Tool, (f"{head}create{tail}", f"{head}delete{tail}", "a.b", "a_b")))
    names = [tool["function"]["name"] for tool in posted(tools=tools)["tools"]]
    assert len(set(names)) == 4
    assert names[3] == "a_b"
    assert all(len(name) <= 64 and "." not in name for name in names)
    got = turn(*(calls(tc(name, "{}", index=at, id=str(at))) for at, name in enumerate(names)), DONE, tools=tools)
    assert [call.name for call in got.calls] == [tool.name for tool in tools]


def test_ids_for_mistral_are_stable_and_the_same_for_call_and_result():
    long = "call_PTLP8xhu3uwZk4l3nlnrrJha"
    entries = (CallEntry(long, "f", "{}"), CallEntry("abc123def", "f", "{}"), result(long), result("abc123def"))
    first, second = (posted(Profile(id_exact=9), entries=entries)["messages"] for _ in range(2))
    ids = [call["id"] for call in first[0]["tool_calls"]]
    assert first == second
    assert ids == [message["tool_call_id"] for message in first[1:]]
    assert ids[1] == "abc123def"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()


def test_ids_that_are_too_long_stay_apart():
    ids = [f"{'x' * 60}{end}" for end in "ab"]
    entries = tuple(CallEntry(id, "f", "{}") for id in ids) + tuple(result(id) for id in ids)
    got = posted(Profile(id_length=40), entries=entries)["messages"]
    shortened = [call["id"] for call in got[0]["tool_calls"]]
    assert shortened == [message["tool_call_id"] for message in got[1:]]
    assert len(set(shortened)) == 2
    assert all(len(id) <= 40 for id in shortened)


def test_what_fits_is_not_touched():
    request = Request(
        "m", (CallEntry("c", "f", "{}"), result("c")), tools=(Tool("f"),), tool_choice=ToolChoice("required", "f")
    )
    same, restore = lower_request(request, Limits())
    assert same is request
    assert not restore.table


@pytest.mark.parametrize("profile", [OPENAI, Profile(notations=("think",))], ids=["plain", "read"])
@pytest.mark.parametrize(
    ("chunks", "frames"),
    [
        ([cc(content="a")], 0),
        ([cc(fr="", content="a")], 0),
        ([cc(content="a"), cc("stop")], 1),
        ([cc("stop", content="a"), sent(choices=[], usage={"prompt_tokens": 1})], 2),
        ([cc("stop", content="a"), calls(tc("f", "{}", index=0, id="a"))], 2),
        ([cc("stop", content="a"), b": ping\n\n", sent(choices=[]), cc(), cc(content="")], 1),
        ([cc("stop", content="a"), b"data: ping\n\n", b"data: {\n\n"], 1),
        ([cc("stop", content=[{"type": "text", "text": "a"}])], 1),
        ([cc("stop", content="a"), cc("stop", content="b")], 0),
    ],
)
def test_frames_are_counted_from_the_finish_reason_on_and_heartbeats_are_not(chunks, frames, profile):
    def run(pieces: list[bytes]):
        conversation = Conversation(Request("m", (), stream=True), "S", profile)
        line = Pipeline(FrameReader(), conversation)
        for piece in pieces:
            line.feed(piece)
        return conversation.decoder.finishing

    assert in_any_chunking(b"".join(chunks), run) == frames


# Seldom seen


def test_a_thought_in_the_middle_of_the_answer_does_not_part_it():
    result = turn(cc(content="a"), cc(reasoning_content="hm"), cc(content="b"), cc("stop"), DONE)
    assert (result.text, result.reasoning) == ("ab", "hm")


def test_a_model_that_ran_out_of_room_says_that_its_window_is_full():
    conversation = Conversation(Request("m", ()), "S")
    Pipeline(FrameReader(), conversation).feed(cc(content="a") + cc("model_length") + DONE)
    assert conversation.decoder.context_window.is_full


def test_a_model_whose_text_is_read_tells_of_its_window_and_its_thoughts_too():
    conversation = Conversation(Request("m", ()), "S", profile_from({"notations": ["think"]}))
    Pipeline(FrameReader(), conversation).feed(cc(reasoning_content="hm") + cc("model_length") + DONE)
    assert conversation.decoder.context_window.is_full
    assert json.loads(conversation.decoder.encode_reasoning()) == {"reasoning_content": "hm"}


def test_a_choice_without_a_message_says_nothing():
    result = turn(sent(id="x", model="m", choices=[{"index": 0, "finish_reason": "stop"}]), cc(content="late"), DONE)
    assert result.text in ("", "late")


@pytest.mark.parametrize("way", ["calls", "choices"])
def test_more_than_any_model_makes_is_refused(way: str):
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    many = [call] * (MAX_CALLS + 1)
    choices = [{"index": 0, "delta": {"tool_calls": many}}] if way == "calls" else [{"index": 0}] * (MAX_CALLS + 1)
    with pytest.raises(TooManyCalls):
        Pipeline(FrameReader(), Conversation(Request("m", ()), "S")).feed(sent(id="x", model="m", choices=choices))


def test_a_history_that_nothing_can_be_said_of_begins_with_the_user():
    assert asked(entries=(OtherEntry("web_search_call", SCHEMA),)) == (
        {"model": "m", "messages": [{"role": "user", "content": OPENING}], "stream": False},
        ["web_search_call", "user"],
    )


def test_custom_tools_and_their_calls_go_to_a_server_that_has_them():
    tool = Tool("patch", "Changes files.", kind="custom")
    body, _ = asked(
        entries=(CallEntry("a", "patch", "raw", "custom"), ResultEntry("a", (TextPart("ok"),))), tools=(tool,)
    )
    assert body["tools"] == [{"type": "custom", "custom": {"name": "patch", "description": "Changes files."}}]
    assert body["messages"][0]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "raw"}}
    ]


def test_tools_that_are_declared_on_the_way_leave_no_message():
    assert told(ToolsEntry(SCHEMA, SCHEMA), Message("user", (TextPart("Go."),))) == [{"role": "user", "content": "Go."}]


def test_geminis_calls_have_a_signature_even_if_it_is_unknown():
    """One call of each message is enough, and clients of every dialect get it."""
    signed = {"google": {"thought_signature": "UzE="}}
    made = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in "abc"]
    made[2]["extra_content"] = signed
    history = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": made[:2]},
        *({"role": "tool", "tool_call_id": id, "content": "1"} for id in "ab"),
        {"role": "assistant", "content": None, "tool_calls": made[2:]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    request = chat.decode_request(json.dumps({"model": "m", "messages": history}).encode())
    bare = [msgspec.structs.replace(entry, message=-1) for entry in request.entries]  # type: ignore[call-arg]
    other = Request("m", tuple(bare))
    unknown = {"google": {"thought_signature": UNKNOWN_THOUGHT_SIGNATURE}}
    for each in (request, other):
        conversation = Conversation(each, "S", profile_from({"thought_signatures": True}))
        told = json.loads(conversation.start().body)["messages"]
        calls = [call for message in told for call in message.get("tool_calls", ())]
        assert [call.get("extra_content") for call in calls] == [unknown, None, signed]
        assert [(note.code, note.subject) for note in conversation.notes] == [("signature_missing", "a")]
    assert "extra_content" not in json.dumps(json.loads(Conversation(other, "S").start().body)["messages"][1])
