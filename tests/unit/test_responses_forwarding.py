"""A Responses request on its way to a Responses server: all of it goes on, but for what is ours to decide."""

import json
from typing import Any

import msgspec

from tests.museum.clients import Json
from tests.unit.test_responses_encoding import ask
from toolwire.backends.responses import CHATGPT, OPENAI, Profile
from toolwire.backends.responses.encode import encode_request


def sent(profile: Profile = OPENAI, **fields: Any) -> tuple[Json, list[tuple[str, str]]]:
    body, notes = encode_request(ask(**fields), profile, stream=True)
    return json.loads(body), [(note.code, note.subject) for note in notes]


def test_all_fields_of_a_request_go_on_as_they_came():
    tools = [{"type": "function", "name": "f", "x_tool": 1}, {"type": "brand_new", "y": [1]}]
    given: Json = {
        "instructions": "Be brief.", "tools": tools, "tool_choice": {"type": "function", "name": "f", "z": 1},
        "text": {"format": {"type": "text", "w": 1}}, "reasoning": {"effort": "low", "v": 1}, "brand_new": {"a": [1]},
        "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}, "temperature": 0.50, "top_logprobs": 2,
        "truncation": "auto", "max_tool_calls": 3, "prompt_cache_key": "k", "user": "u",
    }  # fmt: skip
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi", "x_part": 1}], "x": 2}
    body, notes = sent(input=[item], **given)
    assert body == {"model": "m", "input": [item], "store": False, "stream": True, **given}
    assert notes == []


def test_what_is_ours_to_decide_does_not_go_on():
    body, notes = sent(
        previous_response_id="resp_1", background=True, store=True, stream_options={"include_obfuscation": False},
    )  # fmt: skip
    assert not {"previous_response_id", "background", "stream_options", "conversation"} & set(body)
    assert body["store"] is False
    assert notes == []
    assert "conversation" not in sent(conversation="conv_1")[0]


def test_items_go_on_as_they_came_whatever_they_are():
    items: list[Json] = [
        {"role": "user", "content": "easy", "x": 1},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E", "x": 1},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "", "namespace": "n", "x": 1},
        {"type": "function_call_output", "id": "fco", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "custom_tool_call", "call_id": "d", "name": "p", "input": "", "x": 1},
        {"type": "custom_tool_call_output", "call_id": "d", "output": ""},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "compaction", "encrypted_content": "of the server's own"},
        {"type": "brand_new", "x": {"y": [None]}},
    ]
    assert sent(input=items)[0]["input"] == items


def test_spellings_of_our_own_are_written_as_servers_know_them():
    items = [{"type": "tool_output", "tool_call_id": "c", "output": "ok"}]
    assert sent(input=items)[0]["input"] == [{"type": "function_call_output", "call_id": "c", "output": "ok"}]


def test_reasoning_that_no_server_could_read_is_left_out_with_a_note():
    user = {"role": "user", "content": "Hi"}
    bare = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "why"}]}
    said = {"role": "assistant", "content": "Yes"}
    body, notes = sent(input=[user, bare, said])
    assert (body["input"], notes) == ([user, said], [("reasoning_dropped", "rs_1")])
    for kept in (
        {**bare, "encrypted_content": "E"},
        {**bare, "content": [{"type": "reasoning_text", "text": "raw"}]},
    ):
        body, notes = sent(input=[user, kept, said])
        assert (body["input"], notes) == ([user, kept, said], [])


def test_reasoning_that_led_to_nothing_is_left_out_with_a_note():
    user = {"role": "user", "content": "Hi"}
    alone = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"}
    for history in ([user, alone], [user, alone, user], [user, alone, alone, user]):
        body, notes = sent(input=history)
        assert body["input"] == [item for item in history if item is user]
        assert set(notes) == {("reasoning_dropped", "rs_1")}


def test_a_rule_on_parallel_calls_reaches_the_server():
    request = msgspec.structs.replace(ask(parallel_tool_calls=True), parallel_calls=False)
    assert json.loads(encode_request(request, OPENAI, stream=False)[0])["parallel_tool_calls"] is False


def test_a_profile_refuses_includes_and_instructs():
    body, notes = sent(
        CHATGPT, temperature=0.5, metadata=None, user="u", include=["file_search_call.results"],
        input=[{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}],
    )  # fmt: skip
    assert notes == [("field_dropped", "temperature"), ("field_dropped", "user")]
    assert not {"temperature", "metadata", "user"} & set(body)
    assert body["include"] == ["file_search_call.results", "reasoning.encrypted_content"]
    assert [item["role"] for item in body["input"]] == ["developer", "user"]
    assert body["instructions"]
    assert sent(CHATGPT, instructions="Mine.")[0]["instructions"] == "Mine."
    assert sent(CHATGPT, include=["reasoning.encrypted_content"])[0]["include"] == ["reasoning.encrypted_content"]


def test_an_id_that_its_server_never_gave_does_not_go_back_to_it():
    """Item ids of ours are made of a seed; those of calls and results can be left out."""
    seed = "0123456789abcdef01234567"
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "x": 1}
    custom = {"type": "custom_tool_call", "call_id": "d", "name": "p", "input": ""}
    result = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    custom_result = {"type": "custom_tool_call_output", "call_id": "d", "output": "ok"}
    message = {
        "type": "message",
        "role": "assistant",
        "id": f"msg_{seed}03",
        "content": [{"type": "output_text", "text": "a"}],
    }
    given = [
        {"id": f"fc_{seed}01", **call},
        {"id": f"ctc_{seed}02", **custom},
        {"id": f"fco_{seed}i01", **result},
        custom_result,
        message,
    ]
    assert sent(input=given)[0]["input"] == [call, custom, result, custom_result, message]
    theirs = [
        {"id": id, **call} for id in ("fc_1", f"fc_{seed}{seed}", "fc_68c1f0b2a94c8190a3b1d2e5f60718290a1b2c3d4e5f6071")
    ]
    assert sent(input=[*theirs, result])[0]["input"] == [*theirs, result]
