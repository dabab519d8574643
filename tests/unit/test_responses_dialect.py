"""The Responses dialect, reading: what a client may ask, and what it is told when it asks wrongly."""

import json
from typing import Any

import msgspec
import pytest

from toolwire.core.errors import BadRequest
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Caller,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    OutputFormat,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
)
from toolwire.dialects import responses
from toolwire.dialects.responses import compaction, wire

Json = dict[str, Any]

USER = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function", "name": "f", "description": "D", "parameters": {"type": "object"}, "strict": True}


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def value(raw: msgspec.Raw | bytes) -> Any:
    return json.loads(bytes(raw))


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "Hi", **fields}).encode()


def decoded(**fields: Any) -> Request:
    return responses.decode_request(body(**fields))


# Items


def test_a_string_is_one_message_of_the_user():
    for text in ("Hi", "", 'a "b" \\ \n é 😀'):
        request = decoded(input=text)
        [entry] = request.entries
        assert (entry.role, entry.parts) == ("user", (TextPart(text),))
        part = {"type": "input_text", "text": text}
        assert value(entry.raw) == {"type": "message", "role": "user", "content": [part]}


ITEMS: list[tuple[Json, Any]] = [
    # Messages, with and without their type
    (USER, Message("user", (TextPart("Hi"),))),
    ({"type": "message", **USER}, Message("user", (TextPart("Hi"),))),
    ({"type": None, **USER}, Message("user", (TextPart("Hi"),))),
    ({"role": "system", "content": "S"}, Message("system", (TextPart("S"),))),
    ({"role": "developer", "content": "D"}, Message("developer", (TextPart("D"),))),
    (
        {"role": "assistant", "content": "A", "id": "msg_1", "phase": "commentary"},
        Message("assistant", (TextPart("A"),)),
    ),
    ({"role": "user", "content": None}, Message("user", ())),
    ({"role": "user", "content": []}, Message("user", ())),
    # Calls
    (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"},
        CallEntry("c", "f", '{"a": 1}'),
    ),
    (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
        CallEntry("c", "f", "{}", namespace="n"),
    ),
    (
        {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "*** raw"},
        CallEntry("c", "p", "*** raw", "custom"),
    ),
    # Results, in all spellings
    ({"type": "function_call_output", "call_id": "c", "output": "ok"}, ResultEntry("c", (TextPart("ok"),))),
    ({"type": "function_call_output", "call_id": "c", "output": ""}, ResultEntry("c", (TextPart(""),))),
    ({"type": "function_call_output", "call_id": "c", "output": []}, ResultEntry("c", ())),
    (
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        ResultEntry("c", (TextPart("a"),)),
    ),
    (
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "u"}]},
        ResultEntry("c", (ImagePart("u"),)),
    ),
    ({"type": "function_call_output", "call_id": "c", "output": {"a": 1}}, ResultEntry("c", (TextPart('{"a": 1}'),))),
    ({"type": "function_call_output", "call_id": "c", "output": 3}, ResultEntry("c", (TextPart("3"),))),
    ({"type": "function_call_output", "call_id": "c", "output": ["a"]}, ResultEntry("c", (TextPart('["a"]'),))),
    (
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
        ResultEntry("c", (TextPart("ok"),), "custom"),
    ),
    # Reasoning
    (
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "why"}]},
        ReasoningEntry("rs_1", ("why",)),
    ),
    (
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "raw"}],
            "encrypted_content": "E",
        },
        ReasoningEntry("", (), ("raw",), "E", "responses"),
    ),
    ({"type": "reasoning", "id": "rs_1", "summary": None, "content": None}, ReasoningEntry("rs_1")),
    # Whatever else there is
    ({"type": "web_search_call", "id": "ws", "action": {"type": "search"}}, OtherEntry("web_search_call", raw(None))),
    ({"type": "compaction", "encrypted_content": "of another origin"}, OtherEntry("compaction", raw(None))),
    ({"type": "compaction_trigger"}, OtherEntry("compaction_trigger", raw(None))),
    ({"type": "brand_new", "role": "user", "content": "x"}, OtherEntry("brand_new", raw(None))),
    ({"type": "brand_new", "name": {"a": 1}, "content": 3}, OtherEntry("brand_new", raw(None))),
    # A server's own tool output, which answers no call
    ({"type": "function_call_output", "name": "f", "output": "x"}, OtherEntry("function_call_output", raw(None))),
]


@pytest.mark.parametrize(("item", "entry"), ITEMS, ids=lambda each: each.get("type") if type(each) is dict else "")
def test_every_item_becomes_an_entry_that_keeps_its_raw_form(item: Json, entry: Any):
    request = decoded(input=[USER, item])
    # An output that is neither a text nor parts is sent on as its own text.
    as_text = item.get("type") == "function_call_output" and not _is_text_or_parts(item["output"])
    assert request.entries[1] == msgspec.structs.replace(entry, raw=None if as_text else raw(item))


@pytest.mark.parametrize(
    ("given", "arguments", "sent"),
    [({"arguments": {"b": 1.0}}, '{"b":1.0}', '{"b":1.0}'), ({}, "", "{}"), ({"arguments": None}, "", "{}")],
)
def test_arguments_that_are_no_string_are_sent_on_as_one(given: Json, arguments: str, sent: str):
    item = {"type": "function_call", "call_id": "c", "name": "f", "id": "fc_1", "status": "completed", **given}
    entry = decoded(input=[USER, item]).entries[1]
    assert msgspec.structs.replace(entry, raw=None) == CallEntry("c", "f", arguments)
    assert value(entry.raw) == {**item, "arguments": sent}


def _is_text_or_parts(output: Any) -> bool:
    return isinstance(output, str) or (isinstance(output, list) and all(isinstance(part, dict) for part in output))


@pytest.mark.parametrize(
    "item",
    [
        {"type": "tool_output", "call_id": "c", "output": "ok"},
        {"type": "tool_output", "tool_call_id": "c", "output": "ok"},
        {"type": "function_call_output", "tool_call_id": "c", "output": "ok"},
    ],
)
def test_a_result_in_a_spelling_of_our_own_is_not_kept_as_it_came(item: Json):
    assert decoded(input=[item]).entries == (ResultEntry("c", (TextPart("ok"),)),)


PARTS: list[tuple[Json, Any]] = [
    ({"type": "input_text", "text": "a"}, TextPart("a")),
    ({"type": "output_text", "text": "a", "annotations": []}, TextPart("a")),
    ({"type": "text", "text": "a"}, TextPart("a")),
    ({"type": "summary_text", "text": "a"}, TextPart("a")),
    ({"type": "reasoning_text", "text": "a"}, TextPart("a")),
    ({"type": "input_text"}, TextPart("")),
    ({"type": "refusal", "refusal": "no"}, RefusalPart("no")),
    ({"type": "input_image", "image_url": "https://x/i", "detail": "low"}, ImagePart("https://x/i", "low")),
    ({"type": "input_image", "file_id": "f1", "image_url": None}, ImagePart("", "", "f1")),
    ({"type": "input_file", "file_data": "data:x", "filename": "n"}, FilePart("data:x", name="n")),
    ({"type": "input_file", "file_id": "f1"}, FilePart(id="f1")),
    ({"type": "input_file", "file_url": "https://x/f"}, FilePart(url="https://x/f")),
    ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, AudioPart("AA", "wav")),
    ({"type": "input_video", "x": 1}, OtherPart("input_video")),
    ({"type": "input_audio", "novel": 1}, OtherPart("input_audio")),
]


@pytest.mark.parametrize(("part", "expected"), PARTS, ids=[part["type"] for part, _ in PARTS])
def test_every_part_is_read(part: Json, expected: Any):
    [entry] = decoded(input=[{"role": "user", "content": [part]}]).entries
    assert entry.parts == (expected,)


def test_a_compaction_of_our_own_becomes_a_message():
    item = value(compaction.encode_item("cmp_1", "They want é."))
    [entry] = decoded(input=[item]).entries
    assert (entry.role, entry.raw) == ("user", None)
    assert entry.parts[0].text.endswith("They want é.")


# Tools


def test_tools_of_every_type_are_read():
    inner = [{"type": "function", "name": "g"}, {"type": "custom", "name": "q", "format": {"type": "text"}}]
    tools: list[Json] = [
        FUNCTION,
        {"type": "function", "name": "h", "description": None, "parameters": None, "strict": None},
        {"type": "custom", "name": "p", "description": "P", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "namespace", "name": "n", "description": "N", "tools": inner},
        {"type": "web_search", "name": "ws", "x": 1},
        {"type": "mcp", "server_label": "s", "tools": ["a"]},
    ]
    request = decoded(tools=tools)
    assert request.tools == (
        Tool("f", "D", raw({"type": "object"}), strict=True),
        Tool("h"),
        Tool("p", "P", kind="custom", format=raw({"type": "grammar", "syntax": "lark"})),
        Tool("g", namespace="n"),
        Tool("q", kind="custom", format=raw({"type": "text"}), namespace="n"),
    )
    assert request.hosted_tools == (HostedTool("web_search", raw(tools[4])), HostedTool("mcp", raw(tools[5])))
    assert request.fields["tools"] == raw(tools)


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_no_tools(tools: Any):
    assert (decoded(tools=tools).tools, decoded(tools=tools).hosted_tools) == ((), ())


CHOICES: list[tuple[Any, ToolChoice | None]] = [
    (None, None),
    ("auto", ToolChoice()),
    ("none", ToolChoice("none")),
    ("required", ToolChoice("required")),
    ({"type": "function", "name": "f"}, ToolChoice("required", "f")),
    ({"type": "custom", "name": "p"}, ToolChoice("required", "p", "custom")),
    (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
        ToolChoice("required", allowed=("f",), limited=True),
    ),
    ({"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}, ToolChoice(allowed=("f",), limited=True)),
    ({"type": "allowed_tools", "tools": []}, ToolChoice(limited=True)),
    (
        {"type": "allowed_tools", "tools": [{"type": "custom", "name": "p"}, {"type": "web_search"}]},
        ToolChoice(allowed=("p",), limited=True),
    ),
    ({"type": "web_search"}, ToolChoice("required", hosted=raw({"type": "web_search"}))),
    ({"type": "mcp", "server_label": "s"}, ToolChoice("required", hosted=raw({"type": "mcp", "server_label": "s"}))),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES, ids=[json.dumps(choice)[:40] for choice, _ in CHOICES])
def test_every_form_of_tool_choice_is_read(choice: Any, expected: ToolChoice | None):
    tools = [FUNCTION, {"type": "custom", "name": "p"}, {"type": "web_search"}]
    assert decoded(tools=tools, tool_choice=choice).tool_choice == expected


def test_only_allowed_tools_count_as_tools_to_call():
    allowed = {"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}
    request = decoded(tools=[FUNCTION, {"type": "function", "name": "g"}], tool_choice=allowed)
    assert request.tool_names == ("g",)
    assert [tool.name for tool in request.tools] == ["f", "g"]


# The rest of a body

FORMATS: list[tuple[Any, OutputFormat | None]] = [
    (None, None),
    ({"type": "text"}, None),
    ({"type": "json_object"}, OutputFormat()),
    (
        {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True, "description": "D"},
        OutputFormat(raw({"a": 1}), "n", "D", strict=True),
    ),
    ({"type": "json_schema", "schema": {}}, OutputFormat(raw({}), "answer")),
]


@pytest.mark.parametrize(("format", "expected"), FORMATS)
def test_every_text_format_is_read(format: Any, expected: OutputFormat | None):
    assert decoded(text={"format": format}).output_format == expected


def test_sampling_caller_and_the_rest_have_their_places():
    request = decoded(
        stream=True, instructions="Be brief.", temperature=0.5, top_p=1, max_output_tokens=9,
        text={"verbosity": "low"}, reasoning={"effort": "high", "summary": "auto"}, service_tier="flex", user="u",
        safety_identifier="s", prompt_cache_key="k", metadata={"a": "b"}, parallel_tool_calls=False,
    )  # fmt: skip
    assert request.sampling == Sampling(0.5, 1, 9, (), "high", "low", "flex")
    assert request.caller == Caller("u", "s", "k", raw({"a": "b"}))
    assert (request.model, request.dialect, request.instructions) == ("m", "responses", "Be brief.")
    assert (request.stream, request.parallel_calls) == (True, False)


def test_null_means_left_out():
    nothing = {name: None for name in wire.Body.__struct_fields__ if name not in ("model", "input")}
    request, bare = decoded(**nothing), decoded()
    for name in ("sampling", "tools", "tool_choice", "output_format", "parallel_calls", "stream", "instructions"):
        assert getattr(request, name) == getattr(bare, name)
    assert request.extra == {}


def test_fields_without_a_place_are_extra_unless_they_ask_for_nothing():
    request = decoded(
        brand_new=1, include=["file_search_call.results"], truncation="auto", max_tool_calls=2, top_logprobs=3,
    )  # fmt: skip
    assert set(request.extra) == {"brand_new", "include", "truncation", "max_tool_calls", "top_logprobs"}
    default = decoded(include=["reasoning.encrypted_content"], truncation="disabled", top_logprobs=0, brand_new=None)
    assert default.extra == {}


def test_all_fields_are_kept_but_those_that_are_no_property_of_a_turn():
    given = {"brand_new": {"a": [1]}, "tool_choice": "auto", "metadata": {"a": "b"}}
    request = decoded(stream=True, stream_options={}, generate=True, type="response.create", stream_id="1", **given)
    assert {name: value(each) for name, each in request.fields.items()} == {
        "model": "m",
        "store": False,
        **given,
    }
    assert value(responses.read_request(body()).decode(store=True).fields["store"]) is True


# What came before


def test_earlier_items_come_first_and_errors_count_the_clients_own():
    earlier = [raw(USER), raw({"role": "assistant", "content": "Yes?"})]
    request = responses.read_request(body(input="Go on.")).decode(earlier)
    assert [entry.parts[0].text for entry in request.entries] == ["Hi", "Yes?", "Go on."]
    assert request.continues
    with pytest.raises(BadRequest) as error:
        responses.read_request(body(input=[USER, {"role": "robot"}])).decode(earlier)
    assert error.value.param == "input[1].role"
    assert not decoded().continues


def test_a_conversation_is_named_by_its_id_in_either_form():
    for given in ("conv_1", {"id": "conv_1"}):
        assert responses.read_request(body(conversation=given)).conversation == "conv_1"
    assert responses.read_request(body()).conversation == ""


def test_input_may_be_missing_where_there_is_something_to_continue():
    for fields in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"generate": False}):
        assert responses.read_request(json.dumps({"model": "m", **fields}).encode()).items == ()
    assert responses.read_request(b'{"model":"m"}', needs_input=False).items == ()
    assert responses.read_request(b'{"model":"m","input":null}', needs_input=False).items == ()


# Beside requests


def test_tool_outputs_are_read():
    read = responses.read_tool_outputs(b'{"tool_outputs":[{"tool_call_id":"a","output":{"x":1}}],"stream":true}')
    assert (read.stream, read.tool_outputs[0].tool_call_id, bytes(read.tool_outputs[0].output)) == (
        True,
        "a",
        b'{"x":1}',
    )


def test_an_id_is_made_of_a_seed():
    assert responses.new_id("abc") == "resp_abc"
