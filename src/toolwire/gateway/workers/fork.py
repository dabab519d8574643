"""Forks a process that runs one function, connected to its parent by a pair of sockets.

At a fork nothing is open but sockets and files, and no thread runs: a child creates its own event loop, threads and
database connections. Signals are blocked during the fork. A terminal sends some signals to all processes; children
ignore those, because only the supervisor decides what they mean.
"""

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from toolwire.gateway.workers.messages import (
    MAX_LINE,
    Failed,
    FromSupervisor,
    FromWorker,
    LineSplitter,
    LineTooLong,
    decode_from_worker,
    encode_line,
)

Body: TypeAlias = Callable[[socket.socket], int]
"""What a child runs: it gets its end of the pair, and returns its exit code."""

_IGNORED = (signal.SIGINT, signal.SIGHUP)
_RESET = (signal.SIGTERM, signal.SIGCHLD)


def load_for_forks(modules: Iterable[str]) -> None:
    """Import modules that all children share. The collector leaves them alone, so that their pages stay unwritten."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def fork(body: Body, close: Iterable[socket.socket]) -> tuple[int, socket.socket]:
    """Start a child, which closes the sockets in `close`; returns its process id and our end of the pair.

    Raises `OSError` where the system has no room for it.
    """
    ours, theirs = socket.socketpair()
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            _run_child(body, theirs, (ours, *close), earlier)
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        theirs.close()
    ours.setblocking(False)
    return pid, ours


def _run_child(
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


def describe_ending(status: int) -> str:
    """How a process ended, from the status that `waitpid` returned."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Child:
    """A forked process and the supervisor's end of its channel. Raises `OSError` if the system has no room for it."""

    def __init__(self, body: Body, close: Iterable[socket.socket], selector: selectors.BaseSelector) -> None:
        self.pid, self.channel = fork(body, close)
        self.failure: Failed | None = None
        """Why it cannot start, if it has reported that."""
        self.silent = 0
        """Ticks since its last message."""
        self.age = 0
        """Ticks since the fork."""
        self.status: int | None = None
        """How it ended, as `waitpid` says. From then on its process id may belong to another process."""
        self._selector = selector
        self._lines = LineSplitter()
        self._unsent = bytearray()
        selector.register(self.channel, selectors.EVENT_READ, self)

    def receive(self) -> Iterator[FromWorker]:
        """The messages that have arrived."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self.channel.recv(1 << 20):
                self.silent = 0
                try:
                    yield from map(decode_from_worker, self._lines.feed(data))
                except (msgspec.DecodeError, LineTooLong):
                    self.kill()
                    return
            self._watch(0)

    def send(self, message: FromSupervisor) -> None:
        """Send a message, now or as soon as it reads. One that never reads is killed."""
        self._unsent += encode_line(message)
        if len(self._unsent) > MAX_LINE:
            self.kill()
        self.flush()

    def flush(self) -> None:
        """Send as much as the channel takes. The rest is sent when it is writable again."""
        try:
            while self._unsent:
                del self._unsent[: self.channel.send(self._unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()
        self._watch(selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0))

    def _watch(self, events: int) -> None:
        """Select for these events; for none at the end of the stream."""
        try:
            watched = self._selector.get_key(self.channel).events
        except KeyError:
            return
        if not events:
            self._selector.unregister(self.channel)
        elif events != watched:
            self._selector.modify(self.channel, events, self)

    def kill(self) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self._watch(0)
        self.channel.close()
