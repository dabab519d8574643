"""Codex and Claude Code with an MCP server of 60 tools: the model searches for the one it needs, and calls it."""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.clients.claude import Claude, needs_claude
from tests.clients.codex import Codex, needs_codex
from tests.clients.servers import Json, Use, Words, told
from tests.support.frames import completed, created, rs, stream
from tests.support.gateway import Gateway
from tests.support.upstream import Asked, Reply, Upstream
from toolwire.cli.clients import CLIENTS, set_up_client
from toolwire.cli.gateway_address import GatewayAddress
from toolwire.config.settings import Settings

SHED = Path(__file__).with_name("shed.py")
PROMPT = "Count the herons at the Loch."
TOOL = "mcp__shed__count_herons"
COUNT = Use("c2", TOOL, '{"place":"Loch"}')
SEEN = "count_herons: 17 at Loch"
ANSWER = "There are seventeen."
BACKENDS = ("chat", "responses", "messages", "blind-responses", "blind-messages")
"""A backend of each kind, and two that know no search although their protocol has one."""
BLIND = ("chat", "blind-responses", "blind-messages")

EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    tables = [
        f'[[backends]]\nname = "{name}"\nkind = "{name.removeprefix("blind-")}"\nbase_url = "{upstream.url}"\nretries = 0\n'
        + ("profile = { tool_search = false }\n" if name.startswith("blind-") else "")
        for name in BACKENDS
    ]
    server = Gateway(tmp_path_factory.mktemp("search"), "\n".join(tables))
    yield server
    server.stop()


def answer(upstream: Upstream, model: str, *turns: Callable[[Asked], Reply] | list[Any]) -> None:
    """Have a model say these turns one after the other. It is asked for other things too, without tools."""
    left = [*turns]

    def reply(asked: Asked) -> Reply:
        turn = left.pop(0) if "tools" in asked.body and len(left) > 1 else left[0]
        return turn(asked) if callable(turn) else told(asked, turn)

    upstream.replies[model] = reply


def turns_of(upstream: Upstream, model: str) -> list[Asked]:
    return [asked for asked in upstream.of(model) if "tools" in asked.body]


def names(asked: Asked) -> list[str]:
    """The tools that a server can show its model from the start, those of namespaces with both names."""
    tools = [tool.get("function", tool) for tool in asked.body["tools"] if not tool.get("defer_loading")]
    inner = [f"{tool['name']}__{each['name']}" for tool in tools for each in tool.get("tools", ())]
    return [*(tool["name"] for tool in tools if "name" in tool and "tools" not in tool), *inner]


def history(asked: Asked) -> list[Json]:
    return asked.body.get("messages") or asked.body["input"]


def grow(asked: list[Asked]) -> None:
    """What is sent begins with what was sent before, but for marks of the prompt cache, which Claude Code moves on.

    A text without a mark it writes as a string.
    """
    for earlier, later in pairwise(asked):
        assert later.body["tools"][: len(earlier.body["tools"])] == earlier.body["tools"]
        before, after = unmarked(history(earlier)), unmarked(history(later))
        assert after[: len(before)] == before


def unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    if not isinstance(value, dict):
        return value
    plain = {key: unmarked(each) for key, each in value.items() if key != "cache_control"}
    if isinstance(plain.get("content"), str):
        plain["content"] = [{"type": "text", "text": plain["content"]}]
    return plain


# Codex

SEEK: Json = {"query": "count herons", "limit": 3}


def native(item: Json) -> Callable[[Asked], Reply]:
    """A turn of a Responses server that knows the search."""
    done = rs("output_item.done", output_index=0, item={"id": "x_1", "status": "completed", **item})
    return lambda _: Reply([stream(created(), done, completed())])


def codex_turns(backend: str) -> list[Any]:
    if backend != "responses":
        return [[Use("c1", "tool_search", json.dumps(SEEK))], [COUNT], [Words(ANSWER)]]
    searching = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": SEEK}
    calling = {"type": "function_call", "call_id": "c2", "arguments": COUNT.arguments}
    called = native({**calling, "namespace": "mcp__shed", "name": "count_herons"})
    return [native(searching), called, [Words(ANSWER)]]


def codex(folder: Path, gateway: Gateway, model: str, *, socket: bool) -> Codex:
    server = f"[mcp_servers.shed]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(SHED))}]\n"
    return Codex(folder, gateway.base_url, model, socket=socket, more=server)


@EVERY_BACKEND
@pytest.mark.parametrize("transport", ["sse", "socket"])
def test_codex_finds_and_calls_a_tool(
    gateway: Gateway, upstream: Upstream, tmp_path: Path, backend: str, transport: str
):
    needs_codex()
    model = f"gpt-5.5-search-{backend}-{transport}"  # for which Codex hides MCP tools behind a search
    answer(upstream, model, *codex_turns(backend))
    said = codex(tmp_path, gateway, f"{backend}/{model}", socket=transport == "socket").exec(
        PROMPT, "-c", "approval_policy=never"
    )
    assert (said.messages, said.errors) == ([ANSWER], [])
    [call] = said.items("mcp_tool_call")
    assert (call["tool"], call["status"]) == ("count_herons", "completed")
    asked = turns_of(upstream, model)[-3:]
    assert SEEN in json.dumps(history(asked[-1]))
    grow(asked)
    if backend == "responses":
        assert [item["type"] for item in history(asked[1])][-2:] == ["tool_search_call", "tool_search_output"]
        return
    first, second, third = map(names, asked)
    assert first[-1] == "tool_search"
    assert second == third == [*first, TOOL]
    assert f"The tool {TOOL} can be called." in json.dumps(history(asked[1]))


@EVERY_BACKEND
def test_codex_calls_a_tool_of_a_model_without_a_search(
    gateway: Gateway, upstream: Upstream, tmp_path: Path, backend: str
):
    needs_codex()
    model = f"gpt-5.4-all-{backend}"
    turns = codex_turns(backend)[1:]
    answer(upstream, model, *turns)
    said = codex(tmp_path, gateway, f"{backend}/{model}", socket=False).exec(PROMPT, "-c", "approval_policy=never")
    assert (said.messages, said.errors) == ([ANSWER], [])
    asked = turns_of(upstream, model)
    assert len([name for name in names(asked[0]) if name.startswith("mcp__shed__")]) == 60
    assert SEEN in json.dumps(history(asked[-1]))


# Claude Code


@EVERY_BACKEND
def test_claude_code_finds_and_calls_a_tool(gateway: Gateway, upstream: Upstream, tmp_path: Path, backend: str):
    needs_claude(tmp_path)
    model = f"searching-{backend}"
    seek = Use("c1", "ToolSearch", json.dumps({"query": f"select:{TOOL}", "max_results": 3}))
    answer(upstream, model, [seek], [COUNT], [Words(ANSWER)])
    server = {"mcpServers": {"shed": {"command": sys.executable, "args": [str(SHED)]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(server))
    launched = set_up_client(
        Settings(), CLIENTS["claude"], "", GatewayAddress(gateway.url)
    ).variables  # what `toolwire launch claude` sets
    claude = Claude(tmp_path, gateway.url, ENABLE_TOOL_SEARCH=launched["ENABLE_TOOL_SEARCH"])
    options = ("--mcp-config", str(tmp_path / "mcp.json"), "--allowedTools", TOOL)
    said = claude.run(f"{backend}/{model}", PROMPT, *options)
    assert (said.answer, said.code) == (ANSWER, 0)
    asked = turns_of(upstream, model)[-3:]
    assert SEEN in json.dumps(history(asked[-1]))
    first, second, third = map(names, asked)
    assert TOOL not in first
    if backend == "messages":  # which gets all of it as the client wrote it
        [deferred] = [tool for tool in asked[1].body["tools"] if tool["name"] == TOOL]
        assert deferred["defer_loading"] is True
        assert "tool_reference" in json.dumps(history(asked[1]))
        return
    assert second == third == [*first, TOOL]
    assert f"The tool {TOOL} can be called." in json.dumps(history(asked[1]))
    assert not any(word in json.dumps([each.body for each in asked]) for word in ("tool_reference", '"defer_loading"'))
    grow(asked)
