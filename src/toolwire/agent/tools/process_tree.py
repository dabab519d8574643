"""Finds and signals a command with all processes that it started."""

import itertools
import os
import signal
from contextlib import suppress
from pathlib import Path

MARK = "TOOLWIRE_COMMAND"
"""The environment variable that marks a command and its descendants."""

_numbers = itertools.count(1)


def new_mark() -> str:
    """A unique mark for a command."""
    return f"{os.getpid()}.{next(_numbers)}"


class ProcessTree:
    """A process with all its descendants, in its session or in others.

    Its process group is not enough: `timeout` and shells with job control create others. Descendants in other sessions
    are found by their parents, or, if orphaned, by their mark. Without /proc only the group is known. With
    `keeps_leader` the leader is a supervisor, which keeps running.
    """

    def __init__(self, leader: int, mark: str = "", *, keeps_leader: bool = False) -> None:
        self._leader = leader
        self._kept: set[int] = {leader} if keeps_leader else set()
        self._mark = mark
        self._sessions = {leader}

    def list_living(self) -> set[int]:
        """The ids of all processes that still run."""
        if self._kept and self._sessions == self._kept:
            with suppress(OSError):  # the kernel does not list children, or the process has ended
                if not Path(f"/proc/{self._leader}/task/{self._leader}/children").read_bytes():
                    return set()
        try:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            self._kept = set()  # it cannot be distinguished from the others
            try:
                os.killpg(self._leader, 0)
            except (ProcessLookupError, PermissionError):
                return set()
            return {self._leader}
        if not any(_session(pid) in self._sessions for pid in pids):
            return set()
        all: dict[int, tuple[int, int]] = {}  # the parent and the session of each process
        for pid in pids:
            with suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_bytes()
                state, parent, _, session = stat[stat.rindex(b")") + 2 :].split(maxsplit=4)[:4]
                if state not in (b"Z", b"X"):
                    all[pid] = int(parent), int(session)
        found = {pid for pid, (_, session) in all.items() if session in self._sessions}
        while children := {pid for pid, (parent, _) in all.items() if parent in found} - found:
            found |= children
        self._sessions |= {all[pid][1] for pid in found}
        return found - self._kept

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes."""
        if self._mark:
            self._sessions |= {_session(pid) for pid in find_marked(f"{self._mark}\0")} - {os.getsid(0), -1}
        living = self.list_living()
        if not living and not self._kept:
            return
        spares_leader = bool(self._kept) and number == signal.SIGKILL  # it ignores all other signals
        with suppress(ProcessLookupError, PermissionError):
            if not spares_leader:
                os.killpg(self._leader, number)  # reaches processes that are started meanwhile, too
        for pid in living:
            with suppress(ProcessLookupError, PermissionError):
                if spares_leader or os.getpgid(pid) != self._leader:
                    os.kill(pid, number)


def find_marked(prefix: str) -> set[int]:
    """The ids of the processes whose mark has this prefix."""
    wanted = f"\0{MARK}={prefix}".encode()
    found: set[int] = set()
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and wanted in b"\0" + Path(f"/proc/{name}/environ").read_bytes():
                    found.add(int(name))
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
