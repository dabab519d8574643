"""openai-node, LangChain JS and the Vercel AI SDK: each reads the turns in a node process and reports what it saw."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs
from tests.sdk.turns import ANSWER

FOLDER = Path(__file__).parent / "js"
PARIS = {"id": "c1", "name": "get_weather", "arguments": {"city": "Paris"}}
ROME = {"id": "c2", "name": "get_weather", "arguments": {"city": "Rome"}}
NOW = {"id": "c1", "name": "get_time", "arguments": {}}
SNOW = {"id": "c1", "name": "get_weather", "arguments": {"city": 'Zürich ☃ 東京 \U0001f326\ufe0f "quoted" \\ \n'}}

TURNS: dict[str, dict[str, Any]] = {
    "text": {"text": "Hello, world.", "calls": [], "finish": "stop"},
    "reasoning": {"text": "Done.", "calls": [], "finish": "stop"},
    "one-call": {"text": "", "calls": [PARIS], "finish": "tool_calls"},
    "parallel": {"text": "", "calls": [PARIS, ROME], "finish": "tool_calls"},
    "interleaved": {"text": "", "calls": [PARIS, ROME], "finish": "tool_calls"},
    "no-arguments": {"text": "", "calls": [NOW], "finish": "tool_calls"},
    "text-and-call": {"text": "One moment.", "calls": [PARIS], "finish": "tool_calls"},
    "call-and-text": {"text": "Let us see.", "calls": [PARIS], "finish": "tool_calls"},
    "unicode": {"text": "", "calls": [SNOW], "finish": "tool_calls"},
    "error-middle": {"error": "It broke."},
    "error-after-call": {"error": "It broke."},
    "unauthorized": {"error": "This key is not mine."},
}


@pytest.fixture(scope="module", params=["openai", "langchain", "ai-sdk"])
def seen(request: pytest.FixtureRequest, base_url: str) -> dict[str, Any]:
    needs("node", "npm")
    needs_packages()
    command = ["node", f"{request.param}.mjs", base_url, *TURNS]
    environment = {"PATH": os.environ["PATH"]}
    ended = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


def needs_packages() -> None:
    if not (FOLDER / "node_modules").is_dir():
        pytest.skip("needs the packages that `make clients` installs")


@pytest.mark.parametrize("turn", [turn for turn in TURNS if "error" not in TURNS[turn]])
def test_a_turn_arrives_whole(seen: dict[str, Any], turn: str):
    assert seen[turn] == TURNS[turn]


@pytest.mark.parametrize("turn", [turn for turn in TURNS if "error" in TURNS[turn]])
def test_an_error_is_seen_as_an_error(seen: dict[str, Any], turn: str):
    assert TURNS[turn]["error"] in seen[turn].get("error", "")


def test_the_model_answers_from_a_tool_result(seen: dict[str, Any]):
    assert seen["round-trip"] == {"text": ANSWER}
