"""The first things a user does."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from tests.support.fold import fold_chat
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, chat_body, read_sse, tool
from tests.support.upstream import Reply, Upstream


def test_streamed_and_plain_give_the_same_call(gateway: Gateway, upstream: Upstream, http: httpx.Client):
    upstream.replies["one-call"] = Reply(
        [stream(created(), text("Hm. "), call("c1", "find", '{"q":', '"x"}'), completed())]
    )
    tools = [tool("find", q={"type": "string"})]
    url = f"{gateway.base_url}/chat/completions"
    with http.stream("POST", url, json=chat_body("up/one-call", stream=True, tools=tools)) as response:
        folded = fold_chat(list(read_sse(response)))
    plain = http.post(url, json=chat_body("up/one-call", tools=tools)).json()["choices"][0]
    assert folded["message"]["tool_calls"] == plain["message"]["tool_calls"]
    assert folded["message"]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"q":"x"}'}
    assert (folded["finish"], plain["finish_reason"]) == ("tool_calls", "tool_calls")
    assert folded["message"]["content"] == plain["message"]["content"] == "Hm. "


SCRIPT = Path(__file__).parents[2] / "scripts" / "smoke.py"


@pytest.fixture(scope="module")
def smoke() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("smoke", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["smoke"] = module
    spec.loader.exec_module(module)
    return module


def test_the_smoke_test_needs_the_standard_library_alone():
    imported = [
        node for node in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imported if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_the_smoke_test_asks_any_model_of_a_gateway_over_every_api(smoke: ModuleType, gateway: Gateway, capsys):
    assert smoke.run(gateway.url, "", ["demo", "demo-use-tool"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 3 * 2 * 2
    assert all(line.endswith("  ok") for line in lines)


def test_the_smoke_test_says_what_is_wrong(smoke: ModuleType, gateway: Gateway, capsys):
    assert smoke.run(gateway.url, "", ["demo-refusal"]) is False
    assert smoke.run(gateway.url, "", ["nobody"]) is False
    said = capsys.readouterr().out
    assert "failed: the calls are []" in said
    assert "failed: 404" in said
