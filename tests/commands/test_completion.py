"""Completion in the shell, and a start that loads no more than it needs."""

import subprocess
import sys

from tests.commands.desk import Desk


def completed(desk: Desk, line: str, **more: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    variables = {"_TOOLWIRE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return desk.run(**{**variables, **more}).stdout.split()


def test_commands_programs_presets_and_models_are_offered(desk: Desk):
    desk.configure('[[backends]]\npreset = "ollama"\nmodels = ["qwen3", "gemma*"]\naliases = { quick = "qwen3" }\n')
    assert completed(desk, "toolwire la") == ["launch"]
    assert completed(desk, "toolwire launch c") == ["claude", "codex"]
    assert completed(desk, "toolwire env o") == ["openai"]
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
    assert "_TOOLWIRE_COMPLETE=complete_bash" in done.stdout, done.stderr


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
            assert f"│ {command} " in said
    assert desk.good() == desk.good("-h")
