"""Runs one command as its child, and becomes the parent of all processes that the command leaves behind.

An orphaned descendant becomes a child of this process, whatever its session, group and environment, so that it can be
found. This is a program of its own, which imports only the standard library:

    python -I -S supervisor.py REPORT PROGRAM ARGUMENT …

It writes the exit code to the file descriptor REPORT, a pipe. When the process that reads the pipe is killed,
the supervisor ends all processes of the command. On a system without subreapers it exits with the command.
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
"""The exit code if there is no such program, as in a shell."""
KILL_TIMEOUT = 0.5
"""Seconds between SIGTERM and SIGKILL."""
POLL_INTERVAL = 0.02
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main(report: int, argv: list[str]) -> None:
    """Run the command, report its exit code, and wait until the report is closed."""
    adopts = False  # whether orphaned descendants become children of this process
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - needed here only

        adopts = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    with contextlib.suppress(OSError):  # a terminal becomes that of this session, so that Ctrl-C and /dev/tty work
        os.close(os.open(os.ttyname(0), os.O_RDWR))
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if not pid:
        os.close(report)
        _execute(argv, earlier)
    for each in signal.sigpending() & {*_ENDING}:  # meant for the command, which did not exist yet
        os.kill(pid, each)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # so that the output ends with the command
        os.dup2(null, stream)
    ends, written = os.pipe()  # can be read when a child has ended
    os.set_blocking(written, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # without a handler, the signal is not written
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    watch = select.poll()
    watch.register(report, 0)  # reports an error when its reader is gone
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


def _end_all(*, adopts: bool) -> NoReturn:
    """End all processes of the command, SIGTERM first, and then this one.

    Orphaned descendants become children of this process, so in the end it reaches all of them.
    """
    os.killpg(0, signal.SIGTERM)  # which is blocked here
    signalled: set[int] = set()
    deadline = time.monotonic() + KILL_TIMEOUT
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            children: set[int] = set()
            for name in filter(str.isdigit, os.listdir("/proc")) if adopts else ():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
                    if int(stat[stat.rindex(b")") + 2 :].split(maxsplit=2)[1]) == os.getpid():
                        children.add(int(name))
            is_late = time.monotonic() > deadline
            if is_late and not adopts:
                os.killpg(0, signal.SIGKILL)
            for child in children if is_late else children - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL if is_late else signal.SIGTERM)
            signalled |= children
            time.sleep(POLL_INTERVAL)
            continue
        os._exit(0)


def _execute(argv: list[str], mask: Iterable[int]) -> None:
    """Become the command, with the signal handling that it would have without Python."""
    has_interrupt = signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    for each in (*_IGNORED_BY_PYTHON, signal.SIGINT) if has_interrupt else _IGNORED_BY_PYTHON:
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
