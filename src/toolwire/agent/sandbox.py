"""The sandbox for commands: Landlock and seccomp on Linux, seatbelt on macOS.

A command in it may read everything, but writes only in the working directory and in temporary directories, and has no
network, unless the options say otherwise. A sandbox is a program before the command that limits itself and becomes the
command. Whether it works is tried once.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

SandboxMode: TypeAlias = Literal["auto", "workspace", "read-only", "off"]
"""`workspace` lets commands write in the working directory, `read-only` nowhere; `auto`: `workspace` if that works."""
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 these are where commands may write

TRIAL_SECONDS = 10.0
REFUSED = re.compile(
    "Permission denied|Operation not permitted|EPERM|EACCES|Could not resolve host|Name or service not known"
    "|Temporary failure in name resolution"
)
"""What programs print when the sandbox refuses something."""
HINT = (
    "The sandbox may have refused this: it limits what a command may write to, and its network. If the work needs it, "
    "ask to run the command without the sandbox."
)
"""Follows the output of a command that failed in this way."""


class Sandbox(msgspec.Struct, frozen=True):
    """What limits the commands of a run."""

    name: str = ""
    """Empty: there is no sandbox."""
    writes: bool = True
    network: bool = False

    def argv(self, cwd: Path) -> tuple[str, ...]:
        """The program and arguments before a command; none without a sandbox."""
        if not self.name:
            return ()
        folders = {str(Path(each).resolve()) for each in (cwd, tempfile.gettempdir(), *TEMPORARY)}
        return KINDS[self.name](sorted(folders) if self.writes else [], self.network)

    def __str__(self) -> str:
        if not self.name:
            return "no sandbox"
        return f"{self.name}{'' if self.writes else ', read-only'}{', with network' if self.network else ''}"


def choose_sandbox(mode: str, *, network: bool) -> Sandbox:
    """The sandbox for a mode. Raises `ValueError` for an unknown mode, or one that needs what does not work here."""
    if mode not in get_args(SandboxMode):
        raise ValueError(f"{mode!r} is not one of {', '.join(get_args(SandboxMode))}")
    name = {"linux": "Landlock", "darwin": "seatbelt"}.get(sys.platform, "") if mode != "off" else ""
    sandbox = Sandbox(name, writes=mode != "read-only", network=network)
    reason = find_fault(sandbox) if name else f"this system, {sys.platform}, has none"
    if reason and mode not in ("auto", "off"):
        raise ValueError(f"{mode} needs a sandbox, and there is none: {reason}")
    return Sandbox() if reason else sandbox


@cache
def find_fault(sandbox: Sandbox) -> str:
    """Why a sandbox does not work here; empty if it does."""
    try:
        argv = (*sandbox.argv(Path("/")), "/bin/sh", "-c", ":")
        tried = subprocess.run(argv, capture_output=True, timeout=TRIAL_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        (tried.stderr.decode(errors="replace").strip() or f"exit code {tried.returncode}") if tried.returncode else ""
    )


def _landlock(writable: Sequence[str], network: bool) -> tuple[str, ...]:
    limits = json.dumps({"writable": writable, "network": network})
    return (sys.executable, "-I", "-S", str(Path(__file__).parent / "tools/landlock.py"), limits)


def _seatbelt(writable: Sequence[str], network: bool) -> tuple[str, ...]:
    places = [f"(subpath {json.dumps(path, ensure_ascii=False)})" for path in writable]
    rules = (
        "(version 1) (allow default) (deny file-write* appleevent-send lsopen job-creation)",
        f'(allow file-write* {" ".join(places)} (regex #"^/dev/(null|zero|tty|ptmx|pty|fd)"))',
        "" if network else "(deny network*)",
    )
    return ("/usr/bin/sandbox-exec", "-p", "\n".join(rules))


KINDS: dict[str, Callable[[Sequence[str], bool], tuple[str, ...]]] = {"Landlock": _landlock, "seatbelt": _seatbelt}
