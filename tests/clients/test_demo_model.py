"""The real Claude Code and the real Codex on the demo model: what a new user types first gives a sensible turn."""

from pathlib import Path
from typing import Any

import pytest

from tests.clients.claude import Claude, needs_claude
from tests.clients.claude import Said as ClaudeSaid
from tests.clients.codex import Codex, needs_codex
from tests.clients.codex import Said as CodexSaid
from tests.support.gateway import Gateway

INTRODUCTION = "This is the demo model. You said: hi\n"


@pytest.fixture
def claude(gateway: Gateway, tmp_path: Path) -> Claude:
    needs_claude(tmp_path)
    claude = Claude(tmp_path, gateway.url)
    (claude.folder / "hello.txt").write_text("heron\n")
    return claude


@pytest.fixture
def codex(gateway: Gateway, tmp_path: Path) -> Codex:
    needs_codex()
    codex = Codex(tmp_path, gateway.base_url, "demo", socket=False)
    (tmp_path / "work" / "hello.txt").write_text("heron\n")
    return codex


def results(said: ClaudeSaid) -> list[dict[str, Any]]:
    return [
        block for message in said.messages("user") for block in message["content"] if block["type"] == "tool_result"
    ]


@pytest.mark.parametrize(
    ("prompt", "name", "arguments", "found"),
    [
        ("Read hello.txt", "Read", {"file_path": "{folder}/hello.txt"}, "heron"),
        ("run `ls -la`", "Bash", {"command": "ls -la"}, "hello.txt"),
        ("list the files", "Bash", {"command": "ls"}, "hello.txt"),
        ("Run `cat hello.txt` and tell me which bird it is.", "Bash", {"command": "cat hello.txt"}, "heron"),
    ],
)
def test_claude_code_does_what_is_asked(claude: Claude, prompt: str, name: str, arguments: dict[str, str], found: str):
    said = claude.run("demo", prompt)
    [call] = said.blocks("tool_use")
    expected = {key: value.format(folder=claude.folder) for key, value in arguments.items()}
    assert (call["name"], call["input"]) == (name, expected)
    [result] = results(said)
    assert not result.get("is_error"), "Claude Code checks arguments against its schema"
    assert said.code == 0
    assert said.answer.startswith(f"According to {name}: ")
    assert found in said.answer
    assert "system-reminder" not in said.answer


def test_claude_code_is_told_what_this_model_is_and_what_to_try(claude: Claude):
    said = claude.run("demo", "hi")
    assert said.blocks("tool_use") == []
    assert said.answer.startswith(INTRODUCTION)
    assert "Try “Read README.md” or “List the files” or “Run `ls -la`”." in said.answer


def test_claude_code_goes_on_in_a_session(claude: Claude):
    claude.run("demo", "Read hello.txt")
    said = claude.run("demo", "hi", "--continue")
    assert said.blocks("tool_use") == []
    assert said.answer.startswith(INTRODUCTION)


@pytest.mark.parametrize(
    ("prompt", "command", "found"),
    [
        ("Read hello.txt", "cat hello.txt", "heron\n"),
        ("run `ls -la`", "ls -la", " hello.txt\n"),
        ("list the files", "ls", "hello.txt\n"),
    ],
)
def test_codex_does_what_is_asked(codex: Codex, prompt: str, command: str, found: str):
    said: CodexSaid = codex.exec(prompt)
    [ran] = said.items("command_execution")
    assert command in ran["command"]
    assert ran["exit_code"] == 0
    assert ran["aggregated_output"].endswith(found)
    [message] = said.messages
    assert message.startswith("According to exec_command: ")
    assert message.endswith(found)
    assert (said.errors, said.code) == ([], 0)


def test_codex_is_told_what_this_model_is_and_what_to_try(codex: Codex):
    said = codex.exec("hi")
    assert said.items("command_execution") == []
    [message] = said.messages
    assert message.startswith(INTRODUCTION)
    assert "Try “Read README.md” or “List the files” or “Run `ls -la`”." in message
