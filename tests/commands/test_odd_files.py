"""A link that leads nowhere, a pipe or a device in place of a file is one line and exit code 2, and never a wait."""

import os
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.commands.desk import Desk

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="another platform: has no pipes and devices as files")


def loop(path: Path) -> None:
    other = path.with_name("other")
    other.symlink_to(path)
    path.symlink_to(other)


MADE: dict[str, Callable[[Path], None]] = {
    "dangling link": lambda path: path.symlink_to(path.with_name("nothing")),
    "loop of links": loop,
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": os.mkdir,
}
WORDS = {
    "dangling link": ("there is no such file", "No such file"),
    "loop of links": ("symbolic links",),
    "pipe": ("it is a pipe, and a regular file is needed",),
    "device": ("it is a device, and a regular file is needed", "is not read: others may write"),
    "directory": ("it is a directory", "Is a directory"),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "serve": ("serve", "--port", "0", "--config", "FILE"),
    "config": ("config", "--config", "FILE"),
    "models": ("models", "--config", "FILE"),
    "env": ("env", "codex", "--config", "FILE"),
    "store": ("store", "check", "--config", "FILE"),
    "check": ("check", "--file", "FILE"),
    "replay": ("replay", "FILE"),
    "import": ("store", "import", "FILE"),
    "mcp": ("run", "--mcp", "FILE", "hello"),
}


def is_one_line(said: str, kind: str) -> bool:
    lines = said.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("toolwire: ") and any(words in lines[0] for words in WORDS[kind])


READ = ("replay", "directory")
"""What a command is made for: a directory of recordings."""


@pytest.mark.parametrize(("command", "kind"), [each for each in product(COMMANDS, MADE) if each != READ])
def test_a_command_with_such_a_file(desk: Desk, command: str, kind: str):
    path = desk.folder / "file.toml"
    MADE[kind](path)
    arguments = [str(path) if each == "FILE" else each for each in COMMANDS[command]]
    done = desk.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert is_one_line(done.stderr, kind), done.stderr


@pytest.mark.parametrize("kind", MADE)
def test_serve_with_such_a_file_in_its_directory(desk: Desk, kind: str):
    MADE[kind](desk.folder / "toolwire.toml")
    done = desk.run("serve", "--port", "0")
    assert done.returncode == 2
    assert is_one_line(done.stderr, kind), done.stderr


@pytest.mark.parametrize("kind", MADE)
def test_the_configuration_of_the_user_may_be_such_a_file_too(desk: Desk, kind: str):
    path = desk.folder / "config" / "toolwire" / "toolwire.toml"
    path.parent.mkdir(parents=True)
    MADE[kind](path)
    for command in ("serve", "config"):
        done = desk.run(command, XDG_CONFIG_HOME=str(desk.folder / "config"))
        assert done.returncode == 2
        assert is_one_line(done.stderr, kind), done.stderr
