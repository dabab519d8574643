"""OpenCode and Cline, started by `toolwire launch`, with configurations of their own that say otherwise."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.claude import environment
from tests.clients.test_js_clients import FOLDER, needs_packages
from tests.clients.test_launch import PYTHON
from tests.conftest import needs
from tests.support import processes

ELSEWHERE = "http://127.0.0.1:9/v1"


class Program(NamedTuple):
    """Where npm puts a program, the arguments for a prompt, and a configuration of the user's."""

    path: str
    arguments: tuple[str, ...]
    config: str
    settings: dict[str, Any]


PROGRAMS = {
    "opencode": Program(
        "opencode-linux-x64-baseline/bin/opencode",
        ("run",),
        ".config/opencode/opencode.json",
        {
            "$schema": "https://opencode.ai/config.json",  # else it adds this itself
            "model": "toolwire/other",
            "provider": {
                "toolwire": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": ELSEWHERE, "apiKey": "other"}}
            },
        },
    ),
    "cline": Program(
        "@cline/cli-linux-x64/bin/cline",
        (),
        ".cline/data/settings/providers.json",
        {
            "version": 1,
            "lastUsedProvider": "openai-compatible",
            "providers": {
                "openai-compatible": {
                    "settings": {"provider": "openai-compatible", "baseUrl": ELSEWHERE, "model": "other"},
                    "updatedAt": "2026-01-01T00:00:00.000Z",
                    "tokenSource": "manual",
                }
            },
        },
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_reads_a_file_for_the_demo_model(tmp_path: Path, name: str):
    program = PROGRAMS[name]
    needs("node", "npm")
    needs_packages()
    executable = FOLDER / "node_modules" / program.path
    if not executable.exists():
        pytest.skip("another platform: npm installs this program on Linux with x86-64 only")
    home, folder, log = tmp_path / "home", tmp_path / "work", tmp_path / "gateway.log"
    for path in (home / "bin", folder, (home / program.config).parent, home / ".config" / "toolwire"):
        path.mkdir(parents=True, exist_ok=True)
    (home / "bin" / name).symlink_to(executable)
    (home / program.config).write_text(json.dumps(program.settings))
    (home / ".config" / "toolwire" / "toolwire.toml").write_text('[server]\nport = 8813\n[store]\nurl = "memory:"\n')
    (folder / "hello.txt").write_text("heron\n")
    variables = environment(home)
    done = processes.run(
        [sys.executable, "-m", "toolwire", "launch", "--log", str(log), name, *program.arguments, "Read hello.txt"],
        cwd=folder,
        env={**variables, "PATH": f"{home / 'bin'}:{variables['PATH']}", **PYTHON},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "According to read" in done.stdout
    assert "heron" in done.stdout
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    turns = [line for line in lines if line["event"] == "turn"]
    assert {(turn["dialect"], turn["model"], turn["status"]) for turn in turns} == {("chat", "demo", 200)}
    assert [turn["reason"] for turn in turns if turn["has_tool_calls"]] == ["calls"]
    assert json.loads((home / program.config).read_text()) == program.settings
