"""Requests that clients seldom write, in each dialect."""

import json
from typing import Any

import pytest

from toolwire.core.errors import BadRequest
from toolwire.core.request import Message, ReasoningEntry, RefusalPart, TextPart, ToolChoice
from toolwire.core.signatures import PackedSignature, pack
from toolwire.dialects import chat, messages, responses

USER = {"role": "user", "content": "Go."}


def chatted(**fields: Any):
    return chat.decode_request(json.dumps({"model": "m", **fields}).encode())


def responded(*items: Any, **fields: Any):
    return responses.decode_request(json.dumps({"model": "m", "input": items, **fields}).encode())


def messaged(*given: Any, **fields: Any):
    return messages.decode_request(json.dumps({"model": "m", "max_tokens": 9, "messages": given, **fields}).encode())


# Chat


@pytest.mark.parametrize("given", ["Go.", [{"role": "user", "content": "Go."}]], ids=["text", "items"])
def test_chat_takes_the_input_of_responses_where_there_are_no_messages(given: Any):
    [said] = chatted(input=given).entries
    assert isinstance(said, Message)
    assert (said.role, said.parts) == ("user", (TextPart("Go."),))


def test_chat_leaves_an_input_beside_messages_out_with_a_note():
    assert [note.subject for note in chatted(messages=[USER], input="Stop.").notes] == ["input"]


def test_chat_names_the_message_that_is_wrong():
    with pytest.raises(BadRequest) as refused:
        chatted(messages=[USER, USER, {"role": "user", "content": 5}])
    assert (refused.value.param or "").startswith("messages[2]")


@pytest.mark.parametrize("choice", [{"custom": {"name": "run"}}, {"name": "run"}], ids=["nested", "flat"])
def test_chat_may_ask_for_a_custom_tool(choice: dict[str, Any]):
    tools = [{"type": "custom", "custom": {"name": "run"}}]
    asked = chatted(messages=[USER], tools=tools, tool_choice={"type": "custom", **choice})
    assert asked.tool_choice == ToolChoice("required", "run", "custom")


def test_a_refusal_in_a_chat_history_is_one():
    asked = chatted(messages=[USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}])
    assert asked.entries[1] == Message("assistant", (RefusalPart("No."),), raw=asked.entries[1].raw, message=1)


# Responses


def test_a_call_that_was_cut_short_is_left_out_of_the_history():
    cut = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x', "status": "incomplete"}
    asked = responded(USER, cut)
    assert (len(asked.entries), [note.code for note in asked.notes]) == (1, ["call_dropped"])


def thought(signature: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": signature}


def test_reasoning_of_another_origin_comes_back_as_it_was_packed():
    packed = pack(PackedSignature("messages", "th_1", ("why",), "SIG"))
    [_, found] = responded(USER, thought(packed)).entries
    assert isinstance(found, ReasoningEntry)
    assert (found.origin, found.id, found.signature) == ("messages", "th_1", "SIG")


def test_reasoning_that_was_damaged_on_the_way_loses_its_signature():
    packed = pack(PackedSignature("messages", "th_1", ("why",), "SIG"))
    damaged = packed[:-6]
    [_, found] = responded(USER, thought(damaged)).entries
    assert isinstance(found, ReasoningEntry)
    assert found.signature == ""
    said = {"role": "assistant", "content": [{"type": "thinking", "thinking": "why", "signature": damaged}]}
    [_, found] = messaged(USER, said).entries
    assert isinstance(found, ReasoningEntry)
    assert (found.signature, found.summary) == ("", ("why",))


# Messages


def test_messages_may_ask_for_a_tool_that_the_server_runs():
    asked = messaged(
        USER,
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "tool", "name": "web_search"},
    )
    assert asked.tool_choice is not None
    assert json.loads(bytes(asked.tool_choice.hosted or b"")) == {"type": "tool", "name": "web_search"}
