"""Every dialect on every backend: one scripted turn, nine routes, streamed and plain, and the same in every hand.

The turn: a thought, a sentence, two calls. Then a second request with the results, whose history each server must be
able to take.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.support.fold import fold_chat
from tests.support.gateway import Gateway, read_sse
from tests.support.upstream import Reply, Upstream

KINDS = ("responses", "chat", "messages")
CALLS = [("call_a", "look", '{"path":"a b"}'), ("call_b", "find", "{}")]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
Json = dict[str, Any]


def _sse(name: str, data: Any) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


# The turn, as each server tells it


def _responses(*, stream: bool) -> list[bytes]:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "SEAL"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        *({"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": text} for id, name, text in CALLS),
    ]  # fmt: skip
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 6}
    response = {"id": "resp_up", "model": "m", "status": "completed", "output": items, "usage": usage}
    if not stream:
        return [json.dumps(response).encode()]
    frames = [_sse("response.created", {"type": "response.created", "response": {**response, "output": []}})]
    for place, item in enumerate(items):
        data = {"type": "response.output_item.done", "output_index": place, "item": item}
        frames.append(_sse("response.output_item.done", data))
    return [*frames, _sse("response.completed", {"type": "response.completed", "response": response})]


def _chat(*, stream: bool) -> list[bytes]:
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in CALLS]
    usage = {"prompt_tokens": 10, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}
    if not stream:
        message = {"role": "assistant", "reasoning_content": "Hm.", "content": "Let me see.", "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return [json.dumps({"id": "c", "model": "m", "choices": [choice], "usage": usage}).encode()]
    deltas: list[Json] = [
        {"role": "assistant", "reasoning_content": "Hm."},
        {"content": "Let me "},
        {"content": "see."},
        {"tool_calls": [{**calls[0], "index": 0, "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"path":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"a b"}'}}]},
        {"tool_calls": [{**calls[1], "index": 1, "function": {"name": "find", "arguments": ""}}]},
    ]
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, {"choices": [], "usage": usage}]
    return [*(_sse("", {"id": "c", "model": "m", **chunk}) for chunk in chunks), _sse("", "[DONE]")]


def _messages(*, stream: bool) -> list[bytes]:
    usage = {"input_tokens": 6, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 6}
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "SEAL"},
        {"type": "text", "text": "Let me see."},
        *({"type": "tool_use", "id": id, "name": name, "input": json.loads(text)} for id, name, text in CALLS),
    ]
    message = {"id": "msg_up", "type": "message", "role": "assistant", "model": "m", "content": blocks}
    if not stream:
        return [json.dumps({**message, "stop_reason": "tool_use", "usage": usage}).encode()]
    frames = [_sse("message_start", {"type": "message_start", "message": {**message, "content": [], "usage": usage}})]
    empty: list[Json] = [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        *({"type": "tool_use", "id": id, "name": name, "input": {}} for id, name, _ in CALLS),
    ]
    deltas: list[list[Json]] = [
        [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "SEAL"}],
        [{"type": "text_delta", "text": "Let me "}, {"type": "text_delta", "text": "see."}],
        [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"path":', '"a b"}')],
        [{"type": "input_json_delta", "partial_json": ""}],
    ]
    for index, (block, grown) in enumerate(zip(empty, deltas, strict=True)):
        start = {"type": "content_block_start", "index": index, "content_block": block}
        frames.append(_sse("content_block_start", start))
        grows = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in grown]
        frames += [_sse("content_block_delta", each) for each in grows]
        frames.append(_sse("content_block_stop", {"type": "content_block_stop", "index": index}))
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 6}}
    return [*frames, _sse("message_delta", end), _sse("message_stop", {"type": "message_stop"})]


TOLD: dict[str, Callable[..., list[bytes]]] = {"responses": _responses, "chat": _chat, "messages": _messages}


# The same turn in a client's hand: text, thoughts, calls, finish, tokens


def _in_chat(http: httpx.Client, url: str, body: Json) -> tuple[Any, ...]:
    answer = http.post(f"{url}/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}})
    assert answer.status_code == 200, answer.text
    if body["stream"]:
        read = fold_chat(list(read_sse(answer)))
    else:
        choice = answer.json()["choices"][0]
        read = {"message": choice["message"], "finish": choice["finish_reason"], "usage": answer.json()["usage"]}
    message, usage = read["message"], read["usage"]
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    tokens = (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])
    finish = {"tool_calls": "calls"}[read["finish"]]
    return message["content"], message["reasoning_content"], calls, finish, tokens


def _in_responses(http: httpx.Client, url: str, body: Json) -> tuple[Any, ...]:
    answer = http.post(f"{url}/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    response = answer.json() if not body["stream"] else _last_response(answer)
    items = response["output"]
    said = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    thoughts = [
        part["text"]
        for item in items
        if item["type"] == "reasoning"
        for part in (*item["summary"], *item.get("content", ()))
    ]
    calls = [(item["call_id"], item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    usage = response["usage"]
    tokens = (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])
    assert response["status"] == "completed"
    return said, "".join(thoughts), calls, "calls" if calls else "stop", tokens


def _last_response(answer: httpx.Response) -> Json:
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return json.loads(data[-1])["response"]


def _in_messages(http: httpx.Client, url: str, body: Json) -> tuple[Any, ...]:
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    fields = {name: value for name, value in body.items() if name != "stream"}
    if body["stream"]:
        with client.messages.stream(**fields) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**fields)
    said = "".join(block.text for block in message.content if block.type == "text")
    thought = "".join(block.thinking for block in message.content if block.type == "thinking")
    calls = [(block.id, block.name, _compact(block.input)) for block in message.content if block.type == "tool_use"]
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    finish = {"tool_use": "calls"}[message.stop_reason or ""]
    return said, thought, calls, finish, (usage.input_tokens + cached, cached, usage.output_tokens)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _asked(dialect: str, model: str, *, stream: bool) -> Json:
    names = ("look", "find")
    if dialect == "chat":
        tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in names]
        return {"model": model, "stream": stream, "messages": [{"role": "user", "content": "Go."}], "tools": tools}
    if dialect == "responses":
        tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in names]
        return {"model": model, "stream": stream, "input": "Go.", "tools": tools}
    tools = [{"name": name, "input_schema": SCHEMA} for name in names]
    messages = [{"role": "user", "content": "Go."}]
    return {"model": model, "stream": stream, "max_tokens": 99, "messages": messages, "tools": tools}


HANDS = {"chat": _in_chat, "responses": _in_responses, "messages": _in_messages}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    for kind in KINDS:
        for stream in (True, False):
            type = "text/event-stream" if stream else "application/json"
            upstream.replies[f"{kind}-{stream}"] = Reply(TOLD[kind](stream=stream), content_type=type)
    yield upstream
    upstream.stop()


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    tables = [
        f'[[backends]]\nname = "{kind}"\nkind = "{kind}"\nbase_url = "{upstream.url}"\nretries = 0\n' for kind in KINDS
    ]
    folder: Path = tmp_path_factory.mktemp("matrix")
    gateway = Gateway(folder, "\n".join(tables))
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=20, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", KINDS)
def test_the_same_turn_comes_to_hand_on_every_route(gateway, upstream, http, dialect: str, kind: str, stream: bool):
    model = f"{kind}-{stream}"
    body = _asked(dialect, f"{kind}/{model}", stream=stream)
    said, thought, calls, finish, tokens = HANDS[dialect](http, gateway.url, body)
    assert (said, thought, finish, tokens) == ("Let me see.", "Hm.", "calls", (10, 4, 6))
    assert [(id, name, _compact(json.loads(text))) for id, name, text in calls] == CALLS
    sent = upstream.of(model)[-1]
    path = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}[kind]
    assert (sent.path, bool(sent.body.get("stream"))) == (path, stream)


def _with_results(dialect: str, model: str) -> Json:
    body = _asked(dialect, model, stream=False)
    results = [("call_a", "is here"), ("call_b", "")]
    if dialect == "chat":
        calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in CALLS]
        body["messages"] += [{"role": "assistant", "content": "Let me see.", "tool_calls": calls}]
        body["messages"] += [{"role": "tool", "tool_call_id": id, "content": text} for id, text in results]
    elif dialect == "responses":
        body["input"] = [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "Let me see."},
            *({"type": "function_call", "call_id": i, "name": n, "arguments": a} for i, n, a in CALLS),
            *({"type": "function_call_output", "call_id": id, "output": text} for id, text in results),
        ]
    else:
        blocks = [{"type": "tool_use", "id": i, "name": n, "input": json.loads(a)} for i, n, a in CALLS]
        body["messages"] += [{"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, *blocks]}]
        answers = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in results]
        body["messages"] += [{"role": "user", "content": answers}]
    return body


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", KINDS)
def test_calls_and_results_stand_together_in_every_history(gateway, upstream, http, dialect: str, kind: str):
    model = f"{kind}-False"
    somebody = {"authorization": f"Bearer {dialect}-{kind}"}  # who has asked nothing before
    body = _with_results(dialect, f"{kind}/{model}")
    answer = http.post(gateway.url + PATHS[dialect], json=body, headers=somebody)
    assert answer.status_code == 200, answer.text
    sent = upstream.of(model)[-1].body
    if kind == "responses":
        read = [(item.get("type", "message"), item.get("call_id")) for item in sent["input"]]
        assert read == [
            ("message", None),
            ("message", None),
            ("function_call", "call_a"),
            ("function_call", "call_b"),
            ("function_call_output", "call_a"),
            ("function_call_output", "call_b"),
        ]
    elif kind == "chat":
        assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool", "tool"]
        said = sent["messages"][1]
        assert said["content"] == "Let me see."
        assert [call["id"] for call in said["tool_calls"]] == ["call_a", "call_b"]
        assert [message["tool_call_id"] for message in sent["messages"][2:]] == ["call_a", "call_b"]
    else:
        assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
        assert [block["type"] for block in sent["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
        assert sent["messages"][1]["content"][1]["input"] == {"path": "a b"}
        assert [block["tool_use_id"] for block in sent["messages"][2]["content"]] == ["call_a", "call_b"]
        assert sent["max_tokens"] > 0


# Thoughts go back to whoever had them, and to nobody else


def _thought_of(gateway: Gateway, http: httpx.Client, dialect: str, kind: str) -> Json:
    """The thought of the scripted turn, as a client of this dialect holds it."""
    body = _asked(dialect, f"{kind}/{kind}-False", stream=False)
    answer = http.post(gateway.url + PATHS[dialect], json=body).json()
    items = answer["output"] if dialect == "responses" else answer["content"]
    return next(item for item in items if item["type"] in ("reasoning", "thinking"))


def _with_thought(dialect: str, model: str, thought: Json) -> Json:
    body = _with_results(dialect, model)
    if dialect == "responses":
        body["input"].insert(1, thought)
    else:
        body["messages"][1]["content"].insert(0, thought)
    return body


def _thoughts_sent(kind: str, sent: Json) -> list[Json]:
    if kind == "responses":
        return [item for item in sent["input"] if item.get("type") == "reasoning"]
    blocks = [
        block for message in sent["messages"] if isinstance(message["content"], list) for block in message["content"]
    ]
    return [block for block in blocks if block["type"] == "thinking"]


@pytest.mark.parametrize("dialect", ["responses", "messages"])
@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_a_sealed_thought_returns_to_its_issuer_through_any_client(gateway, upstream, http, dialect: str, kind: str):
    thought = _thought_of(gateway, http, dialect, kind)
    body = _with_thought(dialect, f"{kind}/{kind}-False", thought)
    assert http.post(gateway.url + PATHS[dialect], json=body).status_code == 200
    [sent] = _thoughts_sent(kind, upstream.of(f"{kind}-False")[-1].body)
    if kind == "responses":
        assert (sent["id"], sent["encrypted_content"]) == ("rs_1", "SEAL")
        assert sent["summary"] == [{"type": "summary_text", "text": "Hm."}]
    else:
        assert sent == {"type": "thinking", "thinking": "Hm.", "signature": "SEAL"}


@pytest.mark.parametrize("dialect", ["responses", "messages"])
@pytest.mark.parametrize(("kind", "other"), [("responses", "messages"), ("messages", "responses")])
def test_a_sealed_thought_is_shown_to_no_other_issuer(gateway, upstream, http, dialect: str, kind: str, other: str):
    body = _with_thought(dialect, f"{other}/{other}-False", _thought_of(gateway, http, dialect, kind))
    answer = http.post(gateway.url + PATHS[dialect], json=body)
    assert answer.status_code == 200
    assert _thoughts_sent(other, upstream.of(f"{other}-False")[-1].body) == []
    assert "reasoning_dropped" in answer.headers["x-toolwire-notes"]


def test_between_two_of_a_kind_unknown_fields_and_cache_markers_survive(gateway, upstream, http):
    mark = {"cache_control": {"type": "ephemeral"}}
    body = _asked("messages", "messages/messages-False", stream=False)
    body |= {"system": [{"type": "text", "text": "Be brief.", **mark}], "top_k": 5, "x_new": {"a": 1}}
    body["tools"][0] |= {"eager_input_streaming": True, **mark}
    assert http.post(f"{gateway.url}/v1/messages", json=body).status_code == 200
    sent = upstream.of("messages-False")[-1].body
    assert sent == {**body, "model": "messages-False"}
    body = {**_asked("chat", "chat/chat-False", stream=False), "min_p": 0.1, "chat_template_kwargs": {"a": 1}}
    assert http.post(f"{gateway.url}/v1/chat/completions", json=body).status_code == 200
    sent = upstream.of("chat-False")[-1].body
    assert (sent["min_p"], sent["chat_template_kwargs"]) == (0.1, {"a": 1})


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_a_chat_client_need_not_carry_what_a_model_thought(gateway, upstream, http, kind: str):
    model = f"{kind}-False"
    headers = {"authorization": "Bearer one"}
    url = f"{gateway.url}/v1/chat/completions"
    body = _asked("chat", f"{kind}/{model}", stream=False)
    assert http.post(url, json=body, headers=headers).status_code == 200
    again = _with_results("chat", f"{kind}/{model}")
    assert http.post(url, json=again, headers=headers).status_code == 200
    [sent] = _thoughts_sent(kind, upstream.of(model)[-1].body)
    assert sent.get("encrypted_content", sent.get("signature")) == "SEAL"
    # Nobody else's conversation gets it, though it has calls of the same names.
    assert http.post(url, json=again, headers={"authorization": "Bearer two"}).status_code == 200
    assert _thoughts_sent(kind, upstream.of(model)[-1].body) == []
