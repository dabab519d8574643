"""Gemini CLI as a user runs it, with models of every kind of server behind the gateway."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.histories import calls, results, thoughts
from tests.clients.servers import KINDS, Json, Thought, Use, Words
from tests.clients.stage import Stage
from tests.clients.test_js_clients import FOLDER, needs_packages
from tests.clients.test_launch import PYTHON
from tests.conftest import needs
from tests.support import processes

PROGRAM = FOLDER / "node_modules" / ".bin" / "gemini"
READ = Use("call_read", "read_file", '{"file_path":"note.txt"}')
LIST = Use("call_list", "list_directory", '{"dir_path":"."}')
ANSWER = "The note says heron."


@pytest.fixture(scope="module", autouse=True)
def needs_gemini() -> None:
    needs("node", "npm")
    needs_packages()
    if not PROGRAM.exists():
        pytest.skip("needs the Gemini CLI that `make clients` installs")


def environment(home: Path) -> dict[str, str]:
    """Only what it needs; other machines cannot be reached."""
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    (home / ".gemini").mkdir(parents=True, exist_ok=True)
    settings = {"privacy": {"usageStatisticsEnabled": False}, "security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GEMINI_CLI_TRUST_WORKSPACE": "true", **nowhere}


def run(folder: Path, url: str, model: str) -> list[Json]:
    """What it reports of one prompt."""
    work = folder / "work"
    work.mkdir()
    (work / "note.txt").write_text("heron\n")
    variables = {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "anything"}
    done = processes.run(
        [str(PROGRAM), "-m", model, "-p", "Read the note.", "-o", "stream-json", "--approval-mode", "yolo"],
        cwd=work,
        env={**environment(folder / "home"), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def said(events: list[Json]) -> str:
    return "".join(event["content"] for event in events if event.get("role") == "assistant")


@pytest.mark.parametrize("kind", KINDS)
def test_parallel_calls_with_a_thought_before_them_make_an_answer(stage: Stage, tmp_path: Path, kind: str):
    model = f"gemini-cli-{kind}"
    stage.script(model, [Thought("**Looking**\n\nHm.", "signed"), Words("I look."), READ, LIST], [Words(ANSWER)])
    events = run(tmp_path, stage.gateway.url, f"{kind}/{model}")
    assert said(events) == "I look." + ANSWER
    assert [event["status"] for event in events if event["type"] == "tool_result"] == ["success"] * 2
    first, second = stage.asked(model, kind)
    assert calls(first) == []
    assert [(id, name) for id, name, _ in calls(second)] == [(use.id, use.name) for use in (READ, LIST)]
    assert [id for id, _ in results(second)] == [READ.id, LIST.id]
    assert "heron" in str(results(second)[0][1])
    assert thoughts(second)
    assert ("signed" in json.dumps(second.body)) == (kind != "chat")


def test_its_model_of_a_turn_is_chosen_by_launch(tmp_path: Path):
    home, folder, log = tmp_path / "home", tmp_path / "work", tmp_path / "gateway.log"
    variables: dict[str, Any] = environment(home)
    for path in (home / "bin", folder, home / ".config" / "toolwire"):
        path.mkdir(parents=True)
    (home / "bin" / "gemini").symlink_to(PROGRAM)
    (home / ".config" / "toolwire" / "toolwire.toml").write_text('[server]\nport = 8814\n[store]\nurl = "memory:"\n')
    (folder / "hello.txt").write_text("heron\n")
    done = processes.run(
        [sys.executable, "-m", "toolwire", "launch", "--log", str(log), "gemini", "--approval-mode", "yolo", "-p", "Read hello.txt"],
        cwd=folder,
        env={**variables, "PATH": f"{home / 'bin'}:{variables['PATH']}", **PYTHON},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "According to read_file: heron" in done.stdout
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    turns = [line for line in lines if line["event"] == "turn"]
    assert {(turn["dialect"], turn["model"], turn["status"]) for turn in turns} == {("gemini", "demo", 200)}
