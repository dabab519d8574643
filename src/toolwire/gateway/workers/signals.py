"""The signals of the supervisor. From before the settings are checked until the last worker has ended they are only
noted; whoever waits looks at them, so that none comes at a bad time.
"""

import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Literal, TypeAlias

Wish: TypeAlias = Literal["end", "reload"]


def hold_hangup() -> None:
    """Have SIGHUP wait until somebody notes it: the program is still being loaded."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


class Signals:
    """What was wished by signals. `wakes` can be read from when one has come, also one that a child has ended."""

    def __init__(self, wakes: socket.socket) -> None:
        self.wakes = wakes
        self._wishes: list[Wish] = []
        self._hangup: Wish = _meaning_of_hangup()

    @property
    def say_end(self) -> bool:
        """Whether somebody wishes an end."""
        return "end" in self._wishes

    def taken(self) -> list[Wish]:
        """What was wished since the last time."""
        wishes, self._wishes = self._wishes, []
        return wishes

    def note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._wishes.append(self._hangup if number == signal.SIGHUP else "end")

    def sleep_again(self) -> None:
        """Let `wakes` be silent until the next signal."""
        with suppress(BlockingIOError):
            while self.wakes.recv(4096):
                pass


@contextmanager
def noted_signals() -> Generator[Signals]:
    """Note signals from now on. One that is ignored stays so, but the end of a child is always noted."""
    wakes, woken = socket.socketpair()
    with wakes, woken:
        for each in (wakes, woken):
            each.setblocking(False)
        signals = Signals(wakes)
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        wanted = [number for number in ending if signal.getsignal(number) is not signal.SIG_IGN]
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        earlier = {number: signal.signal(number, signals.note) for number in (*wanted, signal.SIGCHLD)}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        try:
            yield signals
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in earlier.items():
                signal.signal(number, handler)


def _meaning_of_hangup() -> Wish:
    """With a terminal it says that the terminal is gone; without one somebody sends it to have the settings read."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return "reload"
    return "end"
