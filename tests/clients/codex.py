"""The Codex CLI as a user runs it: `codex exec`, with a home of its own and a provider that is the gateway."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_js_clients import FOLDER, needs_packages
from tests.conftest import needs

PROGRAM = FOLDER / "node_modules/.bin/codex"

CONFIG = """
model = "{model}"
model_provider = "gateway"
check_for_update_on_startup = false
cli_auth_credentials_store = "file"
[analytics]
enabled = false
[feedback]
enabled = false
[model_providers.gateway]
name = "{provider}"
base_url = "{base_url}"
wire_api = "responses"
supports_websockets = {websockets}
request_max_retries = 0
stream_max_retries = 1
"""


class Said:
    """What one run of the CLI said, did and left behind."""

    def __init__(self, ended: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.code = ended.returncode
        self.log = ended.stderr
        self.folder = folder
        """Where it worked."""
        self.events: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]

    def items(self, type: str) -> list[dict[str, Any]]:
        done = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item for item in done if item["type"] == type]

    @property
    def messages(self) -> list[str]:
        return [item["text"] for item in self.items("agent_message")]

    @property
    def commands(self) -> list[tuple[str, int]]:
        """What each command that it ran put out, and the code it ended with."""
        return [(item["aggregated_output"], item["exit_code"]) for item in self.items("command_execution")]

    @property
    def errors(self) -> list[str]:
        return [event["message"] for event in self.events if event["type"] == "error"]

    @property
    def end(self) -> dict[str, Any]:
        return self.events[-1]


class Codex:
    """A CLI with one configuration; its sessions can be resumed."""

    def __init__(
        self, folder: Path, base_url: str, model: str, *, socket: bool, provider: str = "gateway", more: str = ""
    ) -> None:
        self._home, self._folder = folder / "home", folder / "work"
        self._home.mkdir()
        self._folder.mkdir()
        websockets = "true" if socket else "false"
        config = CONFIG.format(model=model, provider=provider, base_url=base_url, websockets=websockets)
        (self._home / "config.toml").write_text(config + more)

    def exec(self, *arguments: str) -> Said:
        """Run one turn without Codex's sandbox, which not every machine has: the commands are those of our scripts."""
        command = [PROGRAM, "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", *arguments]
        ended = subprocess.run(
            command,
            cwd=self._folder,
            env=environment(self._home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.stdout, ended.stderr
        return Said(ended, self._folder)


def environment(home: Path) -> dict[str, str]:
    """Only what it needs; whoever is not on this machine cannot be reached."""
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), **nowhere}


def needs_codex() -> None:
    """Skip a test where the CLI is missing."""
    needs("node", "npm")
    needs_packages()
    if not PROGRAM.exists() or not list(FOLDER.glob("node_modules/@openai/codex-*")):
        pytest.skip("needs the Codex CLI that `make clients` installs")
