"""Runs one command as its child, and becomes the parent of all processes that the command leaves behind.

A process whose parent has ended becomes a child of this one, whatever its session, its group and its environment, so
that it can be found. This runs as a program of its own, with nothing but the standard library:

    python -I -S supervisor.py REPORT PROGRAM ARGUMENT …

It writes the exit code to the descriptor REPORT, a pipe. When that has no reader left, because the reader was killed,
it ends all processes of the command. Where it cannot be such a parent it ends with the command.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from typing import NoReturn

PR_SET_CHILD_SUBREAPER = 36
CANNOT_RUN = 127
"""The exit code of a program that is not there, as in a shell."""
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""
PAUSE = 0.02
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and other programs do not."""


def main(report: int, argv: list[str]) -> None:
    """Run the command, report its exit code, and wait until the report is closed."""
    adopts = _adopts_orphans()
    _take_terminal()
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if not pid:
        os.close(report)
        _execute(argv, earlier)
    for each in signal.sigpending() & {*_ENDING}:  # meant for the command, which was not there yet
        os.kill(pid, each)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the output ends with the command
        os.dup2(nowhere, stream)
    ends = _watch_children()
    watch = select.poll()
    watch.register(report, 0)  # it has an error when its reader is gone
    watch.register(ends, select.POLLIN)
    is_running = True
    while True:
        if is_running and (ended := os.waitpid(pid, os.WNOHANG))[0]:
            is_running = False
            with contextlib.suppress(OSError):
                os.write(report, b"%d" % os.waitstatus_to_exitcode(ended[1]))
            if not adopts:
                os._exit(0)
        for descriptor, _ in watch.poll():
            if descriptor == report:
                _end_all(adopts=adopts)
            else:
                os.read(ends, 512)


def _watch_children() -> int:
    """A descriptor that can be read when a child has ended."""
    ends, written = os.pipe()
    os.set_blocking(written, False)
    signal.signal(signal.SIGCHLD, _ignore)  # what counts is that it wakes the poll
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    return ends


def _ignore(number: int, frame: object) -> None:
    pass


def _end_all(*, adopts: bool) -> NoReturn:
    """End all processes of the command, SIGTERM first, and then this one.

    A descendant whose parent has ended is a child of this process, so all of them are children in the end.
    """
    os.killpg(0, signal.SIGTERM)  # which is blocked here
    told: set[int] = set()
    deadline = time.monotonic() + GRACE
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            children = _children() if adopts else set[int]()
            is_late = time.monotonic() > deadline
            if is_late and not adopts:
                os.killpg(0, signal.SIGKILL)
            for child in children if is_late else children - told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL if is_late else signal.SIGTERM)
            told |= children
            time.sleep(PAUSE)
            continue
        os._exit(0)


def _children() -> set[int]:
    """The ids of the children of this process, by /proc."""
    found: set[int] = set()
    own = b"%d" % os.getpid()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            stat = file.read()
            if stat[stat.rindex(b")") + 2 :].split(maxsplit=2)[1] == own:
                found.add(int(name))
    return found


def _adopts_orphans() -> bool:
    """Become the parent of every descendant that loses its own; whether that is possible."""
    if sys.platform != "linux":
        return False
    import ctypes  # noqa: PLC0415 - nobody else needs it

    return ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _take_terminal() -> None:
    """The first of a session that opens a terminal has it as its own; then Ctrl-C and /dev/tty work."""
    with contextlib.suppress(OSError):
        os.close(os.open(os.ttyname(0), os.O_RDWR))


def _execute(argv: list[str], mask: Iterable[int]) -> None:
    """Become the command, with the signals as they were before Python came."""
    own = (*_PYTHONS_OWN, signal.SIGINT) if signal.getsignal(signal.SIGINT) != signal.SIG_IGN else _PYTHONS_OWN
    for each in own:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 the command has its shell, if it wants one
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(CANNOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
