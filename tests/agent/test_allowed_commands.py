"""Commands that are allowed by their prefix."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from toolwire.agent.allowed_commands import AllowedCommands, prefix_of, split_line
from toolwire.agent.terminal.questions import Questions
from toolwire.agent.terminal.screen import LiveCanvas
from toolwire.agent.terminal.view import View
from toolwire.agent.tools import builtin
from toolwire.turns.tools.call import FunctionPayload, LocalShellPayload, ToolCall

TOOLS = {tool.name: tool for tool in builtin(["bash", "exec", "local_shell"]).tools}
GIT = [("git", "status"), ("git", "diff")]


def shell(line: str, **more: Any) -> ToolCall:
    return ToolCall("Bash", "c1", FunctionPayload(json.dumps({"command": line, **more})))


def allowed(folder: Path, *prefixes: tuple[str, ...]) -> AllowedCommands:
    commands = AllowedCommands(lambda: folder, folder / "state.jsonl")
    commands.add(prefixes, in_folder=False)
    return commands


@pytest.mark.parametrize(
    "line",
    [
        "git status",
        "  git\tstatus --short 'a $(b)' \"it's; > x\" *.py {a,b}",
        "g'it' \"status\"",
        "git status && git diff HEAD | git status || git diff; git status\ngit diff\n",
        r"git status a\ b \; \$x",
    ],
)
def test_a_prefix_allows_whatever_follows_it(tmp_path: Path, line: str) -> None:
    assert allowed(tmp_path, *GIT).allows(shell(line))


@pytest.mark.parametrize(
    "line",
    [
        "git push",
        "git -c alias.status='!rm x' status",
        "git status; rm x",
        "git status && rm x",
        "git status | rm x",
        "git status\nrm x",
        "git status & rm x",
        "git status &",
        "git status |& git diff",
        "git status > x",
        "git status 2>&1",
        "git diff < x",
        "git diff <(rm x)",
        "git status $(rm x)",
        'git status "$(rm x)"',
        "git status `rm x`",
        'git status "`rm x`"',
        "git status $x",
        "git status $'a'",
        "git status ${x:-$(rm x)}",
        "(git status)",
        "{ git status; }",
        "! git status",
        "GIT_PAGER=x git status",
        "X+=1 git status",
        "A[$(rm x)]=1 git status",
        "env git status",
        "git\u00a0status",
        "git status\u2028rm x",
        "git status\rrm x",
        "git status \\\nrm x",
        "git status # x",
        "git 'status",
        'git "status',
        "git status \\",
        "git status \x00",
        "/tmp/git status",
        "git stat[u]s",
        "git {status,x}",
        "",
        " ;; ",
    ],
)
def test_a_line_in_which_anything_else_happens_is_not_allowed(tmp_path: Path, line: str) -> None:
    assert not allowed(tmp_path, *GIT).allows(shell(line))


@pytest.mark.parametrize(
    ("line", "prefix"),
    [
        ("git status -s", "git status"),
        ("ls -la", "ls"),
        ("./check.sh a", "./check.sh"),
        ("npm run build -- x", "npm run build"),
        ("npm test", "npm test"),
        ("uv run pytest -q", "uv run pytest"),
        ("python3.12 -m pytest tests", "python3.12 -m pytest"),
        ("python tools/make.py x", "python tools/make.py"),
        ("git", None),
        ("git -C x status", None),
        ("python -c x", None),
        ("python", None),
        ("/usr/bin/python3 -", None),
        ("uv run python x.py", None),
        ("docker exec x", "docker exec x"),
        ("npm exec sh", None),
        ("env ls", None),
        ("sudo ls", None),
        ("/usr/bin/xargs ls", None),
        ("bash check.sh", None),
        ("find . -delete", None),
        ("cd x", None),
        ("export PATH=x", None),
        ("eval ls", None),
        ("then ls", None),
        ("test -v 'a[$(rm x)]'", None),
        ("~/check", None),
        ("*", None),
        ("'a b'", None),
    ],
)
def test_the_prefix_of_a_command(line: str, prefix: str | None) -> None:
    commands = split_line(line)
    assert commands is not None
    assert prefix_of(commands[0]) == (None if prefix is None else tuple(prefix.split()))


def test_every_command_of_a_line_is_offered_or_none(tmp_path: Path) -> None:
    commands = allowed(tmp_path, ("cat",))
    assert commands.offers(shell("git status && cat x | head -3; git status")) == [("git", "status"), ("head",)]
    assert commands.offers(shell("git status && sudo ls")) == []
    assert commands.offers(shell("a; b; c; d")) == []
    assert commands.offers(shell("echo $(ls)")) == []
    assert commands.offers(ToolCall("Write", "c1", FunctionPayload('{"path": "a", "content": "git status"}'))) == []


def test_the_argument_lists_of_local_shell_are_read_like_lines(tmp_path: Path) -> None:
    commands = allowed(tmp_path, *GIT)

    def allows(*words: str, **env: str) -> bool:
        return commands.allows(ToolCall("local_shell", "c1", LocalShellPayload(words, env=env)))

    assert allows("git", "status", "; rm x")
    assert allows("bash", "-lc", "git status && git diff")
    assert not allows("bash", "-lc", "git status; rm x")
    assert not allows("bash", "-ic", "git status")
    assert not allows("git", "status", PATH="/tmp")
    assert not allows()


def test_the_last_of_two_equal_arguments_counts_as_it_does_for_the_tool(tmp_path: Path) -> None:
    twice = ToolCall("Bash", "c1", FunctionPayload('{"command": "git status", "command": "rm x"}'))
    assert not allowed(tmp_path, *GIT).allows(twice)


def test_what_is_kept_for_a_folder_is_known_there_and_nowhere_else(tmp_path: Path) -> None:
    here, there, state = tmp_path / "here", tmp_path / "there", tmp_path / "state/allowed.jsonl"
    AllowedCommands(lambda: here, state).add(GIT[:1], in_folder=True)
    assert AllowedCommands(lambda: here, state).allows(shell("git status"))
    assert not AllowedCommands(lambda: there, state).allows(shell("git status"))
    assert state.stat().st_mode & 0o777 == 0o600
    with state.open("a") as file:  # a prefix that is never offered, and half a line
        file.write(json.dumps({"folder": str(here), "prefix": ["sudo"]}) + '\n{"folder":')
    assert [*AllowedCommands(lambda: here, state)] == [("git", "status")]
    assert not AllowedCommands(lambda: here, state).allows(shell("sudo ls"))


def test_nothing_is_kept_in_a_folder_that_the_tools_may_change(tmp_path: Path) -> None:
    state = tmp_path / "state/allowed.jsonl"
    commands = AllowedCommands(lambda: tmp_path, state)
    assert not commands.can_keep
    commands.add(GIT, in_folder=True)
    assert not AllowedCommands(lambda: tmp_path, state).allows(shell("git status"))


def test_a_question_offers_a_prefix_and_does_not_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "work"
    folder.mkdir()
    answers: list[str] = []
    canvas = LiveCanvas(Console(file=io.StringIO(), width=200))

    async def answer(question: str) -> str:
        return answers.pop(0)

    canvas.ask = answer

    def ask(line: str, **more: Any) -> bool | str:
        return asyncio.run(questions.ask(TOOLS["Bash"], shell(line, **more)))

    questions = Questions(View(canvas), lambda: folder, lambda: None)
    answers += ["p", "f"]
    assert ask("git status") is True
    assert ask("git status -s") is True
    assert ask("git diff && git status") is True
    shown = canvas.console.file.getvalue()  # type: ignore[attr-defined]
    assert "always allow `git status`: [p] until the program ends, [f] in this folder\n" in shown
    assert "always allow `git diff`: " in shown
    questions = Questions(View(canvas), lambda: folder, lambda: None)  # the next program
    answers += ["n"]
    assert ask("git diff") is True
    assert ask("git status") == ""
    answers += ["p", "n"]
    assert ask("git diff > x") == "p", "nothing is offered, so it is a reason"
    assert ask("git diff", cwd="/") == "", "it wants more than usual"
    assert not answers
