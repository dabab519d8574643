"""The sandbox for commands. Nothing outside of it is touched: what it must refuse is tried in folders of the test."""

import json
import platform
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_command import Run, desk, run
from tests.agent.test_command import bash as ask_for
from toolwire.agent import Agent, AgentConfig, ToolCall
from toolwire.agent import sandbox as module
from toolwire.agent.sandbox import HINT, Sandbox, choose_sandbox, find_fault
from toolwire.agent.tools import builtin
from toolwire.testing import Calls, ScriptedModel

__all__ = ["desk", "run"]  # fixtures
FAULT = find_fault(Sandbox("Landlock")) if sys.platform == "linux" else "not Linux"
needs_landlock = pytest.mark.skipif(bool(FAULT), reason=f"another platform: {FAULT}")
CLOSED = "import socket; socket.socket()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, beside one that is not writable: no other directories are temporary."""
    for name in ("work", "temporary", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(module, "TEMPORARY", ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "other/file").write_text("kept\n")
    return tmp_path / "work"


def sh(folder: Path, line: str, **options: bool) -> "subprocess.CompletedProcess[str]":
    argv = (*Sandbox("Landlock", **options).argv(folder), "sh", "-c", line)
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@needs_landlock
def test_a_command_writes_in_the_folder_and_in_temporary_directories(folder: Path) -> None:
    line = "mkdir a && echo x > a/b && mv a c && ln c/b d && rm d && echo y > ../temporary/e && cat ../other/file c/b"
    ran = sh(folder, line)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "kept\nx\n", "")
    assert sh(folder, "echo x > /dev/null; echo y > /dev/stderr").stderr == "y\n"


@needs_landlock
@pytest.mark.parametrize("writes", [True, False], ids=["workspace", "read-only"])
@pytest.mark.parametrize(
    "line",
    [
        "echo x > ../other/new",
        "echo x >> ../other/file",
        "truncate -s 0 ../other/file",
        "rm ../other/file",
        "mv ../other/file .",
        "mv link ../other/link",
        "mkdir ../other/new",
        "ln -s x ../other/new",
        "echo x > link/file",
        "mkfifo ../other/new",
        "env sh -c 'setsid sh -c \"echo x > ../other/new\"'",
    ],
)
def test_a_command_changes_nothing_elsewhere(folder: Path, line: str, writes: bool) -> None:
    (folder / "link").symlink_to("../other")
    assert sh(folder, line, writes=writes).returncode
    assert [each.name for each in (folder.parent / "other").iterdir()] == ["file"]
    assert (folder.parent / "other/file").read_text() == "kept\n"


@needs_landlock
def test_a_read_only_sandbox_keeps_the_folder_too(folder: Path) -> None:
    assert sh(folder, "echo x > new", writes=False).returncode
    assert sh(folder, "echo x > ../temporary/new", writes=False).returncode
    assert sh(folder, "echo x > /dev/null && ls", writes=False).returncode == 0


@needs_landlock
@pytest.mark.parametrize(
    "code",
    [
        CLOSED,
        "import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import socket; socket.socket(socket.AF_UNIX).connect('server')",
        "import ctypes; assert ctypes.CDLL(None).syscall(425, 1, None) >= 0  # io_uring",
    ],
)
def test_there_is_no_network_unless_it_is_allowed(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("server")
        server.listen()
        line = f'{sys.executable} -c "{code}"'
        assert sh(folder, line).returncode
        if "io_uring" not in code:
            assert sh(folder, line, network=True).stderr == ""
    assert sh(folder, f'{sys.executable} -c "import socket; socket.socketpair()"').returncode == 0


@needs_landlock
@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (6, 12), reason="another platform: an older Linux"
)
def test_a_command_sends_no_signals_to_others(folder: Path) -> None:
    assert "not permitted" in sh(folder, "kill -0 $PPID").stderr
    assert sh(folder, "sleep 100 & kill $!").returncode == 0


@needs_landlock
def test_a_program_gets_no_rights_from_sudo(folder: Path) -> None:
    assert "NoNewPrivs:\t1" in sh(folder, "cat /proc/self/status").stdout


@needs_landlock
def test_where_something_cannot_be_limited_the_program_does_not_run(folder: Path) -> None:
    argv = [*Sandbox("Landlock").argv(folder), "touch", "ran"]
    locked = folder.parent / "temporary/file"
    locked.write_text("")
    argv[-3] = json.dumps({"writable": [str(locked / "none")], "network": False})
    ran = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (126, "there is no sandbox: Not a directory\n")
    assert not (folder / "ran").exists()


def broken(*_: object) -> tuple[str, ...]:
    return ("/nowhere/at/all",)


def test_a_sandbox_that_was_asked_for_and_does_not_work_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KINDS", {"Landlock": broken, "seatbelt": broken})
    find_fault.cache_clear()
    try:
        assert str(choose_sandbox("auto", network=False)) == "no sandbox"
        assert choose_sandbox("off", network=False).argv(Path("/")) == ()
        for mode in ("workspace", "read-only"):
            with pytest.raises(ValueError, match=f"{mode} needs a sandbox, and there is none: .*No such file"):
                choose_sandbox(mode, network=False)
            with pytest.raises(ValueError, match="there is none"):
                Agent("demo", config=AgentConfig(sandbox=mode)).run_sync("Hello")  # type: ignore[arg-type]
    finally:
        find_fault.cache_clear()


def test_a_run_says_that_there_is_no_sandbox(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KINDS", {"Landlock": broken, "seatbelt": broken})
    find_fault.cache_clear()
    try:
        assert run("Hello", "--tools", "bash").err.startswith("· there is no sandbox here: a command can do whatever")
        assert "there is no sandbox here" in run("Hello").err
        assert "sandbox" not in run("Hello", "--tools", "read").err
        assert "sandbox" not in run("Hello", "--tools", "bash", "--sandbox", "off").err
        refused = run("Hello", "--sandbox", "workspace")
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith("toolwire: --sandbox: workspace needs a sandbox, and there is none: ")
    finally:
        find_fault.cache_clear()


@needs_landlock
def test_a_run_says_what_the_sandbox_refused_and_how_to_allow_it(
    run: Run,
    folder: Path,
) -> None:
    ran = run(*ask_for("echo x > ../other/new", "--approve", "never", "--cwd", str(folder)))
    assert "Permission denied\n· the sandbox may have refused this; --network and --sandbox off allow more\n" in ran.err
    assert not (folder.parent / "other/new").exists()
    assert HINT in ran.out
    assert HINT not in run(*ask_for("echo x > here; exit 3", "--approve", "never", "--cwd", str(folder))).out
    assert HINT not in run(*ask_for("echo Permission denied", "--approve", "never", "--cwd", str(folder))).out
    run(*ask_for("echo x > ../other/new", "--approve", "never", "--cwd", str(folder), "--sandbox", "off"))
    assert (folder.parent / "other/new").exists()


OUTSIDE = {
    "Bash": {"command": "echo x > ../other/new", "dangerouslyDisableSandbox": True},
    "exec_command": {"cmd": "echo x > ../other/new", "sandbox_permissions": "require_escalated"},
    "local_shell": {"command": ["sh", "-c", "echo x > ../other/new"], "with_escalated_permissions": True,
                    "justification": "must"},
}  # fmt: skip


def outcome(folder: Path, name: str, arguments: dict[str, Any], **options: Any) -> str:
    config = AgentConfig(sandbox="workspace", **options.pop("config", {}))
    tools = builtin(["bash", "exec", "local_shell"])
    agent = Agent(ScriptedModel(Calls(name, **arguments), "done"), tools=[tools], config=config, cwd=folder, **options)
    return agent.run_sync("go").calls[0].result


@needs_landlock
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_command_leaves_the_sandbox_only_if_the_user_allows_it(folder: Path, name: str) -> None:
    asked: list[ToolCall] = []
    new = folder.parent / "other/new"

    def approver(_: object, call: ToolCall) -> bool:
        asked.append(call)
        return is_allowed

    is_allowed = True
    inside = {key: OUTSIDE[name][key] for key in [*OUTSIDE[name]][:1]}
    assert HINT in outcome(folder, name, inside, approver=approver)
    assert "No user is asked" in outcome(folder, name, OUTSIDE[name], config={"approve": "never"})
    is_allowed = False
    assert "did not allow" in outcome(folder, name, OUTSIDE[name], approver=approver)
    assert not new.exists()
    is_allowed = True
    assert HINT not in outcome(folder, name, OUTSIDE[name], approver=approver)
    assert new.read_text() == "x\n"
    assert len(asked) == 3


@needs_landlock
def test_variables_of_a_call_are_set_only_in_the_sandbox(folder: Path) -> None:
    """Some make any program run code: the one that begins the sandbox must not see them."""
    mark = folder.parent / "other/new"
    given = {"command": ["sh", "-c", "echo $PATH"], "env": {"PATH": "/bin:/usr/bin:/x", "LD_PRELOAD": "/nowhere.so"}}
    result = outcome(folder, "local_shell", given, config={"approve": "never"})
    assert "/bin:/usr/bin:/x" in result
    assert result.count("nowhere.so") <= 2, "only sh and what it runs"
    assert not mark.exists()


def test_the_profile_of_seatbelt_limits_what_is_written_and_the_network() -> None:
    *program, profile = module.KINDS["seatbelt"](['/Users/ada/a "b"'], False)
    assert program == ["/usr/bin/sandbox-exec", "-p"]
    assert "(deny file-write*" in profile
    assert '(allow file-write* (subpath "/Users/ada/a \\"b\\"")' in profile
    assert "(deny network*)" in profile
    assert "network" not in module.KINDS["seatbelt"]([], True)[-1]
