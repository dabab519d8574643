"""Searches for tools that a client leaves to its server, run by the gateway for backends that know none."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.backend_writers import refusal, reply
from tests.support.checked import messages_faults, responses_faults
from tests.support.gateway import Gateway, Responses, good, read_events
from tests.support.scripts import Calls, Name, Says, Script
from tests.support.upstream import Asked, Reply, Upstream

Json = dict[str, Any]
SEARCHING: tuple[Name, ...] = ("chat", "responses", "messages")
"""The kinds of backends whose settings say whether they know tool search."""
KIND = pytest.mark.parametrize("kind", SEARCHING)
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
USER: Json = {"role": "user", "content": "Go."}
SCHEMA: Json = {"type": "object", "properties": {"to": {"type": "string"}}}


@pytest.fixture(scope="module")
def blind(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with backends that know no search, and one of each dialect that does, as far as it knows."""
    profile = "profile = { tool_search = false }\n"
    tables = [
        f'[[backends]]\nname = "{name}"\nkind = "{kind}"\nbase_url = "{upstream.url}"\nretries = 0\n{more}'
        for kind in SEARCHING
        for name, more in ((kind, "" if kind == "chat" else profile), (f"knowing-{kind}", ""))
    ]
    server = Gateway(tmp_path_factory.mktemp("blind"), "\n".join(tables))
    yield server
    server.stop()


def function(name: str, description: str, **fields: Any) -> Json:
    return {"type": "function", "name": name, "description": description, "parameters": SCHEMA, **fields}


MAIL: Json = {
    "type": "namespace",
    "name": "mcp__mail",
    "description": "",
    "tools": [
        function("send", "Sends a letter.", defer_loading=True),
        function("list", "Lists letters.", defer_loading=True),
    ],
}
TOOLS = [function("f", "Does nothing."), MAIL, {"type": "tool_search"}]
BLOCKS = [
    {"name": "f", "description": "Does nothing.", "input_schema": SCHEMA},
    {"name": "send_letter", "description": "Sends a letter.", "input_schema": SCHEMA, "defer_loading": True},
    {"name": "list_letters", "description": "Lists letters.", "input_schema": SCHEMA, "defer_loading": True},
]
BM25: Json = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
REGEX: Json = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}

SEEK = Calls("call_s", "tool_search", '{"query": "send a letter", "limit": 1}')
SPELLED = Calls("call_s", "tool_search", '{"query": "letter", "limit": "three"}')
SEND = Calls("call_m", "mcp__mail__send", '{"to":"Ann"}')


def script(upstream: Upstream, name: str, kind: str, stream: bool, *turns: tuple[Any, ...]) -> str:
    model = f"{name} {kind} {stream}"
    upstream.replies[model] = [reply(Script(turn), kind, stream=stream) for turn in turns]  # pyright: ignore[reportArgumentType]
    return model


def names(asked: Asked) -> list[str]:
    return [tool.get("function", tool)["name"] for tool in asked.body["tools"]]


def history(asked: Asked) -> list[Json]:
    return asked.body.get("messages") or asked.body["input"]


def grows(asked: list[Asked]) -> None:
    """Tools and history of each request begin with those of the one before."""
    for earlier, later in pairwise(asked):
        assert later.body["tools"][: len(earlier.body["tools"])] == earlier.body["tools"]
        assert history(later)[: len(history(earlier))] == history(earlier)


# Responses


@KIND
@WAYS
def test_a_search_is_run_and_shown(blind: Gateway, upstream: Upstream, http: httpx.Client, kind: Name, stream: bool):
    model = script(upstream, "shown", kind, stream, (Says("Let me see."), SEEK), (SEND,), (Says("Sent."),))
    api = Responses(http, blind)
    first = api.ask(f"{kind}/{model}", [USER], stream=stream, tools=TOOLS)
    assert [item["type"] for item in first["output"]] == [
        "message",
        "tool_search_call",
        "tool_search_output",
        "function_call",
    ]
    said, call, output, sending = first["output"]
    assert said["content"][0]["text"] == "Let me see."
    assert call == {
        "id": "tsc_call_s",
        "type": "tool_search_call",
        "call_id": "call_s",
        "execution": "server",
        "arguments": {"query": "send a letter", "limit": 1},
        "status": "completed",
    }
    assert (output["call_id"], output["execution"], output["status"]) == ("call_s", "server", "completed")
    [space] = output["tools"]
    assert (space["name"], [tool["name"] for tool in space["tools"]]) == ("mcp__mail", ["send"])
    assert (sending["name"], sending["namespace"]) == ("send", "mcp__mail")
    result = {"type": "function_call_output", "call_id": sending["call_id"], "output": "ok"}
    second = api.ask(f"{kind}/{model}", [USER, *first["output"], result], stream=stream, tools=TOOLS)
    assert [item["type"] for item in second["output"]] == ["message"]
    asked = upstream.of(model)
    assert [names(each) for each in asked] == [
        ["f", "tool_search"],
        ["f", "tool_search", "mcp__mail__send"],
        ["f", "tool_search", "mcp__mail__send"],
    ]
    grows(asked)
    assert "The tool mcp__mail__send can be called." in json.dumps(history(asked[1]))

    def logged() -> list[int]:
        return [line["gateway_calls"] for line in blind.turns() if line.get("model") == f"{kind}/{model}"]

    blind.wait_until(lambda: len(logged()) == 2)
    assert logged() == [1, 0]


@KIND
def test_its_stream_is_sound(blind: Gateway, upstream: Upstream, http: httpx.Client, kind: Name):
    model = script(upstream, "sound", kind, True, (Says("Hm."), SEEK), (Says("Yes."),))
    events = Responses(http, blind).stream(f"{kind}/{model}", [USER], tools=TOOLS)
    assert responses_faults(events.frames, done=events.done) == []
    seek = Calls("call_s", REGEX["name"], '{"query":"send_.*"}')
    model = script(upstream, "sound message", kind, True, (Says("Hm."), seek), (Says("Yes."),))
    body = {"model": f"{kind}/{model}", "max_tokens": 99, "messages": [USER], "tools": [*BLOCKS, REGEX], "stream": True}
    assert messages_faults(read_events(http.post(f"{blind.base_url}/messages", json=body)).frames) == []


def test_a_background_run_searches(blind: Gateway, upstream: Upstream, http: httpx.Client):
    model = script(upstream, "background", "chat", False, (SEEK,), (Says("Done."),))
    upstream.replies[model] = lambda asked: reply(
        Script((SEEK,) if len(upstream.of(model)) == 1 else (Says("Done."),)),
        "chat",
        stream=bool(asked.body.get("stream")),
    )
    api = Responses(http, blind)
    made = good(
        api.post({"model": f"chat/{model}", "input": [USER], "tools": TOOLS, "background": True, "store": True})
    ).json()
    done = api.wait_for(made["id"], "completed")
    assert [item["type"] for item in done["output"]] == ["tool_search_call", "tool_search_output", "message"]
    # What is stored declares what was found, in the next turn of the chain.
    api.create(f"chat/{model}", [USER], tools=TOOLS, previous_response_id=made["id"])
    assert names(upstream.of(model)[-1]) == ["f", "tool_search", "mcp__mail__send"]


def test_a_limit_that_is_none_is_not_looked_at(blind: Gateway, upstream: Upstream, http: httpx.Client):
    model = script(upstream, "spelled", "chat", False, (SPELLED,), (Says("Done."),))
    output = Responses(http, blind).create(f"chat/{model}", [USER], tools=TOOLS)["output"][1]
    assert {tool["name"] for tool in output["tools"][0]["tools"]} == {"send", "list"}


def test_a_search_over_a_websocket(blind: Gateway, upstream: Upstream):
    model = script(upstream, "socket", "chat", True, (SEEK,), (SEND,))
    with connect(f"{blind.base_url.replace('http', 'ws', 1)}/responses") as socket:
        body = {"type": "response.create", "model": f"chat/{model}", "input": [USER], "tools": TOOLS, "store": False}
        socket.send(json.dumps(body))
        while (event := json.loads(socket.recv(60)))["type"] != "response.completed":
            assert event["type"] != "error", event
    types = [item["type"] for item in event["response"]["output"]]
    assert types == ["tool_search_call", "tool_search_output", "function_call"]


@WAYS
def test_a_search_beside_a_call_of_the_client(blind: Gateway, upstream: Upstream, http: httpx.Client, stream: bool):
    own = Calls("call_f", "f", "{}")
    model = script(upstream, "beside", "chat", stream, (SEEK, own), (Says("Now."),))
    api = Responses(http, blind)
    first = api.ask(f"chat/{model}", [USER], stream=stream, tools=TOOLS)
    assert [item["type"] for item in first["output"]] == ["function_call", "tool_search_call", "tool_search_output"]
    result = {"type": "function_call_output", "call_id": "call_f", "output": "ok"}
    api.ask(f"chat/{model}", [USER, *first["output"], result], stream=stream, tools=TOOLS)
    last = upstream.of(model)[-1]
    assert names(last) == ["f", "tool_search", "mcp__mail__send"]
    results = {each["tool_call_id"]: each["content"] for each in history(last) if each["role"] == "tool"}
    assert results == {"call_f": "ok", "call_s": "The tool mcp__mail__send can be called."}


# Messages


def ask(http: httpx.Client, gateway: Gateway, body: Json) -> list[Json]:
    """The blocks of a message, as a client puts them together."""
    response = http.post(f"{gateway.base_url}/messages", json={"max_tokens": 99, "messages": [USER], **body})
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return response.json()["content"]
    blocks: list[Json] = []
    inputs: dict[int, str] = {}
    for line in response.text.splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line[6:])
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            elif delta["type"] == "text_delta":
                block["text"] += delta["text"]
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return blocks


@KIND
@WAYS
@pytest.mark.parametrize(("finder", "query"), [(BM25, "send a letter"), (REGEX, "send_.*")], ids=["bm25", "regex"])
def test_a_search_is_run_and_shown_as_blocks(
    blind: Gateway, upstream: Upstream, http: httpx.Client, kind: Name, stream: bool, finder: Json, query: str
):
    seek = Calls("call_s", finder["name"], json.dumps({"query": query, "limit": 1}))
    send = Calls("call_m", "send_letter", '{"to":"Ann"}')
    model = script(upstream, finder["name"], kind, stream, (Says("Hm."), seek), (Says("So."), send), (Says("Sent."),))
    body: Json = {"model": f"{kind}/{model}", "tools": [*BLOCKS, finder], "stream": stream}
    blocks = ask(http, blind, body)
    references = [{"type": "tool_reference", "tool_name": "send_letter"}]
    content = {"type": "tool_search_tool_search_result", "tool_references": references}
    expected: list[Json] = [
        {"type": "text", "text": "Hm."},
        {
            "type": "server_tool_use",
            "id": "srvtoolu_call_s",
            "name": finder["name"],
            "input": {"query": query, "limit": 1},
        },
        {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_call_s", "content": content},
        {"type": "text", "text": "So."},
        {"type": "tool_use", "id": "call_m", "name": "send_letter", "input": {"to": "Ann"}},
    ]
    assert [{key: block[key] for key in want} for block, want in zip(blocks, expected, strict=True)] == expected
    result = {"type": "tool_result", "tool_use_id": "call_m", "content": "ok"}
    turns = [USER, {"role": "assistant", "content": expected}, {"role": "user", "content": [result]}]
    assert ask(http, blind, {**body, "messages": turns})[0]["text"] == "Sent."
    asked = upstream.of(model)
    assert [names(each) for each in asked] == [
        ["f", finder["name"]],
        ["f", finder["name"], "send_letter"],
        ["f", finder["name"], "send_letter"],
    ]
    grows(asked)


@WAYS
@pytest.mark.parametrize(("query", "code"), [("(", "invalid_tool_input"), ("(?=a)b", "invalid_tool_input")])
def test_a_search_that_fails_says_why(
    blind: Gateway, upstream: Upstream, http: httpx.Client, stream: bool, query: str, code: str
):
    seek = Calls("call_s", REGEX["name"], json.dumps({"query": query}))
    model = script(upstream, f"fails {query}", "chat", stream, (seek,), (Says("Sorry."),), (Says("Again."),))
    body: Json = {"model": f"chat/{model}", "tools": [*BLOCKS, REGEX], "stream": stream}
    blocks = ask(http, blind, body)
    assert (blocks[1]["content"]["type"], blocks[1]["content"]["error_code"]) == ("tool_search_tool_result_error", code)
    ask(http, blind, {**body, "messages": [USER, {"role": "assistant", "content": blocks}, USER]})
    asked = upstream.of(model)
    assert names(asked[-1]) == ["f", REGEX["name"]]
    grows(asked)


def test_a_forced_choice_of_the_search_is_refused(blind: Gateway, upstream: Upstream, http: httpx.Client):
    body = {"model": "chat/forced", "tools": [*BLOCKS, REGEX], "tool_choice": {"type": "tool", "name": REGEX["name"]}}
    response = http.post(f"{blind.base_url}/messages", json={"max_tokens": 99, "messages": [USER], **body})
    assert response.status_code == 400
    assert "tool_choice" in response.json()["error"]["message"]
    assert not upstream.of("forced")


def test_gateway_tools_and_searches_share_a_run(upstream: Upstream, http: httpx.Client, tmp_path: Path):
    (tmp_path / "shelf.py").write_text(
        'def weather(city: str) -> str:\n    """The weather."""\n    return f"Sun in {city}"\n'
    )
    config = f'[[backends]]\nname = "chat"\nkind = "chat"\nbase_url = "{upstream.url}"\nretries = 0\n'
    gateway = Gateway(tmp_path, f'{config}\n[gateway_tools]\ntools = ["shelf:weather"]\n')
    try:
        rain = Calls("call_w", "weather", '{"city":"Rome"}')
        model = script(upstream, "shared", "chat", False, (SEEK,), (rain,), (SEND,), (Says("Sent."),))
        api = Responses(http, gateway)
        first = api.create(f"chat/{model}", [USER], tools=TOOLS)
        types = [item["type"] for item in first["output"]]
        assert types == ["tool_search_call", "tool_search_output", "function_call"]
        result = {"type": "function_call_output", "call_id": "call_m", "output": "ok"}
        api.create(f"chat/{model}", [USER, *first["output"], result], tools=TOOLS)
    finally:
        gateway.stop()
    asked = upstream.of(model)
    assert [names(each) for each in asked] == [
        ["f", "tool_search", "weather"],
        *[["f", "tool_search", "weather", "mcp__mail__send"]] * 3,
    ]
    grows(asked)
    results = {each["tool_call_id"]: each["content"] for each in history(asked[-1]) if each["role"] == "tool"}
    assert results.keys() == {"call_s", "call_w", "call_m"}


# Servers that refuse it


REFUSALS: dict[Name, str] = {
    "responses": "Invalid value: 'tool_search'. Supported values are: 'function'.",
    "messages": "tools.1.custom.defer_loading: Extra inputs are not permitted",
}


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_a_server_that_refuses_the_search_is_asked_without(
    blind: Gateway, upstream: Upstream, http: httpx.Client, kind: Name
):
    model = f"refusing {kind}"

    def answer(asked: Asked) -> Reply:
        if "defer_loading" in json.dumps(asked.body):
            return Reply([refusal(kind, 400, REFUSALS[kind])], 400, "application/json")
        return reply(Script((Says("Hello."),)), kind, stream=False)

    upstream.replies[model] = answer
    if kind == "responses":
        client = [*TOOLS[:2], {"type": "tool_search", "execution": "client"}]
        call = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "x"}}
        output = {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [MAIL]}
        for items in ((), (call, output)):
            Responses(http, blind).create(f"knowing-{kind}/{model}", [USER, *items], tools=client)
    else:
        use = {"type": "tool_use", "id": "s", "name": "f", "input": {}}
        references = [{"type": "tool_reference", "tool_name": "send_letter"}]
        result = {"type": "tool_result", "tool_use_id": "s", "content": references}
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        for messages in ((), turns):
            body = {"model": f"knowing-{kind}/{model}", "tools": BLOCKS, "messages": [USER, *messages]}
            assert ask(http, blind, body)[0]["text"] == "Hello."
    asked = upstream.of(model)
    assert ["defer_loading" in json.dumps(each.body) for each in asked] == [True, False, False]
    declared = {
        "responses": ["f", "tool_search", "mcp__mail__send", "mcp__mail__list"],
        "messages": ["f", "send_letter"],
    }
    assert names(asked[2]) == declared[kind]
    grows(asked[1:])
