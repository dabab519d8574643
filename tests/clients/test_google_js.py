"""@google/genai and the AI SDK's provider for Google: each reads the turns in a node process and reports what it saw."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.clients.loops import SEAL, item, loop
from tests.clients.test_js_clients import FOLDER, TURNS, needs_packages
from tests.conftest import needs
from tests.sdk.turns import ANSWER
from tests.support.upstream import Upstream

FINISH = {"stop": "STOP", "tool_calls": "STOP"}
CLIENTS = ["google-genai", "google-ai-sdk"]


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def seen(client: str, base_url: str, upstream: Upstream) -> dict[str, Any]:
    needs("node", "npm")
    needs_packages()
    upstream.replies[client] = loop(client, "get_weather", '{"city":"Paris"}', "It is sunny.")
    environment = {"PATH": os.environ["PATH"], "MODELS": f"up/{client}"}
    command = ["node", f"{client}.mjs", base_url, *TURNS]
    ended = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


@pytest.mark.parametrize("turn", [turn for turn in TURNS if "error" not in TURNS[turn]])
def test_a_turn_arrives_whole(seen: dict[str, Any], turn: str):
    assert seen[turn] == {**TURNS[turn], "finish": FINISH[TURNS[turn]["finish"]]}


@pytest.mark.parametrize("turn", [turn for turn in TURNS if "error" in TURNS[turn]])
def test_an_error_is_seen_as_an_error(seen: dict[str, Any], turn: str):
    assert TURNS[turn]["error"] in seen[turn].get("error", "")


def test_a_tool_call_and_its_result_make_an_answer(seen: dict[str, Any]):
    assert seen["round-trip"]["text"] == ANSWER


def test_a_thought_returns_to_its_server(seen: dict[str, Any], client: str, upstream: Upstream):
    assert seen[f"up/{client}"]["text"] == "It is sunny."
    asked = upstream.of(client)[-1]
    assert item(asked, "reasoning")["encrypted_content"] == SEAL
    assert item(asked, "function_call")["call_id"] == item(asked, "function_call_output")["call_id"] == f"call_{client}"
    assert "Sunny, 21" in item(asked, "function_call_output")["output"]
