"""Anthropic Messages, as a dialect and as a backend."""

import json
from functools import lru_cache
from typing import Any

import msgspec
import pytest
from anthropic.types import ErrorResponse
from anthropic.types import Message as WireMessage
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from tests.support.chunks import in_any_chunking
from tests.support.frames import sse, stream
from tests.support.schemas import faults
from toolwire.backends.messages import ANTHROPIC, Conversation, Profile, count_tokens
from toolwire.backends.messages.decode import Decoder
from toolwire.backends.messages.encode import encode_request
from toolwire.core.collect import Call, Reasoning, Text, collect
from toolwire.core.errors import MAX_CALLS, BadRequest, Failure, TooManyCalls
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    MessageEnded,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.request import (
    NO_PARAMETERS,
    AudioPart,
    CallEntry,
    Caller,
    Entry,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OtherEntry,
    OutputFormat,
    ReasoningEntry,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
    ToolsEntry,
)
from toolwire.core.signatures import PackedSignature, pack, unpack
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.dialects import messages

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "description": "D", "input_schema": {"type": "object"}}
SCHEMA = msgspec.Raw(b'{"type":"object"}')


def decoded(history: Any = (USER,), **fields: Any) -> Request:
    return messages.decode_request(
        json.dumps({"model": "m", "max_tokens": 9, "messages": list(history), **fields}).encode()
    )


def bare(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Entries without the words they came in."""
    kept = (entry if isinstance(entry, OtherEntry) else msgspec.structs.replace(entry, raw=None) for entry in entries)
    return tuple(msgspec.structs.replace(entry, message=-1) for entry in kept)


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        messages.decode_request(json.dumps({"model": "m", "messages": [USER], **fields}).encode())
    return caught.value


def said(role: str, *blocks: dict[str, Any]):
    return decoded([{"role": role, "content": list(blocks)}]).entries


# The dialect, decoding


def test_messages_become_entries():
    history = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "why", "signature": "S"}, {"type": "redacted_thinking", "data": "R"},
            {"type": "text", "text": "T", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}, {"type": "tool_use", "id": "b", "name": "f", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one"},
            {"type": "tool_result", "tool_use_id": "b", "is_error": True, "content": [{"type": "text", "text": "boom"}]},
            {"type": "text", "text": "go on"}]},
        {"role": "system", "content": "later"},
    ]  # fmt: skip
    assert bare(decoded(history).entries) == (
        Message("user", (TextPart("U"),)),
        ReasoningEntry(summary=("why",), signature="S", origin="messages"),
        ReasoningEntry(signature="R", origin="messages", redacted=True),
        Message("assistant", (TextPart("T", msgspec.Raw(b'{"type": "ephemeral"}')),)),
        CallEntry("a", "f", '{"x": 1}'),
        CallEntry("b", "f", "{}"),
        ResultEntry("a", (TextPart("one"),)),
        ResultEntry("b", (TextPart("boom"),), failed=True),
        Message("user", (TextPart("go on"),)),
        Message("developer", (TextPart("later"),)),
    )


def test_images_and_documents_in_all_their_forms():
    def block(kind: str, **source: str) -> dict[str, Any]:
        return {"type": kind, "source": source}

    png = block("image", type="base64", media_type="image/png", data="AA")
    entries = said(
        "user",
        png,
        block("image", type="url", url="https://x/i"),
        block("image", type="file", file_id="f1"),
        block("document", type="base64", media_type="application/pdf", data="BB") | {"title": "n.pdf"},
        block("document", type="url", url="https://x/d"),
        block("document", type="file", file_id="f2"),
        block("document", type="text", media_type="text/plain", data="words"),
        {"type": "search_result", "content": []},
        {"type": "tool_result", "tool_use_id": "a", "content": [png]},
        {"type": "tool_result", "tool_use_id": "b"},
    )
    image = ImagePart("data:image/png;base64,AA")
    assert bare(entries) == (
        Message(
            "user",
            (
                image,
                ImagePart("https://x/i"),
                ImagePart("", id="f1"),
                FilePart("data:application/pdf;base64,BB", name="n.pdf"),
                FilePart(url="https://x/d"),
                FilePart(id="f2"),
                TextPart("words"),
                TextPart(""),
            ),
        ),
        ResultEntry("a", (image,)),
        ResultEntry("b", ()),
    )


def test_a_foreign_seal_is_unpacked_again():
    signature = pack(PackedSignature("responses", "rs_1", ("true words",), "E"))
    assert bare(said("assistant", {"type": "thinking", "thinking": "edited", "signature": signature})) == (
        ReasoningEntry("rs_1", ("true words",), signature="E", origin="responses"),
    )
    hidden = pack(PackedSignature("responses", "rs_1", (), "E"))
    assert bare(said("assistant", {"type": "redacted_thinking", "data": hidden})) == (
        ReasoningEntry("rs_1", signature="E", origin="responses"),
    )


def test_blocks_of_the_server_are_carried_as_others():
    [entry] = said("assistant", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})
    assert isinstance(entry, OtherEntry)
    assert entry.type == "server_tool_use"


def test_wrapped_arguments_are_unwrapped():
    [entry] = said("assistant", {"type": "tool_use", "id": "a", "name": "f", "input": {"__arguments": "{bad"}})
    assert bare((entry,)) == (CallEntry("a", "f", "{bad"),)


@pytest.mark.parametrize(
    ("input", "arguments", "sent"),
    [
        ('{"a": 1}', '{"a": 1}', {"a": 1}),
        ("", "", {}),
        (None, "{}", {}),
        ("half {", "half {", {"__arguments": "half {"}),
        ([1], "[1]", {"__arguments": "[1]"}),
    ],
)
def test_an_input_in_a_string_is_sent_on_as_an_object(input, arguments, sent):
    block = {"type": "tool_use", "id": "a", "name": "f", "input": input, "cache_control": {"type": "ephemeral"}}
    [_, call] = decoded([USER, {"role": "assistant", "content": [block]}]).entries
    assert (call.arguments, json.loads(bytes(call.raw))) == (arguments, {**block, "input": sent})


@pytest.mark.parametrize("input", ["__arguments", ["__arguments"]])
def test_an_input_that_is_no_object_is_no_fault_of_ours(input):
    body = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": input}]}
    try:
        decoded([body])
    except BadRequest as error:
        assert error.param == "messages[0].content[0].input"  # noqa: PT017


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (None, ""),
        ("S", "S"),
        (
            [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "T"}],
            "S\n\nT",
        ),
    ],
)
def test_system_is_text_or_blocks(system, expected):
    assert decoded(system=system).instructions == expected


def test_tools_are_declared_or_hosted():
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    bash = {"type": "bash_20250124", "name": "bash"}
    custom = {"type": "custom", "name": "g", "strict": True, "eager_input_streaming": True}
    request = decoded(tools=[TOOL, custom, search, bash])
    assert [(tool.name, tool.description, tool.strict) for tool in request.tools] == [("f", "D", None), ("g", "", True)]
    assert json.loads(bytes(request.tools[0].parameters or b"")) == {"type": "object"}
    assert [(tool.type, json.loads(bytes(tool.raw))) for tool in request.hosted_tools] == [
        ("web_search_20250305", search),
        ("bash_20250124", bash),
    ]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, None),
        ({"type": "auto"}, ToolChoice("auto"), None),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice("auto"), False),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice("required"), None),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required"), False),
        ({"type": "tool", "name": "f"}, ToolChoice("required", "f"), None),
        ({"type": "none"}, ToolChoice("none"), None),
    ],
)
def test_every_tool_choice(choice, expected, parallel):
    request = decoded(tools=[TOOL], tool_choice=choice)
    assert (request.tool_choice, request.parallel_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "high"}}, "high"),
    ],
)
def test_a_budget_becomes_an_effort(fields, effort):
    assert decoded(**fields).sampling.effort == effort


def test_parameters_are_read_and_the_rest_is_kept():
    request = decoded(
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["X"],
        stream=True,
        metadata={"user_id": "u"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        container=None,
    )
    assert request.sampling == Sampling(0.5, 0.9, 9, ("X",))
    assert (request.stream, request.caller, request.dialect) == (True, Caller("u"), "messages")
    assert request.output_format is not None
    assert json.loads(bytes(request.output_format.schema or b"")) == {"type": "object"}
    assert request.output_format.strict is None  # BM-153
    assert {name: bytes(value) for name, value in request.extra.items()} == {"top_k": b"4"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": " "}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]}, "messages[0].content[0].id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}]}, "messages[0].content[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 3}]}]}, "messages[0].content[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{}]}]}]}, "messages[0].content[0].content[0].type"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"system": 3}, "system"),
        ({"stop_sequences": "X"}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": "all"}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": 3}}, "output_config.effort"),
        ({"tools": {}}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [TOOL, {"description": "D"}]}, "tools[1].name"),
        ({"tools": [{"name": 3}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "zz"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field(fields, param):
    assert refused(**fields).param == param


def test_an_unknown_role_is_told_which_there_are():
    error = refused(messages=[{"role": "tool", "content": "x"}])
    assert error.message == "messages[0].role must be user, assistant or system; received 'tool'."


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[]", b"", b"[" * 100_000])
def test_a_body_that_is_not_json_says_so(body):
    with pytest.raises(BadRequest):
        messages.decode_request(body)


# The dialect, encoding

EVENTS = [
    TurnStarted("r", "m"), ReasoningDelta("why"), ReasoningDelta("then", part=1), ReasoningEnded("", "SIG", "messages"),
    TextDelta("Hi "), TextDelta("\u00e9"), CallStarted("a", "f"), CallArgs("a", '{"x":'), CallArgs("a", "1}"), CallEnded("a"),
    CallStarted("b", "p", "custom"), CallArgs("b", "raw "), CallArgs("b", '"text"'), CallEnded("b"), CallStarted("c", "f"),
    CallArgs("c", "{}"), CallEnded("c"), CallStarted("d", "f"), CallEnded("d"), ReasoningEnded("", "HIDDEN", "messages", redacted=True),
    TextDelta("bye"), Usage(20, 5, 4, 6, 3), TurnEnded("calls"),
]  # fmt: skip


@lru_cache
def schema(type: Any) -> Draft202012Validator:
    return Draft202012Validator(TypeAdapter(type).json_schema())


def written(events: Any, encoder: Any = None) -> list[dict[str, Any]]:
    """The events on the wire, each named as it is typed and sound."""
    encoder = encoder or messages.StreamEncoder(Request("m", ()), "msg_1", 7, TurnStats())
    wire = b"".join(piece for event in events for piece in encoder.feed(event))
    return read(wire)


def read(wire: bytes) -> list[dict[str, Any]]:
    out = []
    for block in wire.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] == "error":
            assert not faults(schema(ErrorResponse), [{"request_id": None, **event}])
        elif event["type"] != "ping":
            assert not faults(schema(RawMessageStreamEvent), [event])
        out.append(event)
    return out


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream adds up to, as the official client does it, with the rules checked on the way."""
    assert events[0]["type"] == "message_start"
    message = events[0]["message"]
    assert message["content"] == []
    assert all(isinstance(message["usage"][key], int) for key in ("input_tokens", "output_tokens"))
    inputs: dict[int, str] = {}
    is_open = False
    for place, event in enumerate(events[1:], 1):
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                is_open = True
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        assert not block["signature"]
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                        assert events[place + 1]["type"] == "content_block_stop"
                    case "input_json_delta":
                        assert block["type"] == "tool_use"
                        inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                is_open = False
            case "message_delta":
                assert not is_open
                message |= event["delta"]
                message["usage"] |= event["usage"]
            case "message_stop":
                assert event is events[-1]
            case other:
                assert other == "ping"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    return message


def finished(events: Any) -> dict[str, Any]:
    message = json.loads(messages.encode_turn(collect(list(events)), Request("m", ()), "msg_1", 7))
    assert not faults(schema(WireMessage), [message])
    return message


DIRECT = {"type": "direct"}


def test_the_stream_adds_up_to_the_plain_message():
    whole = finished(EVENTS)
    assert folded(written(EVENTS)) == whole
    assert whole["content"] == [
        {"type": "thinking", "thinking": "why\n\nthen", "signature": "SIG"},
        {"citations": None, "type": "text", "text": "Hi \u00e9"},
        {"caller": DIRECT, "type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"caller": DIRECT, "type": "tool_use", "id": "b", "name": "p", "input": {"input": 'raw "text"'}},
        {"caller": DIRECT, "type": "tool_use", "id": "c", "name": "f", "input": {}},
        {"caller": DIRECT, "type": "tool_use", "id": "d", "name": "f", "input": {}},
        {"type": "redacted_thinking", "data": "HIDDEN"},
        {"citations": None, "type": "text", "text": "bye"},
    ]
    assert (whole["id"], whole["model"], whole["role"], whole["stop_reason"]) == ("msg_1", "m", "assistant", "tool_use")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [TextDelta("a"), RefusalDelta("b")],
        [ReasoningDelta("a"), TextDelta("x"), ReasoningDelta("b"), TextDelta("y")],
        [ReasoningDelta("a"), ReasoningEnded("rs_1", "E", "responses"), TextDelta("x")],
        [ReasoningEnded("rs_1", "E", "responses"), CallStarted("a", "f"), CallArgs("a", "{}"), CallEnded("a")],
        [ReasoningDelta("a", "summary"), ReasoningDelta("b", "content"), TextDelta("x")],
        [ReasoningEnded(), TextDelta("x")],
        [TextDelta("a", "m1"), MessageEnded("m1"), TextDelta("b", "m2"), MessageEnded("m2")],
        [
            CallStarted("a", "p", "custom"),
            CallEnded("a"),
            CallStarted("b", "f"),
            CallArgs("b", '{"y":2}'),
            CallEnded("b"),
        ],
    ],
)
def test_any_stream_adds_up(events):
    turn = [TurnStarted(), *events, TurnEnded()]
    assert folded(written(turn)) == finished(turn)


def test_a_foreign_seal_travels_in_a_package():
    turn = [TurnStarted(), ReasoningDelta("a"), ReasoningEnded("rs_1", "E", "responses"), TurnEnded()]
    assert unpack(folded(written(turn))["content"][0]["signature"]) == PackedSignature("responses", "rs_1", ("a",), "E")


def test_every_fragment_is_passed_on():
    deltas = [event["delta"] for event in written(EVENTS) if event["type"] == "content_block_delta"]
    assert [next(reversed(delta.values())) for delta in deltas][:7] == [
        "why",
        "\n\nthen",
        "SIG",
        "Hi ",
        "\u00e9",
        '{"x":',
        "1}",
    ]


def test_a_custom_call_is_wrapped_when_it_is_whole():
    turn = [
        TurnStarted(),
        CallStarted("b", "p", "custom"),
        CallArgs("b", 'a"'),
        CallArgs("b", "\n"),
        CallEnded("b"),
        TurnEnded("calls"),
    ]
    [delta] = [event["delta"] for event in written(turn) if event["type"] == "content_block_delta"]
    assert json.loads(delta["partial_json"]) == {"input": 'a"\n'}


@pytest.mark.parametrize("arguments", ['{"names": cronjob}', "[1]", "3"])
def test_arguments_that_are_no_object_are_marked_and_return(arguments):
    turn = [TurnStarted(), CallStarted("a", "f"), CallArgs("a", arguments), CallEnded("a"), TurnEnded("calls")]
    [block] = finished(turn)["content"]
    assert block["input"] == {"__arguments": arguments}
    assert bare(said("assistant", block)) == (CallEntry("a", "f", arguments),)
    [delta] = [event["delta"] for event in written(turn) if event["type"] == "content_block_delta"]
    assert delta["partial_json"] == arguments


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([TurnEnded("stop")], "end_turn"),
        ([TurnEnded("calls")], "tool_use"),
        ([TurnEnded("length")], "max_tokens"),
        ([TurnEnded("filter")], "refusal"),
        ([RefusalDelta("no"), TurnEnded("stop")], "refusal"),
        ([RefusalDelta("no"), TurnEnded("length")], "max_tokens"),
    ],
)
def test_stop_reasons(events, expected):
    turn = [TurnStarted(), *events]
    assert folded(written(turn))["stop_reason"] == finished(turn)["stop_reason"] == expected


def test_cached_tokens_are_not_in_the_input():
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 5,
             "output_tokens_details": {"thinking_tokens": 3},
             **dict.fromkeys(("cache_creation", "inference_geo", "server_tool_use", "service_tier", "speed"))}  # fmt: skip
    assert finished(EVENTS)["usage"] == folded(written(EVENTS))["usage"] == usage


def test_what_the_document_requires_is_there_when_nobody_knows_it():
    message = finished([TurnStarted(), TextDelta("x"), TurnEnded()])
    start, *_, delta, _ = written([TurnStarted(), TextDelta("x"), TurnEnded()])
    counted = ("cache_creation", "inference_geo", "output_tokens_details", "server_tool_use", "service_tier", "speed")
    for each in (message, start["message"]):
        assert {name: each[name] for name in ("container", "diagnostics", "stop_details")} == {
            "container": None,
            "diagnostics": None,
            "stop_details": None,
        }
        assert {name: each["usage"][name] for name in counted} == dict.fromkeys(counted)
    assert (delta["delta"]["container"], delta["delta"]["stop_details"]) == (None, None)
    assert (delta["usage"]["server_tool_use"], delta["usage"]["output_tokens_details"]) == (None, None)


def test_usage_is_there_when_nobody_counted():
    events = written([TurnStarted(), TextDelta("x"), TurnEnded()])
    assert events[0]["message"]["usage"]["input_tokens"] == events[-2]["usage"]["output_tokens"] == 0


def test_a_ping_keeps_the_stream_alive():
    encoder = messages.StreamEncoder(Request("m", ()), "msg_1", 7, TurnStats())
    first, second = read(b"".join(encoder.keepalive(15))), read(b"".join(encoder.keepalive(30)))
    assert [event["type"] for event in first + second] == ["message_start", "ping", "ping"]
    rest = written([TurnStarted(), TextDelta("x"), TurnEnded()], encoder)
    assert folded(first + second + rest)["content"] == [{"citations": None, "type": "text", "text": "x"}]


@pytest.mark.parametrize(
    "before", [[], [TurnStarted()], [TurnStarted(), CallStarted("a", "f"), CallArgs("a", '{"x":')]]
)
def test_a_failure_is_one_error_and_nothing_after(before):
    events = written([*before, TurnFailed(Failure(503, "server_is_overloaded", "Busy"))])
    assert [event for event in events if event["type"] in ("error", "message_delta", "message_stop")] == [events[-1]]
    assert events[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}


@pytest.mark.parametrize(
    ("status", "type"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (402, "billing_error"), (403, "permission_error"),
     (404, "not_found_error"), (413, "request_too_large"), (422, "invalid_request_error"), (429, "rate_limit_error"),
     (500, "api_error"), (502, "api_error"), (503, "overloaded_error"), (504, "timeout_error"), (529, "overloaded_error")],
)  # fmt: skip
def test_an_error_has_the_type_of_its_status(status, type):
    assert json.loads(messages.encode_error(Failure(status, "c", "m"))) == {
        "type": "error",
        "error": {"type": type, "message": "m"},
    }


# The backend, decoding


def am(type: str, **fields: Any) -> bytes:
    return sse({"type": type, **fields})


def began(**usage: int) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    return am("message_start", message=message)


def start(index: int, type: str, **fields: Any) -> bytes:
    return am("content_block_start", index=index, content_block={"type": type, **fields})


def delta(index: int, type: str, **fields: Any) -> bytes:
    return am("content_block_delta", index=index, delta={"type": type, **fields})


def stop(index: int) -> bytes:
    return am("content_block_stop", index=index)


def over(reason: str | None = "end_turn", **usage: int) -> bytes:
    return am("message_delta", delta={"stop_reason": reason}, usage=usage) + am("message_stop")


def said_text(words: str, index: int = 0) -> bytes:
    return start(index, "text", text="") + delta(index, "text_delta", text=words) + stop(index)


def use(index: int, id: str, *pieces: str, **fields: Any) -> bytes:
    """A tool block up to its stop."""
    grown = [delta(index, "input_json_delta", partial_json=piece) for piece in pieces]
    return stream(start(index, "tool_use", id=id, name="f", **{"input": {}, **fields}), *grown)


def turn(*events: bytes):
    """The turn a stream makes: legal, and the same in any chunking."""

    def run(pieces: list[bytes]):
        line = Pipeline(FrameReader(), Conversation(Request("m", (), tools=(Tool("f"),)), "S"), TurnOrder())
        return collect([event for piece in pieces for event in line.feed(piece)] + list(line.end()))

    return in_any_chunking(b"".join(events), run)


def plain(**message: Any):
    return collect(
        list(Conversation(Request("m", (), tools=(Tool("f"),)), "S").feed_plain(json.dumps(message).encode()))
    )


def test_a_stream_becomes_a_turn_and_equals_the_plain_message():
    streamed = turn(
        began(input_tokens=9),
        am("ping"),
        start(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="why"),
        delta(0, "signature_delta", signature="SIG"),
        stop(0),
        start(1, "redacted_thinking", data="HID"),
        stop(1),
        said_text("Hi", 2),
        use(3, "a", '{"x"', ":1}") + stop(3),
        said_text("and", 4),
        use(5, "b", '{"x":2}') + stop(5),
        over("tool_use", output_tokens=4),
    )
    assert streamed.items == (
        Reasoning(("why",), signature="SIG", origin="messages"),
        Reasoning(signature="HID", origin="messages", redacted=True),
        Text("Hi"),
        Call("a", "f", '{"x":1}'),
        Text("and"),
        Call("b", "f", '{"x":2}'),
    )
    assert (streamed.id, streamed.model, streamed.usage, streamed.notes) == ("msg_1", "m", Usage(9, 4), ())
    content = [
        {"type": "thinking", "thinking": "why", "signature": "SIG"}, {"type": "redacted_thinking", "data": "HID"},
        {"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "text", "text": "and"}, {"type": "tool_use", "id": "b", "name": "f", "input": {"x": 2}},
    ]  # fmt: skip
    whole = plain(
        id="msg_1",
        type="message",
        model="m",
        content=content,
        stop_reason="tool_use",
        usage={"input_tokens": 9, "output_tokens": 4},
    )
    inputs = [json.loads(call.arguments) for call in whole.calls]
    assert inputs == [{"x": 1}, {"x": 2}]
    calls = [
        msgspec.structs.replace(call, arguments=json.dumps(json.loads(call.arguments), separators=(",", ":")))
        for call in whole.calls
    ]
    items = tuple(calls.pop(0) if isinstance(item, Call) else item for item in whole.items)
    assert msgspec.structs.replace(whole, items=items) == streamed


@pytest.mark.parametrize(
    ("given", "reason", "notes"),
    [
        ("end_turn", "stop", ()),
        ("stop_sequence", "stop", ()),
        ("tool_use", "stop", ()),
        ("max_tokens", "length", ()),
        ("model_context_window_exceeded", "length", ()),
        ("refusal", "filter", ()),
        ("pause_turn", "stop", (Note("turn_paused"),)),
        ("brand_new_reason", "stop", (Note("reason_unknown", "brand_new_reason"),)),
        (None, "stop", (Note("reason_missing"),)),
    ],
)
def test_every_stop_reason_keeps_its_calls(given, reason, notes):
    streamed = turn(began(), use(0, "a", '{"x":1}') + stop(0), over(given))
    assert (streamed.reason, streamed.notes, streamed.calls) == (reason, notes, (Call("a", "f", '{"x":1}'),))
    content = [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]
    whole = plain(content=content, stop_reason=given)
    assert (whole.reason, whole.notes, len(whole.calls)) == (reason, notes, 1)


def test_a_reason_without_a_call_is_noted():
    assert turn(began(), said_text("x"), over("tool_use")).notes == (Note("reason_unfounded", "tool_use"),)


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        (use(0, "a") + stop(0), "{}"),
        (use(0, "a", "") + stop(0), "{}"),
        (use(0, "a", "", "{}") + stop(0), "{}"),
        (use(0, "a", input={"x": 1}) + stop(0), '{"x": 1}'),
        (use(0, "a", '{"x":2}', input={"x": 1}) + stop(0), '{"x":2}'),
        (use(0, "a", '{"names": cro', "njob}") + stop(0), '{"names": cronjob}'),
        (use(0, "a"), "{}"),
        (use(0, "a", '{"x":1}'), '{"x":1}'),
        (use(0, "a", input={"x": 1}), '{"x": 1}'),
    ],
    ids=[
        "none",
        "empty",
        "braces",
        "whole",
        "both",
        "invalid",
        "none-unstopped",
        "pieces-unstopped",
        "whole-unstopped",
    ],
)
def test_arguments_come_in_pieces_whole_or_not_at_all(block, arguments):
    [call] = turn(began(), block, over("tool_use")).calls
    assert (call.id, call.arguments) == ("a", arguments)


@pytest.mark.parametrize("stops", [b"", stop(0)], ids=["unstopped", "stopped"])
def test_a_call_cut_by_the_limit_is_not_complete(stops):
    streamed = turn(began(), use(0, "a", '{"t":"abc'), stops, over("max_tokens"))
    assert streamed.reason == "length"
    assert streamed.calls == (Call("a", "f", '{"t":"abc', complete=False),)


def test_a_cut_call_is_not_complete_because_an_earlier_one_had_its_index():
    streamed = turn(began(), use(0, "a", "{}"), stop(0), use(0, "b", '{"t":"abc'), stop(0), over("max_tokens"))
    assert [(call.id, call.complete) for call in streamed.calls] == [("a", True), ("b", False)]


def test_blocks_without_a_stop_end_where_the_next_begins():
    streamed = turn(
        began(),
        start(0, "thinking", thinking=""),
        delta(0, "thinking_delta", thinking="why"),
        delta(0, "signature_delta", signature="SIG"),
        start(1, "text", text=""),
        delta(1, "text_delta", text="Hi"),
        use(2, "a", input={"x": 1}),
        use(3, "b", '{"x":2}'),
        use(4, "c"),
        over("tool_use"),
    )
    assert streamed.items == (
        Reasoning(("why",), signature="SIG", origin="messages"),
        Text("Hi"),
        Call("a", "f", '{"x": 1}'),
        Call("b", "f", '{"x":2}'),
        Call("c", "f", "{}"),
    )


def test_a_stream_without_its_last_event_is_whole_when_the_reason_is_there():
    end = am("message_delta", delta={"stop_reason": "tool_use"})
    streamed = turn(began(), use(0, "a"), use(1, "b", '{"x":1}') + stop(1), said_text("x", 2), end)
    assert streamed.failure is None
    assert streamed.calls == (Call("a", "f", "{}"), Call("b", "f", '{"x":1}'))
    assert streamed.text == "x"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ({"input_tokens": 9, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2},
         {"cache_read_input_tokens": 5, "cache_creation_input_tokens": 2, "output_tokens": 16}, Usage(16, 16, 5, 2)),
        ({"input_tokens": 9, "output_tokens": 1}, {"output_tokens": 16}, Usage(9, 16)),
        ({}, {"input_tokens": 9, "output_tokens": 16, "output_tokens_details": {"thinking_tokens": 7}}, Usage(9, 16, 0, 0, 7)),
        ({"input_tokens": 9, "output_tokens": 1}, {}, Usage(9, 1)),
        ({}, {}, None),
        ({"input_tokens": 9, "cache_read_input_tokens": None}, {"output_tokens": 3}, Usage(9, 3)),
    ],
)  # fmt: skip
def test_usage_is_the_last_number_of_each(first, last, expected):
    assert turn(began(**first), said_text("x"), over(**last)).usage == expected


def test_an_error_in_the_stream_fails_the_turn():
    error = {"type": "overloaded_error", "message": "Overloaded"}
    streamed = turn(began(), said_text("x"), am("error", error=error), over())
    assert streamed.failure == Failure(503, "overloaded_error", "Overloaded", retryable=True, quoted=True)
    assert plain(type="error", error=error).failure == streamed.failure
    assert turn(am("error", error=error)).failure == streamed.failure


@pytest.mark.parametrize("cut", [b"", began(), began() + use(0, "a", '{"x":'), began() + said_text("x")])
def test_a_cut_stream_fails_the_turn(cut):
    failure = turn(cut).failure
    assert failure is not None
    assert (failure.status, failure.code, failure.retryable) == (502, "stream_cut", True)


def test_tools_of_the_server_are_noted():
    streamed = turn(
        began(),
        start(0, "server_tool_use", id="s", name="web_search", input={}),
        delta(0, "input_json_delta", partial_json='{"query":"x"}'),
        stop(0),
        start(1, "web_search_tool_result", tool_use_id="s", content=[]),
        stop(1),
        said_text("x", 2),
        over(),
    )
    assert streamed.items == (Text("x"),)
    assert streamed.notes == (Note("item_dropped", "server_tool_use"), Note("item_dropped", "web_search_tool_result"))


def test_a_frame_that_cannot_be_read_is_skipped():
    streamed = turn(began(), b"data: {nonsense\n\n", said_text("x"), over())
    assert (streamed.text, streamed.notes) == ("x", (Note("frame_skipped"),))


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]"])
def test_a_reply_that_is_no_message_is_bad(body):
    failure = collect(list(Decoder("S").feed_plain(body))).failure
    assert failure is not None
    assert failure.code == "bad_reply"


def test_overload_has_one_status():
    failure = Conversation(Request("m", ()), "S").read_error(
        529, {}, b'{"error":{"type":"overloaded_error","message":"x"}}'
    )
    assert (failure.status, failure.retryable) == (503, True)


def test_a_custom_tool_is_lowered_and_its_calls_are_restored():
    conversation = Conversation(Request("m", (), tools=(Tool("p", kind="custom"),)), "S")
    post = conversation.start()
    assert post.path == "/messages"
    assert post.headers["anthropic-version"] == "2023-06-01"
    [tool] = json.loads(post.body)["tools"]
    assert tool["input_schema"]["required"] == ["input"]
    content = [{"type": "tool_use", "id": "a", "name": "p", "input": {"input": "raw"}}]
    body = json.dumps({"content": content, "stop_reason": "tool_use"}).encode()
    assert collect(list(conversation.feed_plain(body))).calls == (Call("a", "p", "raw", "custom"),)


# The backend, encoding


def asked(profile: Profile = ANTHROPIC, **fields: Any):
    body, notes = encode_request(Request("m", fields.pop("entries", ()), **fields), profile, stream=False)
    return json.loads(body), notes


def asked_messages(*entries: Any):
    return asked(entries=entries)[0]["messages"]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def result(id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def test_nothing_is_asked_that_was_not():
    assert asked(entries=(Message("user", (TextPart("hi"),)),)) == (
        {"model": "m", "max_tokens": 32000, "stream": False, "messages": [{"role": "user", "content": [text("hi")]}]},
        [],
    )


def test_roles_alternate_and_results_come_first():
    body, notes = asked(
        instructions="I",
        tools=(Tool("f"),),
        entries=(
            Message("system", (TextPart("S"),)),
            Message("developer", (TextPart("D"),)),
            Message("user", (TextPart("one"),)),
            Message("user", (TextPart("two"),)),
            ReasoningEntry(summary=("why",), signature="SIG", origin="messages"),
            ReasoningEntry(signature="HID", origin="messages", redacted=True),
            Message("assistant", (TextPart("A"),)),
            CallEntry("a", "f", '{"x":1.50}'),
            CallEntry("b", "f", " "),
            ResultEntry("a", (TextPart("ra"),)),
            Message("user", (ImagePart("https://x/i"),)),
            ResultEntry("b", (TextPart("rb"), ImagePart("data:image/png;base64,AA")), failed=True),
            Message("developer", (TextPart("later"),)),
            Message("assistant", (TextPart(""),)),
            Message("user", (TextPart("go"),)),
        ),
    )
    assert body["system"] == "I\n\nS\n\nD"
    assert body["messages"] == [
        {"role": "user", "content": [text("one"), text("two")]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "why", "signature": "SIG"}, {"type": "redacted_thinking", "data": "HID"}, text("A"),
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1.5}}, {"type": "tool_use", "id": "b", "name": "f", "input": {}}]},
        {"role": "user", "content": [
            result("a", "ra"),
            result("b", [text("rb"), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]) | {"is_error": True},
            {"type": "image", "source": {"type": "url", "url": "https://x/i"}},
            text("<system>\nlater\n</system>"), text("go")]},
    ]  # fmt: skip
    assert notes == []


@pytest.mark.parametrize("words", ["", " ", "\n\n"])
def test_no_text_block_is_blank(words):
    [first, second] = asked_messages(
        Message("user", (TextPart("hi"), TextPart(words))),
        Message("assistant", (TextPart(words),)),
        CallEntry("a", "f", "{}"),
    )
    assert first["content"] == [text("hi")]
    assert [block["type"] for block in second["content"]] == ["tool_use"]


def test_an_empty_result_is_kept():
    [message] = asked_messages(ResultEntry("a", ()), ResultEntry("b", (TextPart(""),)))
    assert [block["tool_use_id"] for block in message["content"]] == ["a", "b"]


@pytest.mark.parametrize(
    "entry",
    [
        ReasoningEntry("rs_1", ("s",), signature="E", origin="responses"),
        ReasoningEntry("rs_1", ("s",)),
        ReasoningEntry("rs_1", ("s",), origin="messages"),
    ],
)
def test_a_thought_goes_only_to_its_issuer(entry):
    body, notes = asked(entries=(Message("user", (TextPart("hi"),)), entry, Message("assistant", (TextPart("A"),))))
    assert body["messages"][1] == {"role": "assistant", "content": [text("A")]}
    assert notes == [Note("reasoning_dropped", "rs_1")]


@pytest.mark.parametrize("arguments", ['{"path":"x","error_retry:: 240}', "[1]", "3", '"x"', "[" * 5000])
def test_arguments_that_are_no_object_are_wrapped(arguments):
    body, notes = asked(
        entries=(Message("user", (TextPart("go"),)), CallEntry("a", "f", arguments)), tools=(Tool("f"),)
    )
    assert body["messages"][1]["content"][0]["input"] == {"__arguments": arguments}
    assert notes == [Note("arguments_wrapped", "a")]


def test_calls_of_tools_that_are_no_longer_declared_are_allowed_for():
    body, notes = asked(entries=(Message("user", (TextPart("go"),)), CallEntry("a", "f", "{}"), ResultEntry("a", ())))
    assert body["tools"] == [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
    assert (body["tool_choice"], notes) == ({"type": "none"}, [Note("tools_declared", "f")])


def test_a_conversation_begins_with_the_user():
    body, notes = asked(entries=(Message("assistant", (TextPart("Hello"),)),))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
    assert notes == [Note("message_added", "user")]
    body, notes = asked(entries=(Message("system", (TextPart("Say hello"),)),))
    assert body["messages"] == [{"role": "user", "content": [text("Say hello")]}]


def test_parts_and_what_has_no_place():
    parts = (
        ImagePart("", id="f1"),
        FilePart("data:application/pdf;base64,BB", name="n"),
        FilePart(id="f2"),
        FilePart(url="https://x/d"),
        AudioPart("AA", "wav"),
    )
    body, notes = asked(entries=(Message("user", parts), OtherEntry("item_reference", SCHEMA)))
    assert body["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "file", "file_id": "f1"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "BB"}, "title": "n"},
        {"type": "document", "source": {"type": "file", "file_id": "f2"}},
        {"type": "document", "source": {"type": "url", "url": "https://x/d"}},
    ]
    assert notes == [Note("part_dropped", "audio"), Note("item_dropped", "item_reference")]


def test_a_tool_has_a_schema_and_what_is_known_of_it():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    cache = msgspec.Raw(b'{"type":"ephemeral"}')
    tools = (Tool("f", "D", msgspec.Raw(json.dumps(schema).encode()), strict=True, cache=cache), Tool("g"))
    assert asked(tools=tools)[0]["tools"] == [
        {
            "name": "f",
            "description": "D",
            "input_schema": schema,
            "strict": True,
            "cache_control": {"type": "ephemeral"},
        },
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
    ]


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice("auto"), True, {"type": "auto"}),
        (ToolChoice("none"), False, {"type": "none"}),
        (ToolChoice("required"), None, {"type": "any"}),
        (ToolChoice("required", "b"), False, {"type": "tool", "name": "b", "disable_parallel_tool_use": True}),
    ],
)
def test_a_tool_choice_keeps_its_meaning(choice, parallel, expected):
    body, _ = asked(tools=(Tool("a"), Tool("b")), tool_choice=choice, parallel_calls=parallel)
    assert body.get("tool_choice") == expected


def test_tools_that_are_not_allowed_are_not_shown():
    choice = ToolChoice("required", allowed=("a",), limited=True)
    body, _ = asked(tools=(Tool("a"), Tool("b")), tool_choice=choice, parallel_calls=False)
    assert [tool["name"] for tool in body["tools"]] == ["a"]
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}


def test_hosted_tools_are_carried():
    raw = {"type": "web_search_20250305", "name": "web_search"}
    assert asked(hosted_tools=(HostedTool(raw["type"], msgspec.Raw(json.dumps(raw).encode())),))[0]["tools"] == [raw]


def test_parameters_are_carried_clamped_or_noted():
    body, notes = asked(
        sampling=Sampling(1.5, 0.9, 7, ("X",), verbosity="low", service_tier="flex"),
        caller=Caller("u"),
        extra={"seed": msgspec.Raw(b"1")},
    )
    assert body | {"messages": []} == {
        "model": "m", "messages": [], "stream": False, "max_tokens": 7, "temperature": 1.0, "top_p": 0.9,
        "stop_sequences": ["X"], "metadata": {"user_id": "u"},
    }  # fmt: skip
    assert [(note.code, note.subject) for note in notes] == [
        ("value_changed", "temperature"),
        ("field_dropped", "verbosity"),
        ("field_dropped", "service_tier"),
        ("field_dropped", "seed"),
    ]


def test_effort_and_format():
    schema = msgspec.Raw(b'{"type":"object"}')
    body, _ = asked(sampling=Sampling(effort="minimal"), output_format=OutputFormat(schema))
    assert body["thinking"] == {"type": "adaptive"}
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert asked(sampling=Sampling(effort="none"))[0]["thinking"] == {"type": "disabled"}
    forced, notes = asked(sampling=Sampling(effort="high"), tools=(Tool("a"),), tool_choice=ToolChoice("required"))
    assert "thinking" not in forced
    assert notes == [Note("field_dropped", "reasoning_effort")]
    worded, notes = asked(output_format=OutputFormat())
    assert "JSON" in worded["system"]
    assert notes == [Note("field_dropped", "response_format")]


def test_messages_of_a_turn_are_blocks_of_their_own():
    turn = [TurnStarted(), TextDelta("Let me look."), MessageEnded(""), TextDelta("It is 42."), TurnEnded()]
    for message in (folded(written(turn)), finished(turn)):
        assert [block["text"] for block in message["content"]] == ["Let me look.", "It is 42."]


@pytest.mark.parametrize(
    ("events", "frames"),
    [
        ([said_text("a"), am("message_delta", delta={"stop_reason": None}, usage={})], 0),
        ([said_text("a"), am("message_delta", delta={"stop_reason": "end_turn"}, usage={})], 1),
        ([am("message_delta", delta={"stop_reason": "end_turn"}), am("ping"), b": ping\n\n", b"data: {\n\n"], 1),
        ([am("message_delta", delta={"stop_reason": "end_turn"}), am("message_delta", usage={"output_tokens": 4})], 2),
    ],
)
@pytest.mark.parametrize("dialect", ["messages", "chat"])
def test_frames_are_counted_from_the_stop_reason_on_and_heartbeats_are_not(
    events: list[bytes], frames: int, dialect: Any
):
    def run(pieces: list[bytes]):
        conversation = Conversation(Request("m", (), dialect=dialect), "S")
        line = Pipeline(FrameReader(), conversation)
        for piece in pieces:
            line.feed(piece)
        return conversation.decoder.finishing

    assert in_any_chunking(began() + b"".join(events), run) == frames


# Seldom seen


@pytest.mark.parametrize(
    "frame",
    [
        am("content_block_delta", index=0),
        b"data: [DONE]\n\n",
        am("message_start", message={"id": "msg_2", "model": "other"}),
        am("vendor_event", about="nothing"),
    ],
    ids=["delta-of-nothing", "done", "second-start", "unknown"],
)
def test_a_frame_that_says_nothing_changes_nothing(frame: bytes):
    made = turn(began(), frame, said_text("Hi"), over())
    assert (made.id, made.text, made.reason) == ("msg_1", "Hi", "stop")


def test_an_unknown_event_with_an_error_fails_the_turn():
    made = turn(began(), am("vendor_event", error="Out of order."))
    assert made.failure is not None
    assert "Out of order." in made.failure.message


def test_citations_of_a_server_are_not_for_clients_of_other_dialects():
    cited = {"type": "char_location", "cited_text": "x"}
    streamed = turn(
        began(),
        start(0, "text", text=""),
        delta(0, "citations_delta", citation=cited),
        stop(0),
        said_text("Hi", 1),
        over(),
    )
    whole = plain(id="m", content=[{"type": "text", "text": "Hi", "citations": [cited]}], stop_reason="end_turn")
    for made in (streamed, whole):
        assert (made.text, [note.code for note in made.notes]) == ("Hi", ["annotations_dropped"])


def test_more_blocks_than_any_model_makes_are_refused():
    with pytest.raises(TooManyCalls):
        plain(id="m", content=[{"type": "text", "text": "x"}] * (MAX_CALLS + 1), stop_reason="end_turn")


def test_a_refusal_of_the_server_keeps_its_status():
    refused = Conversation(Request("m", ()), "S").read_error(401, {}, b'{"error":{"message":"No."}}')
    assert (refused.status, refused.message) == (401, "No.")


def test_counting_asks_for_what_is_counted_only():
    request = Request("m", (Message("user", (TextPart("Go."),)),), tools=(Tool("f"),))
    post = count_tokens(request, ANTHROPIC)
    assert post.path == "/messages/count_tokens"
    assert set(json.loads(post.body)) == {"model", "messages", "tools"}


@pytest.mark.parametrize(
    ("name", "is_there"),
    [("temperature", True), ("top_k", False), ("tools.strict", True), ("tools.cache_control", False)],
)
def test_what_a_server_refuses_is_left_out_with_a_note_where_it_was(name: str, is_there: bool):
    refuses = msgspec.structs.replace(ANTHROPIC, refuses=(name,))
    tool = Tool("f", parameters=NO_PARAMETERS, strict=True)
    user = Message("user", (TextPart("Go."),))
    body, notes = asked(refuses, entries=(user,), tools=(tool,), sampling=Sampling(temperature=0.5))
    assert [note.subject for note in notes] == ([name] if is_there else [])
    assert ("temperature" in body, "strict" in body["tools"][0]) == (name != "temperature", name != "tools.strict")


def test_tools_that_are_declared_on_the_way_leave_no_message():
    user = Message("user", (TextPart("Go."),))
    assert asked_messages(ToolsEntry(NO_PARAMETERS, NO_PARAMETERS), user) == [
        {"role": "user", "content": [text("Go.")]}
    ]


def test_a_result_without_words_gets_those_of_the_profile():
    profile = msgspec.structs.replace(ANTHROPIC, empty_result="(nothing)")
    entries = (Message("user", (TextPart("Go."),)), CallEntry("a", "f", "{}"), ResultEntry("a", ()))
    body, _ = asked(profile, entries=entries)
    assert body["messages"][-1]["content"] == [result("a", "(nothing)")]


def test_the_cache_mark_of_a_result_stands_on_its_block():
    mark = msgspec.Raw(b'{"type":"ephemeral"}')
    entries = (CallEntry("a", "f", "{}"), ResultEntry("a", (TextPart("ok", mark),)))
    made = asked_messages(Message("user", (TextPart("Go."),)), *entries)[-1]["content"]
    assert made == [{**result("a", "ok"), "cache_control": {"type": "ephemeral"}}]


def test_an_image_that_is_written_out_is_coded():
    image = ImagePart("data:image/svg+xml,%3Csvg/%3E")
    [message] = asked_messages(Message("user", (image,)))
    assert message["content"][0]["source"] == {"type": "base64", "media_type": "image/svg+xml", "data": "PHN2Zy8+"}


# Fields that every block has


def test_blocks_have_the_fields_that_the_specification_requires():
    """The types of Anthropic's SDK leave these optional; its API reference does not."""
    events = [
        TurnStarted(),
        TextDelta("x"),
        CallStarted("a", "f"),
        CallArgs("a", "{}"),
        CallEnded("a"),
        TurnEnded("calls"),
    ]
    text, call = finished(events)["content"]
    assert (text["citations"], call["caller"]) == (None, DIRECT)
    starts = [event["content_block"] for event in written(events) if event["type"] == "content_block_start"]
    assert [(block.get("citations", 0), block.get("caller")) for block in starts] == [(None, None), (0, DIRECT)]


def test_a_parameter_named_as_the_wrapper_of_arguments_is_the_tools_own():
    schema = {"type": "object", "properties": {"__arguments": {"type": "string"}}}
    used = {"type": "tool_use", "id": "a", "name": "f", "input": {"__arguments": "{bad"}}
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [used]}],
    }
    for name, arguments in (("f", '{"__arguments": "{bad"}'), ("g", "{bad")):
        tools = [{"name": name, "input_schema": schema}]
        entry = messages.decode_request(json.dumps({**body, "tools": tools}).encode()).entries[1]
        assert isinstance(entry, CallEntry)
        assert entry.arguments == arguments
