"""Forks a process that runs one function, connected to its parent by a pair of sockets.

The parent has sockets and files, but no threads, event loop or database connection; a child creates those itself.
Signals are blocked during the fork. A terminal sends some signals to all processes; children ignore those, because only
the supervisor decides what they mean.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from toolwire.gateway.workers.messages import (
    MAX_LINE,
    Draining,
    Failed,
    FromSupervisor,
    LineSplitter,
    LineTooLong,
    Ready,
    decode_from_worker,
    encode_line,
)

Body: TypeAlias = Callable[[socket.socket], int]
"""What a child runs: it gets its end of the pair, and returns its exit code."""

_IGNORED = (signal.SIGINT, signal.SIGHUP)
_RESET = (signal.SIGTERM, signal.SIGCHLD)


def fork(body: Body, close: Iterable[socket.socket]) -> tuple[int, socket.socket]:
    """Start a child, which closes the sockets in `close`; returns its process id and the parent's end of the pair.

    Raises `OSError` if the fork fails.
    """
    ours, theirs = socket.socketpair()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            _run_child(body, theirs, (ours, *close), mask)
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
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
    except BaseException:  # noqa: BLE001 - no code of the parent may run in the child
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


class Child:
    """A forked process and the supervisor's end of its channel. Raises `OSError` if the fork fails."""

    def __init__(self, body: Body, close: Iterable[socket.socket], selector: selectors.BaseSelector) -> None:
        self.pid, self.channel = fork(body, close)
        self.is_ready = False
        """Whether it has sent `Ready`."""
        self.is_draining = False
        """Whether it has sent `Draining`: it accepts no more connections."""
        self.failure: Failed | None = None
        """Why it did not start, if that is known."""
        self.silent = 0
        """Ticks since its last message."""
        self.age = 0
        """Ticks since the fork."""
        self.exit_code: int | None = None
        """Once it has ended, its exit code, or the negative number of the signal that ended it. From then on its
        process id may belong to another process."""
        self._selector = selector
        self._lines = LineSplitter()
        self._unsent = bytearray()
        selector.register(self.channel, selectors.EVENT_READ, self)

    @property
    def ending(self) -> str:
        """How it ended; empty while it runs."""
        if self.exit_code is None:
            return ""
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"

    def receive(self) -> None:
        """Process the messages that have arrived."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self.channel.recv(1 << 20):
                self.silent = 0
                try:
                    messages = [decode_from_worker(line) for line in self._lines.feed(data)]
                except (msgspec.DecodeError, LineTooLong):
                    self.kill()
                    return
                for message in messages:
                    self.is_ready = self.is_ready or isinstance(message, Ready)
                    self.is_draining = self.is_draining or isinstance(message, Draining)
                    self.failure = message if isinstance(message, Failed) else self.failure
            self._watch(0)

    def send(self, message: FromSupervisor) -> None:
        """Send a message, or queue it while the child does not read. A child that never reads is killed."""
        self._unsent += encode_line(message)
        if len(self._unsent) > MAX_LINE:
            self.kill()
        self.flush()

    def flush(self) -> None:
        """Send as much as the channel accepts; the rest when it is writable again."""
        try:
            while self._unsent:
                del self._unsent[: self.channel.send(self._unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()
        self._watch(selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0))

    def _watch(self, events: int) -> None:
        """Select for these events; 0 unregisters the channel."""
        try:
            watched = self._selector.get_key(self.channel).events
        except KeyError:
            return
        if not events:
            self._selector.unregister(self.channel)
        elif events != watched:
            self._selector.modify(self.channel, events, self)

    def kill(self) -> None:
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self._watch(0)
        self.channel.close()
