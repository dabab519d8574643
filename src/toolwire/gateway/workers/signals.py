"""The signals of the supervisor. Handlers only queue them; the loop of the supervisor acts on them.

They are installed before the settings are checked, and stay until the last worker has ended.
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
    """Block SIGHUP while the program is loaded; `note_signals` unblocks it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


class Signals:
    """Pending signals. `wakes` becomes readable when one arrives, including SIGCHLD."""

    def __init__(self, wakes: socket.socket) -> None:
        self.wakes = wakes
        self._orders: list[Order] = []
        # With a terminal, SIGHUP means that the terminal is gone; without one, an operator requests a reload.
        self._hangup: Order = "end"
        try:
            os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        except OSError:
            self._hangup = "reload"

    def note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._orders.append(self._hangup if number == signal.SIGHUP else "end")

    def take(self) -> list[Order]:
        """Empty `wakes`, and return the orders since the last time."""
        with suppress(BlockingIOError):
            while self.wakes.recv(4096):
                pass
        orders, self._orders = self._orders, []
        return orders


@contextmanager
def note_signals() -> Generator[Signals]:
    """Note signals from now on. An ignored one stays ignored, but SIGCHLD is always noted."""
    wakes, woken = socket.socketpair()
    with wakes, woken:
        wakes.setblocking(False)
        woken.setblocking(False)
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
