"""The chat dialect: what clients may ask, and what they get."""

import json

import msgspec
import pytest

from tests.support.fold import fold_chat
from toolwire.core.collect import collect
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    MessageEnded,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    FilePart,
    ImagePart,
    Message,
    OtherPart,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
)
from toolwire.dialects import chat

USER = {"role": "user", "content": "hi"}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "D", "parameters": {"type": "object"}, "strict": None},
}


def decoded(messages=(USER,), **fields) -> Request:
    return chat.decode_request(json.dumps({"model": "m", "messages": list(messages), **fields}).encode())


def refused(**fields) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        chat.decode_request(json.dumps({"model": "m", "messages": [USER], **fields}).encode())
    return caught.value


def bare(entries):
    """Entries without the messages they came in."""
    return tuple(msgspec.structs.replace(entry, message=-1) for entry in entries)


# Decoding


def test_messages_become_entries():
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": {"y": 2.50}}},
        {"id": "c", "type": "custom", "custom": {"name": "p", "input": "raw"}},
        {"id": "d", "type": "function", "function": {"name": "f"}, "arguments": "{}"},
    ]
    messages = [
        {"role": "system", "content": "S"},
        {"role": "developer", "content": [{"type": "text", "text": "D"}]},
        {"role": "user", "name": "Ann", "content": [
            {"type": "text", "text": "U"}, {"type": "image_url", "image_url": {"url": "https://x/i", "detail": "low"}},
            {"type": "image_url", "image_url": "https://x/j"}, {"type": "file", "file": {"file_id": "f1", "filename": "n"}},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, "bare", {"type": "video"},
        ]},
        {"role": "assistant", "content": "T", "refusal": "R", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "two"}]},
        {"role": "tool", "tool_call_id": "c", "content": "three"},
        {"role": "tool", "content": "four"},
    ]  # fmt: skip
    request = decoded(messages)
    assert bare(request.entries) == (
        Message("system", (TextPart("S"),)),
        Message("developer", (TextPart("D"),)),
        Message("user", (TextPart("U"), ImagePart("https://x/i", "low"), ImagePart("https://x/j"), FilePart(id="f1", name="n"),
                         AudioPart("AA", "wav"), TextPart("bare"), OtherPart("video")), "Ann"),
        Message("assistant", (TextPart("T"), RefusalPart("R"))),
        CallEntry("a", "f", '{"x": 1}'),
        CallEntry("b", "f", '{"y":2.5}'),
        CallEntry("c", "p", "raw", "custom"),
        CallEntry("d", "f", "{}"),
        ResultEntry("a", ()),
        ResultEntry("b", (TextPart("two"),)),
        ResultEntry("c", (TextPart("three"),), "custom"),
        ResultEntry("d", (TextPart("four"),)),
    )  # fmt: skip
    assert request.notes == ()


@pytest.mark.parametrize("content", [None, "", []])
def test_an_assistant_message_without_text_is_only_its_calls(content):
    message = {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}],
    }
    assert bare(decoded([USER, message]).entries[1:]) == (CallEntry("a", "f", ""),)


def test_legacy_functions_become_tools_and_are_remembered():
    messages = [USER, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "done"}]  # fmt: skip
    request = decoded(messages, functions=[{"name": "f"}], function_call={"name": "f"})
    assert bare(request.entries[1:]) == (
        CallEntry("call_function_1", "f", "{}"),
        ResultEntry("call_function_1", (TextPart("done"),)),
    )
    assert (request.legacy_functions, request.parallel_calls, request.forced_tool) == (True, False, "f")


def test_tools_are_taken_nested_flat_custom_and_hosted():
    tools = [TOOL, {"type": "function", "name": "g"}, {"type": "custom", "custom": {"name": "p", "format": {"type": "text"}}},
             {"type": "custom", "name": "q"}, {"type": "web_search", "x": 1}]  # fmt: skip
    request = decoded(tools=tools)
    assert [(tool.name, tool.kind) for tool in request.tools] == [
        ("f", "function"),
        ("g", "function"),
        ("p", "custom"),
        ("q", "custom"),
    ]
    assert bytes(request.tools[0].parameters) == b'{"type": "object"}'
    assert bytes(request.hosted_tools[0].raw) == b'{"type": "web_search", "x": 1}'


def test_sampling_and_caller_are_read():
    request = decoded(
        stream=True, stream_options={"include_usage": True}, temperature=0.5, top_p=1, max_tokens=5, max_completion_tokens=6,
        stop="X", reasoning_effort="low", verbosity="high", service_tier="flex", user="u", safety_identifier="s",
        prompt_cache_key="k", metadata={"a": "b"}, parallel_tool_calls=False, n=1, seed=7, logit_bias={}, store=None, vendor=[1],
    )  # fmt: skip
    assert (request.stream, request.include_usage, request.parallel_calls) == (True, True, False)
    assert (request.sampling.max_tokens, request.sampling.stop) == (6, ("X",))
    assert bytes(request.caller.metadata) == b'{"a":"b"}'
    assert set(request.extra) == {"seed", "vendor"}


@pytest.mark.parametrize(
    ("given", "mode", "name", "allowed"),
    [
        ("auto", "auto", "", ()),
        ("none", "none", "", ()),
        ({"type": "function", "function": {"name": "f"}}, "required", "f", ()),
        ({"type": "function", "name": "f"}, "required", "f", ()),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}},
         "required", "", ("f",)),
    ],
)  # fmt: skip
def test_every_form_of_tool_choice_is_read(given, mode, name, allowed):
    choice = decoded(tools=[TOOL], tool_choice=given).tool_choice
    assert (choice.mode, choice.name, choice.allowed) == (mode, name, allowed)


def test_a_hosted_tool_choice_is_carried_as_it_came():
    choice = decoded(tools=[{"type": "mcp"}], tool_choice={"type": "mcp", "server_label": "s"}).tool_choice
    assert bytes(choice.hosted) == b'{"type": "mcp", "server_label": "s"}'


def test_marks_for_the_cache_are_kept_at_their_texts():
    mark = {"type": "ephemeral"}
    messages = [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": mark}]},
                {"role": "assistant", "content": "y", "cache_control": mark}]  # fmt: skip
    request = decoded(messages)
    assert [part.cache for entry in request.entries for part in entry.parts] == [
        msgspec.Raw(b'{"type": "ephemeral"}')
    ] * 2
    assert request.marks_cache
    assert not decoded().marks_cache


def test_calls_without_ids_get_some_and_are_answered_in_order():
    calls = [{"function": {"name": "f", "arguments": "{}"}}, {"id": "", "function": {"name": "g", "arguments": "{}"}}]
    answers = [{"role": "tool", "content": "1"}, {"role": "tool", "tool_call_id": "", "content": "2"}]
    one, other, first, second = decoded([{"role": "assistant", "tool_calls": calls}, *answers]).entries
    assert (first.call_id, second.call_id) == (one.id, other.id)
    assert one.id != other.id


def test_an_empty_list_of_tools_takes_a_harmless_choice_with_it():
    assert decoded(tools=[], tool_choice="auto").tool_choice is None


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (None, None), ({"type": "text"}, None), ({"type": "json_object"}, (None, "")),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}, "strict": True}}, (b'{"a": 1}', "n")),
    ],
)  # fmt: skip
def test_every_response_format_is_read(format, expected):
    read = decoded(response_format=format).output_format
    assert expected == (read and (bytes(read.schema) if read.schema else None, read.name))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, "messages[1].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": ""}}]}]}, "messages[0].tool_calls[0].function.name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": ""}}]}]}, "messages[0].tool_calls[0].custom.name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"input": "x"}}]}]}, "messages[0].tool_calls[0].custom.name"),
        ({"messages": [{"role": "assistant", "function_call": {"arguments": "{}"}}]}, "messages[0].function_call.name"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "", "arguments": "{}"}}]}, "messages[0].function_call.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"n": 0}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": 3}}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "zz"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}}, "tool_choice.allowed_tools.mode"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field(fields, param):
    assert refused(**fields).param == param


def test_a_body_that_is_not_json_says_so():
    for body in (b"{", b"\xff", b"[]", b""):
        with pytest.raises(BadRequest):
            chat.decode_request(body)


# Encoding

EVENTS = [
    TurnStarted("r", "m"), ReasoningDelta("why"), ReasoningDelta("then", part=1), TextDelta("Hi \u00e9"), CallStarted("a", "f"),
    CallArgs("a", '{"x":'), CallArgs("a", "1}"), CallEnded("a"), CallStarted("b", "p", "custom"), CallArgs("b", "raw"), CallEnded("b"),
    RefusalDelta("no"), Usage(10, 5, 4, 0, 3), TurnEnded("calls"),
]  # fmt: skip


def streamed(events, request: Request) -> dict:
    encoder = chat.StreamEncoder(request, "chatcmpl-1", 7, TurnStats())
    wire = b"".join(piece for event in events for piece in encoder.feed(event)).decode()
    frames = []
    for line in wire.split("\n"):
        if line.startswith("data: "):
            frames.append(("data", line[6:] if line == "data: [DONE]" else json.loads(line[6:])))
        elif line:
            assert line.startswith(": {")
    assert wire.endswith("\ndata: [DONE]\n\n")
    return fold_chat(frames)


def finished(events, request: Request) -> dict:
    return json.loads(chat.encode_turn(collect(events), request, "chatcmpl-1", 7))


def test_the_stream_adds_up_to_the_plain_answer():
    request = Request("m", (), include_usage=True)
    folded, whole = streamed(EVENTS, request), finished(EVENTS, request)
    message = whole["choices"][0]["message"]
    assert folded["message"] == message
    assert folded["finish"] == whole["choices"][0]["finish_reason"] == "tool_calls"
    assert folded["usage"] == whole["usage"]
    assert message["reasoning_content"] == "why\n\nthen"
    assert message["tool_calls"][1] == {"id": "b", "type": "custom", "custom": {"name": "p", "input": "raw"}}


def test_messages_of_a_turn_have_a_blank_line_between_them():
    call = [CallStarted("c", "f"), CallArgs("c", "{}"), CallEnded("c")]
    for between in ([MessageEnded("")], [*call, MessageEnded("")], [MessageEnded(""), MessageEnded(""), *call]):
        events = [TurnStarted(), MessageEnded(""), TextDelta("Let me "), TextDelta("look."), *between]
        events += [TextDelta("It is "), TextDelta("42."), MessageEnded(""), TurnEnded()]
        told = streamed(events, decoded())["message"], finished(events, decoded())["choices"][0]["message"]
        assert [message["content"] for message in told] == ["Let me look.\n\nIt is 42."] * 2


def test_usage_is_sent_only_where_it_was_asked_for():
    assert streamed(EVENTS, Request("m", ()))["usage"] is None


def test_usage_that_is_not_known_is_left_out():
    events = [TurnStarted(), TextDelta("x"), TurnEnded()]
    assert streamed(events, Request("m", (), include_usage=True))["usage"] is None
    assert "usage" not in finished(events, Request("m", ()))


def test_a_client_of_functions_gets_a_function_call():
    request = Request("m", (), legacy_functions=True)
    events = [TurnStarted(), CallStarted("a", "f"), CallArgs("a", "{}"), CallEnded("a"), TurnEnded("calls")]
    folded, whole = streamed(events, request), finished(events, request)["choices"][0]
    assert folded["message"]["function_call"] == whole["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert folded["finish"] == whole["finish_reason"] == "function_call"
    assert "tool_calls" not in whole["message"]


@pytest.mark.parametrize(("reason", "finish"), [("stop", "stop"), ("length", "length"), ("filter", "content_filter")])
def test_every_reason_has_its_finish(reason, finish):
    events = [TurnStarted(), TextDelta("x"), TurnEnded(reason)]
    assert streamed(events, Request("m", ()))["finish"] == finish


def test_an_empty_turn_has_empty_content():
    assert finished([TurnStarted(), TurnEnded()], Request("m", ()))["choices"][0]["message"]["content"] == ""


def test_a_failure_in_the_stream_is_an_error_frame_and_no_finish():
    folded = streamed([TurnStarted(), TextDelta("x"), TurnFailed(Failure(502, "stream_cut", "gone"))], Request("m", ()))
    assert folded["error"] == {"message": "gone", "type": "server_error", "param": None, "code": "stream_cut"}
    assert folded["finish"] is None


@pytest.mark.parametrize(
    ("status", "type"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"), (404, "invalid_request_error"),
     (429, "rate_limit_error"), (500, "server_error"), (504, "timeout_error")],
)  # fmt: skip
def test_an_error_has_the_type_of_its_status(status, type):
    assert json.loads(chat.encode_error(Failure(status, "", "m")))["error"]["type"] == type
    assert json.loads(chat.encode_error(Failure(status, "", "m", "own")))["error"]["type"] == "own"
