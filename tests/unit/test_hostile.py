"""What a client, a server or a model may write to do harm: it is answered, not obeyed."""

import json
from typing import Any

import msgspec
import pytest

from toolwire.adapt.history import repair_pairs
from toolwire.adapt.lowering import lower_request
from toolwire.adapt.names import Limits
from toolwire.adapt.repair import repair_json
from toolwire.backends import chat as chat_backend
from toolwire.backends import gemini as gemini_backend
from toolwire.backends import messages as messages_backend
from toolwire.backends import responses as responses_backend
from toolwire.backends.codex.protocol import make_limit_headers
from toolwire.backends.failures import make_http_failure
from toolwire.core.errors import BadRequest
from toolwire.core.events import (
    CallStarted,
    Event,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.request import CallEntry, Message, ResultEntry, TextPart, Tool
from toolwire.core.signatures import PackedSignature, pack, unpack
from toolwire.core.sse import Frame
from toolwire.core.text import is_begun_object
from toolwire.dialects import chat, messages
from toolwire.memory.reasoning import KeepSignedReasoning, ReasoningCache
from toolwire.notations.reasoning import ReadReasoning
from toolwire.notations.registry import REASONING
from toolwire.notations.values import Schemas
from toolwire.turns.schemas import find_problems

ASK = chat.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}')
DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BACKENDS = pytest.mark.parametrize("backend", [chat_backend, gemini_backend, messages_backend, responses_backend])


def call(id: str, name: str = "f", arguments: str = "{}") -> CallEntry:
    return CallEntry(id, name, arguments)


def result(id: str) -> ResultEntry:
    return ResultEntry(id, (TextPart("ok"),))


@BACKENDS
def test_json_that_goes_too_deep_is_a_frame_that_cannot_be_read(backend: Any):
    conversation = backend.Conversation(ASK, "s")
    conversation.feed(Frame(b"", DEEP))
    assert isinstance(conversation.end()[-1], TurnFailed)


@BACKENDS
def test_a_plain_reply_that_goes_too_deep_is_a_failure(backend: Any):
    assert isinstance(backend.Conversation(ASK, "s").feed_plain(DEEP)[-1], TurnFailed)


@pytest.mark.parametrize("field", ["x", "detail", "choices", "error"])
def test_an_error_that_goes_too_deep_keeps_its_status(field: str):
    failure = make_http_failure(429, {"retry-after": "7"}, DEEP.replace(b"x", field.encode()))
    assert (failure.status, failure.retry_after) == (429, "7")


def test_rate_limits_that_go_too_deep_are_none():
    assert make_limit_headers(DEEP) == {}


def test_as_many_thoughts_as_a_model_likes():
    reader = ReadReasoning(REASONING["think"])
    events = [*reader.feed(TextDelta("<think>a</think>" * 3000 + "b")), *reader.feed(TurnEnded())]
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "a" * 3000
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["b"]


@pytest.mark.parametrize(
    "schema",
    [
        {"required": ["a"], "properties": {"a": {"$ref": "#/required"}}},
        {"maxProperties": 5, "properties": {"a": {"$ref": "#/maxProperties"}}},
        {"allOf": [{}], "properties": {"a": {"$ref": "#/allOf/x"}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"$ref": 5}}},
    ],
)
def test_a_schema_that_points_nowhere_cannot_be_used(schema: dict[str, Any]):
    assert find_problems(json.dumps(schema).encode(), '{"a":1}') is None


@pytest.mark.parametrize("schema", [{"anyOf": 5}, {"oneOf": {}}, {"type": ["string", {}]}, {"type": 5}])
def test_a_schema_of_anything_has_types(schema: dict[str, Any]):
    tool = Tool("f", parameters=msgspec.Raw(json.dumps({"properties": {"q": schema}}).encode()))
    assert Schemas((tool,)).types_of("f", "q") <= {"string"}


def test_a_marker_that_holds_no_text_is_an_argument_like_any_other():
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {"__arguments": 5}}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "assistant", "content": [block]}]}
    [entry] = messages.decode_request(json.dumps(body).encode()).entries
    assert isinstance(entry, CallEntry)
    assert json.loads(entry.arguments) == {"__arguments": 5}


@pytest.mark.parametrize("format", ["text", {"type": 5}, 3])
def test_a_format_that_is_none_is_no_grammar(format: Any):
    tool = Tool("c", kind="custom", format=msgspec.Raw(json.dumps(format).encode()))
    [lower] = lower_request(msgspec.structs.replace(ASK, tools=(tool,)), Limits())[0].tools
    assert lower.kind == "function"


def test_null_is_no_thinking_and_no_choice():
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [thought]}]
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    fields = {"model": "m", "max_tokens": 9, "thinking": None, "tool_choice": None, "tools": tools}
    asked = messages.decode_request(json.dumps({**fields, "messages": history}).encode())
    asked = msgspec.structs.replace(asked, parallel_calls=False)
    body = json.loads(messages_backend.Conversation(asked, "s").start().body)
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


def test_ids_that_come_again_and_again_stay_apart():
    history = (call("a", "f", "1"), call("a", "f", "2"), result("a"), call("a", "f", "3"), result("a"), result("a"))
    entries, notes = repair_pairs(history, "repair")
    ids = [entry.id for entry in entries if isinstance(entry, CallEntry)]
    assert len(set(ids)) == 3
    assert sorted(entry.call_id for entry in entries if isinstance(entry, ResultEntry)) == sorted(ids)
    assert {note.code for note in notes} == {"id_reused"}


def test_a_new_id_is_never_one_that_somebody_has():
    history = (call("a", "f", "1"), call("a", "f", "2"), call("a_2"), result("a"), result("a"), result("a_2"))
    entries, _ = repair_pairs(history, "repair")
    assert len({entry.id for entry in entries if isinstance(entry, CallEntry)}) == 3


def test_instructions_of_a_chat_client_reach_a_chat_server():
    asked = chat.decode_request(b'{"model":"m","instructions":"be nice","messages":[{"role":"user","content":"x"}]}')
    assert b"be nice" in chat_backend.Conversation(asked, "s").start().body


def test_a_thought_of_an_attempt_that_failed_is_not_kept():
    thoughts = ReasoningCache()
    KeepSignedReasoning(thoughts, "me", ()).feed(ReasoningEnded("", "lost", "messages"))
    again = KeepSignedReasoning(thoughts, "me", ())
    again.feed(ReasoningEnded("", "kept", "messages"))
    again.feed(CallStarted("c", "f"))
    restored = thoughts.restore_reasoning("me", msgspec.structs.replace(ASK, entries=(call("c"),)))
    assert [getattr(entry, "signature", "") for entry in restored.entries] == ["kept", ""]


def test_a_call_is_known_by_its_name_too():
    thoughts = ReasoningCache()
    keeper = KeepSignedReasoning(thoughts, "me", ())
    keeper.feed(ReasoningEnded("", "S", "messages"))
    keeper.feed(CallStarted("call_0", "f"))
    asked = msgspec.structs.replace(ASK, entries=(call("call_0", "g"),))
    assert thoughts.restore_reasoning("me", asked) is asked


def thought_of(thoughts: ReasoningCache, signature: str, *entries: Any) -> None:
    keeper = KeepSignedReasoning(thoughts, "me", entries)
    keeper.feed(ReasoningEnded("", signature, "messages"))
    keeper.feed(CallStarted("call_0", "f"))


def test_the_thoughts_of_servers_that_count_return_to_their_own_calls():
    """Every response of theirs has a `call_0`."""
    thoughts = ReasoningCache()
    one, other = (Message("user", (TextPart(words),)) for words in ("one", "other"))
    asked = (call("call_0"), result("call_0"))
    thought_of(thoughts, "a", one)
    thought_of(thoughts, "b", one, *asked)
    thought_of(thoughts, "c", one, *asked, *asked, other)
    entries = (one, *asked, *asked, other, *asked)
    restored = thoughts.restore_reasoning("me", msgspec.structs.replace(ASK, entries=entries)).entries
    signatures = [getattr(entry, "signature", "") for entry in restored]
    assert [signature for signature in signatures if signature] == ["a", "b", "c"]
    assert [place for place, signature in enumerate(signatures) if signature] == [1, 4, 8]
    foreign = msgspec.structs.replace(ASK, entries=(Message("user", (TextPart("third"),)), *asked))
    assert thoughts.restore_reasoning("me", foreign) is foreign


def test_a_package_that_says_it_is_a_chat_server_s_is_none():
    forged = pack(PackedSignature("chat", "", (), '{"content":"x"'))
    assert unpack(forged) is None


def test_a_frame_that_cannot_be_read_is_noted_before_the_end():
    conversation = messages_backend.Conversation(ASK, "s")
    events: list[Event] = []
    for data in (b'{"type":"message_start","message":{}}', b"{", b'{"type":"message_stop"}'):
        events += conversation.feed(Frame(b"", data))
    assert Note("frame_skipped") in events
    assert isinstance(events[-1], TurnEnded)


def test_a_fence_without_end_is_no_fence():
    assert repair_json("```json\n" + " " * 200_000) is None
    assert repair_json('```json\n{"a": 1}\n```') is not None


@pytest.mark.parametrize("moves", [True, False])
def test_a_long_history_out_of_order_is_put_in_order(moves: bool):
    count = 600
    calls = [call(f"c{number}") for number in range(count)]
    said = [Message("assistant", (TextPart("so"),))] * count
    entries, notes = repair_pairs((*calls, *said, *(result(each.id) for each in calls)), "strict", moves=moves)
    assert (len(entries), notes) == (3 * count, [])


def test_a_tool_with_a_field_called_tools_is_no_namespace():
    tools = [
        {"type": "mcp_toolset", "name": "w", "tools": {"x": 1}},
        {"name": "a" * 200, "input_schema": {"type": "object"}},
    ]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "tools": tools}
    sent = json.loads(
        messages_backend.Conversation(messages.decode_request(json.dumps(body).encode()), "s").start().body
    )
    assert sent["tools"][0] == tools[0]


def test_a_result_without_a_call_is_refused_by_name():
    with pytest.raises(BadRequest, match="nobody"):
        repair_pairs((result("nobody"),), "strict")


@pytest.mark.parametrize("text", ["{", '{"a', '{"a":1', '{"a":-', '{"é":1.', '{"a":"\\', '{"a":nul', '{"a":1, '])
def test_what_is_only_too_short_is_the_beginning_of_an_object(text: str):
    assert is_begun_object(text)


@pytest.mark.parametrize(
    "text", ["", "a", '"a', "[1", '{"a":1}', "{a: 1", "{'a':1}", '{"a":1,}', '{"a":1} x', '{}{"a"']
)
def test_what_is_whole_or_wrong_is_no_beginning_of_an_object(text: str):
    assert not is_begun_object(text)
