"""Completion in the shell, and a start that loads no more than it needs."""

import re
import subprocess
import sys

import pytest

from tests.commands.desk import Desk


def completed(desk: Desk, line: str, **more: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    variables = {"_TOOLWIRE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return [each.removeprefix("plain,") for each in desk.run(**{**variables, **more}).stdout.split()]


def test_commands_programs_presets_and_models_are_offered(desk: Desk):
    desk.configure('[[backends]]\npreset = "ollama"\nmodels = ["qwen3", "gemma*"]\naliases = { quick = "qwen3" }\n')
    assert completed(desk, "toolwire la") == ["launch"]
    assert completed(desk, "toolwire launch c") == ["claude", "codex", "cline", "crush"]
    assert completed(desk, "toolwire env o") == ["opencode", "openai"]
    assert completed(desk, "toolwire init --preset l") == ["llamacpp", "lmstudio"]
    assert completed(desk, "toolwire env claude --model q") == ["qwen3", "quick"]


def test_a_wrong_configuration_offers_no_models_and_no_error(desk: Desk):
    desk.configure("[server\n")
    assert completed(desk, "toolwire env claude --model d") == []


def test_the_script_for_a_shell_is_shown(desk: Desk):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m toolwire --show-completion; true"],
        env={**desk.environment, "SHELL": "/bin/bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "_TOOLWIRE_COMPLETE=bash_complete" in done.stdout, done.stderr


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_the_script_is_installed_once(desk: Desk, shell: str, file: str):
    (desk.home / file).write_text("alias l=ls")
    for _ in range(2):
        done = desk.run("--install-completion", SHELL=f"/bin/{shell}")
        assert done.returncode == 0, done.stderr
    script = desk.home / ".local/share/toolwire" / f"toolwire.{shell}"
    assert f"_TOOLWIRE_COMPLETE={shell}_complete" in script.read_text()
    [before, line] = (desk.home / file).read_text().splitlines()
    assert (before, line.endswith(f". {script}")) == ("alias l=ls", True)


def test_fish_finds_the_script_by_itself(desk: Desk):
    assert desk.run("--install-completion", SHELL="/usr/bin/fish").returncode == 0
    assert "_TOOLWIRE_COMPLETE=fish_complete" in (desk.home / ".config/fish/completions/toolwire.fish").read_text()


def test_a_shell_without_completion_is_one_line(desk: Desk):
    for option in ("--install-completion", "--show-completion"):
        done = desk.run(option, SHELL="/bin/tcsh")
        said = "toolwire: completion: SHELL is 'tcsh', which is not one of bash, zsh, fish\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_bash_completes_by_the_installed_script(desk: Desk):
    desk.run("--install-completion", SHELL="/bin/bash")
    program = desk.folder / "toolwire"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m toolwire "$@"\n')
    program.chmod(0o755)
    line = (
        f". ~/.bashrc; COMP_WORDS=(toolwire la); COMP_CWORD=1; _toolwire_completion {program}; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        ["bash", "-c", line], env=desk.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "launch\n", done.stderr


def test_the_version_needs_neither_a_server_nor_a_client(desk: Desk):
    show = (
        "import sys; sys.argv = ['toolwire', '--version']\n"
        "from toolwire.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sorted(sys.modules))"
    )
    command = [sys.executable, "-c", show]
    done = subprocess.run(command, env=desk.environment, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"aiohttp", "asyncio", "uvicorn", "starlette", "rich", "sqlite3", "mcp", "jsonschema"}


def test_help_names_every_command(desk: Desk):
    for option in ("--help", "-h"):
        said = desk.good(option)
        for command in ("serve", "launch", "env", "init", "models", "doctor", "config", "run", "check", "replay"):
            assert re.search(rf"^  {command} +[A-Z]", said, re.MULTILINE), command
        assert "..." not in said.partition("Commands:")[2], "a description is cut short"
    assert desk.good() == desk.good("-h")
