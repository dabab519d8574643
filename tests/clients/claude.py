"""Claude Code as a user runs it: `claude -p`, with a home of its own and the gateway for Anthropic's API."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_js_clients import FOLDER, needs_packages
from tests.conftest import needs

QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
TOOLS = "Read,Bash"


class Said:
    """What one run of the CLI said and did."""

    def __init__(self, ended: subprocess.CompletedProcess[str]) -> None:
        self.code = ended.returncode
        self.events: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]

    @property
    def end(self) -> dict[str, Any]:
        return self.events[-1]

    @property
    def answer(self) -> str:
        return self.end["result"]

    def messages(self, role: str) -> list[dict[str, Any]]:
        return [event["message"] for event in self.events if event["type"] == role]

    def blocks(self, type: str) -> list[dict[str, Any]]:
        """What the model said, block by block."""
        blocks = [block for message in self.messages("assistant") for block in message["content"]]
        return [block for block in blocks if block["type"] == type]


class Claude:
    """A CLI in a folder of its own."""

    def __init__(self, folder: Path, url: str, **variables: str) -> None:
        self._home, self.folder = folder / "home", folder / "work"
        self._home.mkdir()
        self.folder.mkdir()
        self._variables = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "anything", **variables}

    def run(self, model: str, prompt: str, *options: str) -> Said:
        return Said(self._run(model, prompt, "--output-format", "stream-json", "--verbose", *options))

    def printed(self, model: str, prompt: str) -> str:
        """What a user sees of a run."""
        return self._run(model, prompt).stdout

    def _run(self, model: str, prompt: str, *options: str) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [program(), "-p", prompt, "--model", model, "--allowedTools", TOOLS, *options],
            cwd=self.folder,
            env=environment(self._home) | self._variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.stdout, ended.stderr
        return ended


def environment(home: Path) -> dict[str, str]:
    """Only what it needs; whoever is not on this machine cannot be reached."""
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "CLAUDE_CODE_TMPDIR": str(home), **QUIET, **nowhere}


def program() -> Path:
    """The native program, which npm picks for this machine; the script beside it only finds it."""
    [found] = FOLDER.glob("node_modules/@anthropic-ai/claude-code-*/claude")
    return found


def needs_claude(home: Path) -> None:
    """Skip a test where the CLI is missing or does not start."""
    needs("node", "npm")
    needs_packages()
    if not list(FOLDER.glob("node_modules/@anthropic-ai/claude-code-*/claude")):
        pytest.skip("needs the Claude Code that `make clients` installs")
    command = [program(), "--version"]
    ended = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode != 0:
        pytest.skip(f"needs a machine on which Claude Code starts: {ended.stderr.strip()}")
