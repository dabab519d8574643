"""The signals of the supervisor. From before the settings are checked until the last worker has ended, handlers only
note them, and the loop handles them between two waits.
"""

import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Literal, TypeAlias

Order: TypeAlias = Literal["end", "reload"]


def hold_hangup() -> None:
    """Block SIGHUP while the program is still being loaded; `note_signals` unblocks it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


class Signals:
    """Pending signals. `wakes` becomes readable when one arrives, also SIGCHLD."""

    def __init__(self, wakes: socket.socket) -> None:
        self.wakes = wakes
        self._orders: list[Order] = []
        self._hangup: Order = _meaning_of_hangup()

    @property
    def include_end(self) -> bool:
        """Whether one of them orders the end."""
        return "end" in self._orders

    def take(self) -> list[Order]:
        """The orders since the last time."""
        orders, self._orders = self._orders, []
        return orders

    def note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._orders.append(self._hangup if number == signal.SIGHUP else "end")

    def clear_wakeup(self) -> None:
        """Empty `wakes` until the next signal."""
        with suppress(BlockingIOError):
            while self.wakes.recv(4096):
                pass


@contextmanager
def note_signals() -> Generator[Signals]:
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


def _meaning_of_hangup() -> Order:
    """With a terminal, SIGHUP says that the terminal is gone; without one, an operator asks for a reload."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return "reload"
    return "end"
