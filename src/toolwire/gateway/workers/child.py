"""Forks a process that runs one function, with a socket to the one that forked it.

Nothing is open at a fork but sockets, and no thread runs: whatever needs a thread, an event loop or a database makes it
in the child. A signal in between is kept back. A terminal sends some to all processes, and only the supervisor decides
what they mean: a child ignores them.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import TypeAlias

Body: TypeAlias = Callable[[socket.socket], int]
"""What a child does: it gets its end of the pair, and returns its exit code."""

_IGNORED = (signal.SIGINT, signal.SIGHUP)
_RESET = (signal.SIGTERM, signal.SIGCHLD)


def load_for_forks(modules: Iterable[str]) -> None:
    """What is loaded now is shared by all children: the collector leaves it alone, so that its pages stay unwritten."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def forked(body: Body, close: Iterable[socket.socket]) -> tuple[int, socket.socket]:
    """Start a child; returns its process id and our end of the pair. The child closes what is not its business.

    Raises `OSError` where the system has no room for one.
    """
    ours, theirs = socket.socketpair()
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            _be_child(body, theirs, (ours, *close), earlier)
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        theirs.close()
    ours.setblocking(False)
    return pid, ours


def _be_child(
    body: Body, channel: socket.socket, close: Iterable[socket.socket], mask: "Iterable[int | signal.Signals]"
) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in _RESET:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        for each in close:
            each.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = body(channel)
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run in the child
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def ending_of(status: int) -> str:
    """How a process ended, by what `waitpid` says."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
