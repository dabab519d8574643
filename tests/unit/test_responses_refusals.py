"""The Responses dialect, refusing: whatever is wrong with a request is named by its path."""

import json
from typing import Any

import pytest

from tests.unit.test_responses_dialect import FUNCTION, USER, Json, decoded, raw
from toolwire.core.errors import BadRequest
from toolwire.dialects import responses


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        decoded(**fields)
    return error.value


PART = {"type": "input_text", "text": "x"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
ALLOWED = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}


def in_input(item: Any) -> Json:
    return {"input": [USER, USER, item]}


def in_content(*parts: Any) -> Json:
    return in_input({"role": "user", "content": list(parts)})


WRONG: list[tuple[Json, str]] = [
    ({"model": ""}, "model"),
    ({"model": " "}, "model"),
    ({"model": None}, "model"),
    ({"model": 3}, "model"),
    ({"input": None}, "input"),
    ({"input": 3}, "input"),
    ({"input": {"role": "user"}}, "input"),
    # Items
    (in_input("x"), "input[2]"),
    (in_input(None), "input[2]"),
    (in_input({}), "input[2].type"),
    (in_input({"type": 3}), "input[2].type"),
    (in_input({"content": "x"}), "input[2].type"),
    (in_input({"type": "message", "content": "x"}), "input[2].role"),
    (in_input({"role": "robot", "content": "x"}), "input[2].role"),
    (in_input({"role": 3, "content": "x"}), "input[2].role"),
    (in_input({"role": "user", "content": 3}), "input[2].content"),
    (in_content(3), "input[2].content[0]"),
    (in_content(PART, {"text": "x"}), "input[2].content[1].type"),
    (in_content(PART, {"type": 3}), "input[2].content[1].type"),
    (in_content({"type": "input_text", "text": 3}), "input[2].content[0].text"),
    (in_content({"type": "input_image", "image_url": {"url": "x"}}), "input[2].content[0].image_url"),
    (in_content({"type": "input_audio", "input_audio": {"data": "A"}}), "input[2].content[0].input_audio.format"),
    (
        in_content({"type": "input_audio", "input_audio": {"data": 1, "format": "wav"}}),
        "input[2].content[0].input_audio.data",
    ),
    (in_input({**CALL, "call_id": None}), "input[2].call_id"),
    (in_input({**CALL, "call_id": ""}), "input[2].call_id"),
    (in_input({**CALL, "call_id": 3}), "input[2].call_id"),
    (in_input({**CALL, "name": ""}), "input[2].name"),
    (in_input({"type": "custom_tool_call", "call_id": "c", "input": "x"}), "input[2].name"),
    (in_input({**CALL, "namespace": 3}), "input[2].namespace"),
    (in_input({**OUTPUT, "call_id": None}), "input[2].call_id"),
    (in_input({"type": "function_call_output", "call_id": "c"}), "input[2].output"),
    (in_input({"type": "custom_tool_call_output", "call_id": "c"}), "input[2].output"),
    (in_input({**OUTPUT, "output": [PART, {"text": "x"}]}), "input[2].output[1].type"),
    (in_input({"type": "reasoning", "summary": "why"}), "input[2].summary"),
    (in_input({"type": "reasoning", "summary": [3]}), "input[2].summary[0]"),
    (in_input({"type": "reasoning", "encrypted_content": 3}), "input[2].encrypted_content"),
    (in_input({"type": "compaction", "encrypted_content": "toolwire.1.?"}), "input[2].encrypted_content"),
    (in_input({"type": "item_reference", "id": "msg_9"}), "input[2]"),
    # Tools
    ({"tools": {}}, "tools"),
    ({"tools": "f"}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [FUNCTION, {}]}, "tools[1].type"),
    ({"tools": [{"type": None}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": 3}]}, "tools[0].name"),
    ({"tools": [{**FUNCTION, "strict": "yes"}]}, "tools[0].strict"),
    ({"tools": [{"type": "custom", "name": ""}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
    ({"tools": [FUNCTION, {"type": "namespace", "name": "n", "tools": [FUNCTION, {}]}]}, "tools[1].tools[1].type"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": 3}]}, "tools[0].tools"),
    # Tool choice
    ({"tools": [FUNCTION], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": 3}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {}}, "tool_choice.type"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "zz"}}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {**ALLOWED, "mode": "sometimes"}}, "tool_choice.mode"),
    ({"tools": [FUNCTION], "tool_choice": {**ALLOWED, "mode": "none"}}, "tool_choice.mode"),
    ({"tools": [FUNCTION], "tool_choice": {**ALLOWED, "tools": 3}}, "tool_choice.tools"),
    ({"tools": [FUNCTION], "tool_choice": {**ALLOWED, "tools": [{"type": "function", "name": "zz"}]}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": ALLOWED}, "tool_choice"),
    # Everything else
    ({"instructions": 3}, "instructions"),
    ({"stream": "yes"}, "stream"),
    ({"store": 1}, "store"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": []}, "top_p"),
    ({"max_output_tokens": "9"}, "max_output_tokens"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"include": "x"}, "include"),
    ({"include": [3]}, "include[0]"),
    ({"metadata": "x"}, "metadata"),
    ({"text": "x"}, "text"),
    ({"text": {"format": "x"}}, "text.format"),
    ({"text": {"format": {}}}, "text.format.type"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"verbosity": 3}}, "text.verbosity"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"previous_response_id": 3}, "previous_response_id"),
    ({"previous_response_id": "r", "conversation": "c"}, "previous_response_id"),
    ({"conversation": {}}, "conversation.id"),
    ({"conversation": 3}, "conversation"),
    ({"background": True, "store": False}, "background"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[json.dumps(fields)[:70] for fields, _ in WRONG])
def test_what_is_wrong_is_named_by_its_path(fields: Json, param: str):
    error = refused(**fields)
    assert error.param == param
    assert error.status == (404 if "item_reference" in str(fields) else 400)
    assert error.message


@pytest.mark.parametrize(
    ("choice", "demand"),
    [
        ("required", "asks for a call"),
        ({**ALLOWED, "mode": "required"}, "asks for a call"),
        ({**ALLOWED, "mode": "auto"}, "limits the tools"),
        (ALLOWED, "limits the tools"),
    ],
)
def test_a_tool_choice_without_tools_is_told_what_it_does(choice: Any, demand: str):
    assert refused(tool_choice=choice).message == f"tool_choice {demand}, but no tools are declared."


def test_a_wrong_value_in_the_metadata_is_found():
    assert (refused(metadata={"a": 1}).param or "").startswith("metadata")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b'"x"', b"\xff", b'{"model":"\xff"}', b"[" * 100_000])
def test_a_body_that_is_no_request_says_so(data: bytes):
    with pytest.raises(BadRequest) as error:
        responses.decode_request(data)
    assert error.value.status == 400


def test_tools_that_were_wrong_once_are_wrong_again():
    for _ in range(2):
        assert refused(tools=[{"type": "function"}]).param == "tools[0].name"


def test_items_that_nobody_decodes_yet_are_checked():
    responses.check_items([raw(USER)], "items")
    with pytest.raises(BadRequest) as error:
        responses.check_items([raw(USER), raw({"role": "robot"})], "items")
    assert error.value.param == "items[1].role"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"{}", "tool_outputs"),
        (b'{"tool_outputs":{}}', "tool_outputs"),
        (b'{"tool_outputs":[3]}', "tool_outputs[0]"),
        (b'{"tool_outputs":[{"tool_call_id":3}]}', "tool_outputs[0].tool_call_id"),
        (b"{", None),
        (b"\xff", None),
    ],
)
def test_wrong_tool_outputs_are_named_by_their_path(data: bytes, param: str | None):
    with pytest.raises(BadRequest) as error:
        responses.read_tool_outputs(data)
    assert error.value.param == param
