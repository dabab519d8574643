"""The matrix where client and service speak the same dialect: what the gateway has no word for survives."""

import json
from typing import Any

import httpx
import pytest

from tests.support.backend_writers import frame, reply
from tests.support.client_readers import named_frames
from tests.support.gateway import read_events
from tests.support.routes import Routes, question
from tests.support.scripts import LOOK, Says, Script
from tests.support.upstream import Reply

Json = dict[str, Any]
STREAM = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
MARK = {"cache_control": {"type": "ephemeral"}}

# Requests


def test_a_messages_request_arrives_as_it_was_sent(routes: Routes):
    routes.upstream.replies["as it was"] = reply(Script((Says("So."),)), "messages", stream=False)
    body = question("messages", "messages/as it was", (LOOK,), stream=False)
    body |= {"system": [{"type": "text", "text": "Be brief.", **MARK}], "top_k": 5, "x_new": {"a": 1}}
    body["tools"][0] |= {"eager_input_streaming": True, **MARK}
    routes.ask("messages", body)
    assert routes.upstream.of("as it was")[-1].body == {**body, "model": "as it was"}


def test_a_chat_request_keeps_the_fields_nobody_knows(routes: Routes):
    routes.upstream.replies["unknown"] = reply(Script((Says("So."),)), "chat", stream=False)
    unknown = {"min_p": 0.1, "chat_template_kwargs": {"a": 1}}
    routes.ask("chat", {**question("chat", "chat/unknown", (LOOK,), stream=False), **unknown})
    sent = routes.upstream.of("unknown")[-1].body
    assert {name: sent[name] for name in unknown} == unknown


def test_a_messages_request_that_is_mended_keeps_the_rest(routes: Routes):
    routes.upstream.replies["mended"] = reply(Script((Says("So."),)), "messages", stream=False)
    body = question("messages", "messages/mended", (LOOK,), stream=False)
    body |= {"system": [{"type": "text", "text": "Be brief.", **MARK}], "top_k": 5}
    body["messages"] += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "text", "text": "Never mind.", **MARK}]},
    ]
    routes.ask("messages", body)
    sent = routes.upstream.of("mended")[-1].body
    assert (sent["system"], sent.get("top_k")) == (body["system"], 5)
    assert sent["messages"][-1]["content"][-1] == {"type": "text", "text": "Never mind.", **MARK}


def test_a_chat_request_keeps_its_cache_markers(routes: Routes):
    routes.upstream.replies["marked"] = reply(Script((Says("So."),)), "chat", stream=False)
    body = question("chat", "chat/marked", (LOOK,), stream=False)
    body["messages"] = [{"role": "user", "content": [{"type": "text", "text": "Go.", **MARK}]}]
    routes.ask("chat", body)
    assert routes.upstream.of("marked")[-1].body["messages"] == body["messages"]


# Answers

LOGPROBS: Json = {"content": [{"token": "So", "logprob": -0.1, "bytes": None, "top_logprobs": []}], "refusal": None}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_a_chat_answer_keeps_log_probabilities_and_fingerprint(routes: Routes, stream: bool):
    told = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": "fp_1"}
    message: Json = {"role": "assistant", "content": "So.", "refusal": None, "annotations": []}
    choice = {"index": 0, "logprobs": LOGPROBS, "finish_reason": "stop"}
    if stream:
        chunk = {**told, "object": "chat.completion.chunk", "usage": None, "choices": [{**choice, "delta": message}]}
        answer = Reply([frame("", chunk), frame("", "[DONE]")])
    else:
        whole = {**told, "choices": [{**choice, "message": message}]}
        answer = Reply([json.dumps(whole).encode()], content_type="application/json")
    routes.upstream.replies["fingerprint"] = answer
    held = routes.ask("chat", question("chat", "chat/fingerprint", (), stream=stream, logprobs=True))
    assert "fp_1" in [came.get("system_fingerprint") for came in held.came]
    assert LOGPROBS in [choice.get("logprobs") for came in held.came for choice in came["choices"]]


@STREAM
def test_a_messages_answer_keeps_its_stop_sequence(routes: Routes, stream: bool):
    routes.upstream.replies["stops"] = reply(Script((Says("One, two"),), "sequence"), "messages", stream=stream)
    held = routes.ask("messages", question("messages", "messages/stops", (), stream=stream, stop_sequences=["END"]))
    assert (held.own["stop_reason"], held.own["stop_sequence"]) == ("stop_sequence", "END")


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND: Json = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


@STREAM
def test_a_messages_answer_keeps_the_blocks_of_the_service_s_own_tools(routes: Routes, stream: bool):
    message = {"id": "msg_up", "type": "message", "role": "assistant", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
    blocks = [SEARCH, FOUND, {"type": "text", "text": "So."}]
    whole = {**message, "content": blocks, "stop_reason": "end_turn", "stop_sequence": None}
    routes.upstream.replies["searches"] = (
        Reply([*_streamed(whole)]) if stream else Reply([json.dumps(whole).encode()], content_type="application/json")
    )
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    body = question("messages", "messages/searches", (), stream=stream)
    response = routes.post("messages", {**body, "tools": tools})
    assert _blocks(response, stream=stream) == ["server_tool_use", "web_search_tool_result", "text"]


def _streamed(message: Json) -> list[bytes]:
    """The message as a stream whose blocks are whole when they start."""
    begun: Json = {**message, "content": [], "stop_reason": None}
    out = [frame("message_start", {"type": "message_start", "message": begun})]
    for index, block in enumerate(message["content"]):
        start = {"type": "content_block_start", "index": index, "content_block": block}
        out.append(frame("content_block_start", start))
        out.append(frame("content_block_stop", {"type": "content_block_stop", "index": index}))
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 1}}  # fmt: skip
    return [*out, frame("message_delta", delta), frame("message_stop", {"type": "message_stop"})]


def _blocks(response: httpx.Response, *, stream: bool) -> list[str]:
    if not stream:
        return [block["type"] for block in response.json()["content"]]
    starts = [data for _, data in named_frames(response) if data["type"] == "content_block_start"]
    return [data["content_block"]["type"] for data in starts]


# Results that answer nothing

NOISE = "resources/list failed: unknown MCP server 'obsidian'"


def noisy(*outputs: Json, stream: bool) -> Reply:
    """A reply of a Responses server with these items in front of its message."""
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
    response: Json = {"id": "resp_up", "object": "response", "status": "completed", "output": [*outputs, said]}
    if not stream:
        return Reply([json.dumps(response).encode()], content_type="application/json")
    begun = {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}
    items = [
        {"type": type, "output_index": place, "item": item}
        for place, item in enumerate(response["output"])
        for type in ("response.output_item.added", "response.output_item.done")
    ]
    events = [begun, *items, {"type": "response.completed", "response": response}]
    return Reply([frame(event["type"], event) for event in events])


@STREAM
@pytest.mark.parametrize("named", [True, False])
def test_a_result_that_answers_no_call_of_the_turn_is_not_shown_to_a_responses_client(
    routes: Routes, stream: bool, named: bool
):
    noise = {"type": "function_call_output", "call_id": "call_mcp", "output": NOISE}
    routes.upstream.replies["noise"] = noisy({"id": "fco_1", **noise} if named else noise, stream=stream)
    answer = routes.post("responses", question("responses", "responses/noise", (LOOK,), stream=stream))
    assert "obsidian" not in answer.text
    response = read_events(answer).response if stream else answer.json()
    assert [item["type"] for item in response["output"]] == ["message"]
    told = answer.text if stream else answer.headers["x-toolwire-notes"]
    assert told.count('{"code":"output_dropped","subject":"call_mcp"}') == 1


@STREAM
def test_a_result_of_a_call_of_the_turn_is_shown_as_it_came(routes: Routes, stream: bool):
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "found"}
    routes.upstream.replies["answered"] = noisy(call, result, stream=stream)
    answer = routes.post("responses", question("responses", "responses/answered", (LOOK,), stream=stream))
    response = read_events(answer).response if stream else answer.json()
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output", "message"]


@STREAM
def test_nor_is_it_to_a_messages_client(routes: Routes, stream: bool):
    noise = {"type": "tool_result", "tool_use_id": "toolu_mcp", "content": NOISE, "is_error": True}
    said = {"type": "text", "text": "So."}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    if stream:
        begun = {**message, "usage": usage, "stop_reason": None}
        events: list[Json] = [{"type": "message_start", "message": begun}]
        for index, block in enumerate((noise, {**said, "text": ""})):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            if index:
                delta = {"type": "text_delta", "text": "So."}
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
        events.append({"type": "message_stop"})
        routes.upstream.replies["noise"] = Reply([frame(event["type"], event) for event in events])
    else:
        whole = {**message, "content": [noise, said], "usage": usage, "stop_reason": "end_turn"}
        routes.upstream.replies["noise"] = Reply([json.dumps(whole).encode()], content_type="application/json")
    held = routes.post("messages", question("messages", "messages/noise", (LOOK,), stream=stream))
    assert "obsidian" not in held.text
    assert "tool_result" not in held.text
    if stream:
        starts = [data for name, data in named_frames(held) if name == "content_block_start"]
        assert [(data["index"], data["content_block"]["type"]) for data in starts] == [(0, "text")]
    else:
        assert [block["type"] for block in held.json()["content"]] == ["text"]
    assert "output_dropped" in (held.text if stream else held.headers["x-toolwire-notes"])
