"""Runs one command as its child, and becomes the parent of all processes that the command leaves behind.

A process whose parent has ended becomes a child of this one, whatever its session, its group and its environment, so
that it can be found. This runs as a program of its own, with nothing but the standard library:

    python -I -S supervisor.py REPORT PROGRAM ARGUMENT …

It writes the exit code to the descriptor REPORT, and ends when nobody reads there any more; at once where it cannot be
such a parent.
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterable

PR_SET_CHILD_SUBREAPER = 36
CANNOT_RUN = 127
"""The exit code of a program that is not there, as in a shell."""
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
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        os.write(report, b"%d" % code)
        if adopts:
            watch = select.poll()
            watch.register(report, 0)
            watch.poll()
    os._exit(0)


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
