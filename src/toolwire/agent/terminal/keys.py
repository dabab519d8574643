"""The keyboard of a terminal in line mode: its echo, and lines that are typed."""

import asyncio
import contextlib
import errno
import os
import sys
import termios
from collections.abc import Generator
from typing import Any, TextIO


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal."""
    return stream is not None and stream.isatty()


async def typed_line(terminal: int) -> bytes:
    """The next typed line; empty at the end of input. Uses no thread, so that it can be cancelled.

    Raises `OSError` when the terminal is gone.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(terminal, ready.set)
    try:
        await ready.wait()
        typed = os.read(terminal, 1024)
    finally:
        loop.remove_reader(terminal)
    if not typed and not os.isatty(terminal):  # any more
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return typed


class Keys:
    """Switches the echo of typed keys off while no question is asked: it would disturb the changing rows."""

    def __init__(self, is_interactive: bool) -> None:
        self._terminal = sys.stdin.fileno() if is_terminal(sys.stdin) else None
        self._usual = termios.tcgetattr(self._terminal) if is_interactive and self._terminal is not None else []

    def hide(self) -> None:
        """Switch the echo off."""
        if self._usual:
            *flags, local, speed_in, speed_out, characters = self._usual
            self._set([*flags, local & ~termios.ECHO, speed_in, speed_out, characters])

    def show(self) -> None:
        """Switch the echo on."""
        self._set(self._usual)

    @contextlib.contextmanager
    def echoing(self) -> Generator[None]:
        """Switch the echo on for the duration of the context."""
        self.show()
        try:
            yield
        finally:
            self.hide()

    def flush(self) -> None:
        """Discard typed input."""
        if self._terminal is not None:
            termios.tcflush(self._terminal, termios.TCIFLUSH)

    def _set(self, attributes: list[Any]) -> None:
        """Set terminal attributes, unless we run in the background, where that would stop us."""
        with contextlib.suppress(OSError, termios.error):
            if attributes and self._terminal is not None and os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, attributes)
