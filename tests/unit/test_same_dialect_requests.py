"""A request between a client and a server of one dialect: what must change does, and nothing beside it."""

import json
from copy import deepcopy
from typing import Any

import pytest

from toolwire.assembly import ToolRules, apply_rules
from toolwire.backends import chat as chat_backend
from toolwire.backends import messages as messages_backend
from toolwire.backends import responses as responses_backend
from toolwire.backends.responses import CHATGPT
from toolwire.core.backend import Post
from toolwire.core.request import Request
from toolwire.dialects import chat, messages, responses

Json = dict[str, Any]


def sent_to_chat(history: list[Json], **settings: Any) -> list[Json]:
    return chat_body({"messages": history}, **settings)["messages"]


def chat_body(body: Json, **settings: Any) -> Json:
    request = ruled(chat.decode_request(json.dumps({"model": "m", **body}).encode()))
    return json.loads(chat_backend.Conversation(request, "s", chat_backend.Profile(**settings)).start().body)


def sent_to_messages(history: list[Json], **settings: Any) -> list[Json]:
    body = {"model": "m", "max_tokens": 9, "messages": history}
    request = ruled(messages.decode_request(json.dumps(body).encode()))
    profile = messages_backend.Profile(**settings)
    return json.loads(messages_backend.Conversation(request, "s", profile).start().body)["messages"]


def sent_to_responses(items: list[Json], profile: responses_backend.Profile = responses_backend.OPENAI) -> list[Json]:
    request = ruled(responses.decode_request(json.dumps({"model": "m", "input": items}).encode()))
    start = responses_backend.Conversation(request, "s", profile).start()
    assert isinstance(start, Post)
    return json.loads(start.body)["input"]


def ruled(request: Request) -> Request:
    return apply_rules(request, ToolRules())


def changed(history: list[Json], place: int, **fields: Any) -> list[Json]:
    """The history with these fields of one entry changed."""
    return [{**deepcopy(each), **fields} if index == place else each for index, each in enumerate(history)]


# Chat

CALLED: Json = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": 1}', "x_f": 1},
    "x_call": 2,
}
HISTORY: list[Json] = [
    {"role": "developer", "content": [{"type": "text", "text": "D", "x_part": 1}], "x_message": 1},
    {"role": "user", "content": [{"type": "text", "text": "U", "cache_control": {"type": "ephemeral"}}, {"type": "x_video", "url": "v"}], "name": "Ann", "x_message": {"a": None}},
    {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "", "tool_calls": [CALLED], "reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "index": 0}], "annotations": [], "x_message": 3},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "ok"}], "name": "f", "x_message": 4},
    {"role": "assistant", "content": "Done.", "reasoning_content": "", "x_message": 5},
    {"role": "user", "content": "Thanks."},
]  # fmt: skip
KNOWN = {"developer": True}


def test_a_chat_history_goes_on_as_it_was_written():
    assert sent_to_chat(HISTORY, **KNOWN) == HISTORY


def test_a_role_changes_and_nothing_beside_it():
    assert sent_to_chat(HISTORY) == changed(HISTORY, 0, role="system")


def test_an_empty_result_changes_and_nothing_beside_it():
    history = changed(HISTORY, 5, content="")
    assert sent_to_chat(history, empty_result="(nothing)", **KNOWN) == changed(history, 5, content="(nothing)")


@pytest.mark.parametrize("arguments", [{"a": 1}, "beside", "", None])
def test_odd_arguments_change_and_nothing_beside_them(arguments: Any):
    odd: Json = deepcopy(CALLED)
    if arguments == "beside":
        odd["arguments"] = odd["function"].pop("arguments")
        expected = '{"a": 1}'
    else:
        odd["function"]["arguments"] = arguments
        expected = '{"a":1}' if arguments else "{}"
    right = deepcopy(CALLED)
    right["function"]["arguments"] = expected
    history = changed(HISTORY, 4, tool_calls=[odd])
    assert sent_to_chat(history, **KNOWN) == changed(HISTORY, 4, tool_calls=[right])


def test_ids_that_must_fit_change_and_nothing_beside_them():
    got = sent_to_chat(HISTORY, id_exact=9, **KNOWN)
    id = got[5]["tool_call_id"]
    assert len(id) == 9
    assert got == changed(changed(HISTORY, 4, tool_calls=[{**CALLED, "id": id}]), 5, tool_call_id=id)


def test_a_result_that_is_missing_is_put_in_and_nothing_beside_it():
    history = [*HISTORY[:5], *HISTORY[6:]]
    got = sent_to_chat(history, **KNOWN)
    assert got[5]["tool_call_id"] == "call_1"
    assert [*got[:5], *got[6:]] == history


def test_reasoning_that_is_not_wanted_is_left_out_and_nothing_beside_it():
    got = sent_to_chat(HISTORY, reasoning="drop", **KNOWN)
    bare = [{name: each[name] for name in each if not name.startswith("reasoning")} for each in HISTORY]
    assert got == bare


def test_reasoning_goes_into_the_field_that_the_operator_names():
    got = sent_to_chat(HISTORY, reasoning="reasoning_content", **KNOWN)
    assert got[4]["reasoning_content"] == "Hm."
    assert "reasoning" not in got[4]
    assert got[4]["reasoning_details"] == HISTORY[4]["reasoning_details"]


def test_no_content_beside_calls_changes_only_there():
    got = sent_to_chat(HISTORY, content_beside_calls="omit", **KNOWN)
    assert got[4] == {name: HISTORY[4][name] for name in HISTORY[4] if name != "content"}
    assert [*got[:4], *got[5:]] == [*HISTORY[:4], *HISTORY[5:]]


def test_instructions_in_the_words_of_responses_stand_before_all_messages():
    got = chat_body({"messages": HISTORY, "instructions": "Be brief."}, **KNOWN)["messages"]
    assert got == [{"role": "system", "content": "Be brief."}, *HISTORY]


LONG = "n" * 70
FINE: Json = {"type": "function", "function": {"name": "fine", "parameters": {"type": "object", "properties": {}}, "x_f": 1}, "x_tool": 1, "cache_control": {"type": "ephemeral"}}  # fmt: skip
TOOLS: list[Json] = [
    FINE,
    {"type": "function", "function": {"name": LONG, "description": "D", "parameters": {"type": "object", "properties": {}}, "x_f": 2}, "x_tool": 2},
    {"type": "function", "function": {"name": "last"}, "x_tool": 3},
]  # fmt: skip


def tools_sent(tools: list[Json], **settings: Any) -> list[Json]:
    return chat_body({"messages": [HISTORY[3]], "tools": tools}, **settings)["tools"]


def test_a_tool_that_must_be_renamed_changes_and_nothing_beside_it():
    got = tools_sent(TOOLS)
    name = got[1]["function"]["name"]
    assert len(name) <= 64
    assert got == changed(TOOLS, 1, function={**TOOLS[1]["function"], "name": name})


def test_a_schema_that_must_change_changes_and_nothing_beside_it():
    union = {"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}}
    tools = [*TOOLS[:1], {**TOOLS[2], "function": {"name": "last", "parameters": union, "x_f": 3}}]
    got = tools_sent(tools)
    assert got[0] == FINE
    assert "anyOf" not in got[1]["function"]["parameters"]
    assert (got[1]["x_tool"], got[1]["function"]["x_f"]) == (3, 3)


def test_a_tool_loses_strict_where_the_server_does_not_know_it_and_nothing_else():
    strict = {**FINE, "function": {**FINE["function"], "name": "strict", "strict": True}}
    assert tools_sent([FINE, strict], strict=False) == [
        FINE,
        {**FINE, "function": {**FINE["function"], "name": "strict"}},
    ]


def test_a_flat_tool_is_written_as_the_api_has_it_and_nothing_beside_it():
    flat: Json = {"type": "function", "name": "flat", "parameters": {"type": "object", "properties": {}}, "x_tool": 9}
    function: Json = {"name": "flat", "parameters": flat["parameters"]}
    assert tools_sent([FINE, flat, TOOLS[2]]) == [
        FINE,
        {"type": "function", "x_tool": 9, "function": function},
        TOOLS[2],
    ]


def test_no_parameters_are_not_sent_as_null():
    got = tools_sent([FINE, {"type": "function", "function": {"name": "none", "parameters": None, "x_f": 1}}])
    assert got[0] == FINE
    assert got[1]["function"] == {"name": "none", "parameters": {"type": "object", "properties": {}}, "x_f": 1}


@pytest.mark.parametrize("arguments", [{"a": 1}, None, ""], ids=["object", "null", "empty"])
def test_a_function_call_whose_arguments_are_no_text_is_rewritten_with_its_result(arguments: Any):
    fine = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    odd = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": arguments}}
    result = {"role": "function", "name": "f", "content": "ok"}
    sent = sent_to_chat([*HISTORY[:1], fine, result, odd, result, *HISTORY[-1:]])
    assert sent[1:3] == [fine, result]
    [call] = sent[3]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == (arguments or {})
    assert "function_call" not in sent[3]
    assert (sent[4]["role"], sent[4]["tool_call_id"], sent[4]["content"]) == ("tool", call["id"], "ok")


# Messages

USE: Json = {"type": "tool_use", "id": "t 1", "name": "f", "input": {"a": 1.50}, "cache_control": {"type": "ephemeral"}}
GIVEN: Json = {"type": "tool_result", "tool_use_id": "t 1", "content": "ok", "cache_control": {"type": "ephemeral"}, "x_block": 1}  # fmt: skip
SIGNED: Json = {"type": "thinking", "thinking": "Hm.", "signature": "SIG", "x_block": 2}
BLOCKS: list[Json] = [
    {"role": "user", "content": "Go.", "x_message": 1},
    {"role": "user", "content": [{"type": "text", "text": "Please.", "citations": None, "x_block": 3}]},
    {"role": "assistant", "content": [SIGNED, {"type": "text", "text": "So."}, {**USE, "id": "t_1"}], "x_message": 2},
    {"role": "user", "content": [{**GIVEN, "tool_use_id": "t_1"}, {"type": "text", "text": "There."}], "x_message": 3},
    {"role": "assistant", "content": "Done.", "x_message": 4},
    {"role": "user", "content": "Thanks."},
]  # fmt: skip


def test_a_messages_history_goes_on_as_it_was_written():
    assert sent_to_messages(BLOCKS) == BLOCKS


@pytest.mark.parametrize(
    "refused",
    [
        {"type": "text", "text": " "},
        {"type": "thinking", "thinking": "never signed", "signature": ""},
    ],
)
def test_a_block_that_the_api_refuses_is_left_out_and_nothing_beside_it(refused: Json):
    history = changed(BLOCKS, 2, content=[refused, *BLOCKS[2]["content"]])
    assert sent_to_messages(history) == BLOCKS


def test_ids_that_the_api_refuses_change_and_nothing_beside_them():
    history = changed(changed(BLOCKS, 2, content=[SIGNED, USE]), 3, content=[GIVEN])
    got = sent_to_messages(history)
    id = got[3]["content"][0]["tool_use_id"]
    assert id != "t 1"
    expected = changed(history, 2, content=[SIGNED, {**USE, "id": id}])
    assert got == changed(expected, 3, content=[{**GIVEN, "tool_use_id": id}])


def test_a_missing_result_stands_in_the_message_behind_its_call_and_changes_no_other():
    history = changed(BLOCKS, 3, content=BLOCKS[3]["content"][1:])
    got = sent_to_messages(history)
    assert [block["type"] for block in got[3]["content"]] == ["tool_result", "text"]
    assert got[3]["content"][1] == BLOCKS[3]["content"][1]
    assert [*got[:3], *got[4:]] == [*BLOCKS[:3], *BLOCKS[4:]]


# Responses

ITEMS: list[Json] = [
    {"role": "system", "content": [{"type": "input_text", "text": "S", "x_part": 1}], "x_item": 0},
    {"role": "user", "content": "Go.", "x_item": 1},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "x_item": 2},
    {"type": "function_call_output", "call_id": "c1", "output": "ok", "x_item": 3},
    {"role": "user", "content": "Go on.", "x_item": 4},
]


def test_a_responses_history_goes_on_as_it_was_written():
    assert sent_to_responses(ITEMS) == ITEMS


def test_an_id_that_is_too_long_changes_and_nothing_beside_it():
    long = "c" * 70
    got = sent_to_responses(changed(changed(ITEMS, 2, call_id=long), 3, call_id=long))
    id = got[3]["call_id"]
    assert len(id) <= 64
    assert got == changed(changed(ITEMS, 2, call_id=id), 3, call_id=id)


def test_a_result_gets_the_kind_of_its_call_and_nothing_beside_it():
    custom: Json = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "f", "input": "x", "x_item": 2}
    items = [*ITEMS[:2], custom, *ITEMS[3:]]
    assert sent_to_responses(items) == changed(items, 3, type="custom_tool_call_output")


def test_a_result_that_answers_the_item_answers_its_call_and_nothing_beside_it():
    assert sent_to_responses(changed(ITEMS, 3, call_id="fc_1")) == ITEMS


def test_an_id_that_is_used_twice_changes_and_nothing_beside_it():
    twice = [*ITEMS[:3], {**ITEMS[2], "id": "fc_2", "arguments": '{"a":1}'}, ITEMS[3], {**ITEMS[3], "x_item": 5}]
    got = sent_to_responses(twice)
    id = got[3]["call_id"]
    assert id != "c1"
    assert got == changed(changed(twice, 3, call_id=id), 5, call_id=id)


def test_a_later_system_message_becomes_the_developer_s_and_nothing_beside_it():
    items = [*ITEMS[1:], ITEMS[0]]
    assert sent_to_responses(items, CHATGPT) == changed(items, 4, role="developer")
