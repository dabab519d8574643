"""The real Claude Code and the real Codex, started by `toolwire launch`, with configurations of their own that say otherwise."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import claude, codex
from tests.clients.test_js_clients import FOLDER
from tests.support import processes
from tests.support.gateway import Gateway

PYTHON = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
ELSEWHERE = "http://127.0.0.1:9"
CLAUDE_SETTINGS = {
    "model": "claude-elsewhere",
    "env": {"ANTHROPIC_BASE_URL": ELSEWHERE, "ANTHROPIC_AUTH_TOKEN": "other", "ANTHROPIC_MODEL": "other"},
}
CODEX_CONFIG = f"""
model = "other"
model_provider = "toolwire"
check_for_update_on_startup = false
[model_providers.toolwire]
name = "An older one"
base_url = "{ELSEWHERE}/v1"
env_key = "NOT_SET"
request_max_retries = 0
stream_max_retries = 0
"""


class User:
    """Somebody with both programs, each with a configuration of its own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "work"
        for each in (self.home / ".claude", self.home / ".codex", self.home / ".config" / "toolwire", self.folder):
            each.mkdir(parents=True)
        self.claude_settings = self.home / ".claude" / "settings.json"
        self.claude_settings.write_text(json.dumps(CLAUDE_SETTINGS))
        self.codex_config = self.home / ".codex" / "config.toml"
        self.codex_config.write_text(CODEX_CONFIG)
        self.configure(8812)

    def configure(self, port: int, more: str = "") -> None:
        path = self.home / ".config" / "toolwire" / "toolwire.toml"
        path.write_text(f'[server]\nport = {port}\n[store]\nurl = "memory:"\n{more}')

    def launch(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = claude.environment(self.home)
        return processes.run(
            [sys.executable, "-m", "toolwire", "launch", *arguments],
            cwd=self.folder,
            env={**environment, "PATH": f"{FOLDER / 'node_modules/.bin'}:{environment['PATH']}", **PYTHON},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with a key."""
    folder = tmp_path / "running"
    folder.mkdir()
    gateway = Gateway(folder, KEY)
    yield gateway
    gateway.stop()


KEY = '[[keys]]\nname = "me"\nkey = "gate-key"\n'


def result_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_claude_code_on_a_gateway_of_its_own(user: User):
    claude.needs_claude(user.home)
    done = user.launch("claude", "-p", "hi", "--output-format", "json")
    result = result_of(done)
    assert (result["is_error"], set(result["modelUsage"])) == (False, {"demo"})
    assert done.stderr.startswith("toolwire: claude with demo on a gateway of its own, http://127.0.0.1:")
    assert json.loads(user.claude_settings.read_text()) == CLAUDE_SETTINGS


def test_claude_code_on_a_gateway_that_runs_with_a_key_and_a_model_that_was_named(user: User, running: Gateway):
    claude.needs_claude(user.home)
    user.configure(int(running.url.rpartition(":")[2]), KEY)
    done = user.launch("claude", "-p", "hi", "--output-format", "json", "--model", "demo-slow")
    assert set(result_of(done)["modelUsage"]) == {"demo-slow"}
    assert {turn["key"] for turn in running.wait_for_turns(1)} == {"me"}
    assert {turn["dialect"] for turn in running.turns()} == {"messages"}


def test_the_exit_code_of_claude_code_is_passed_on(user: User):
    claude.needs_claude(user.home)
    assert user.launch("claude", "--no-such-option").returncode == 1


def events_of(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


CODEX = ("exec", "--json", "--skip-git-repo-check", "-s", "read-only")


def test_codex_on_a_gateway_of_its_own(user: User):
    codex.needs_codex()
    done = user.launch("codex", *CODEX, "hi")
    assert events_of(done)[-1]["type"] == "turn.completed"
    assert "toolwire: codex with demo on a gateway of its own, http://127.0.0.1:" in done.stderr
    assert user.codex_config.read_text() == CODEX_CONFIG


def test_codex_on_a_gateway_that_runs_with_a_key_and_a_model_that_was_named(user: User, running: Gateway):
    codex.needs_codex()
    user.configure(int(running.url.rpartition(":")[2]), KEY)
    done = user.launch("codex", *CODEX, "--model", "demo-slow", "hi")
    assert events_of(done)[-1]["type"] == "turn.completed"
    assert {(turn["key"], turn["model"], turn["dialect"]) for turn in running.turns()} == {
        ("me", "demo-slow", "responses")
    }
