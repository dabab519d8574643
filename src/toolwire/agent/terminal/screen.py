"""The terminal of a run with one prompt: shows events, asks for approval, and restores the terminal at the end."""

import asyncio
import contextlib
import errno
import os
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable
from rich.live import Live
from rich.text import Text

from toolwire.agent.approval import Approver
from toolwire.agent.terminal.questions import Questions
from toolwire.agent.terminal.view import View, print_lines
from toolwire.core.display import clean


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal."""
    return stream is not None and stream.isatty()


class Keyboard:
    """The keyboard of a terminal in line mode. Echo is off except during questions: it would disturb changing rows."""

    def __init__(self, is_interactive: bool) -> None:
        self._terminal = sys.stdin.fileno() if is_terminal(sys.stdin) else None
        self._original: list[Any] = []
        if is_interactive and self._terminal is not None:
            self._original = termios.tcgetattr(self._terminal)

    def set_echo(self, is_on: bool) -> None:
        """Switch the echo on or off, unless we run in the background, where that would stop us."""
        with contextlib.suppress(OSError, termios.error):
            if self._original and self._terminal is not None and os.tcgetpgrp(self._terminal) == os.getpgrp():
                *flags, local, speed_in, speed_out, characters = self._original
                local = local if is_on else local & ~termios.ECHO
                termios.tcsetattr(self._terminal, termios.TCSANOW, [*flags, local, speed_in, speed_out, characters])

    def discard_input(self) -> None:
        """Discard what was typed so far."""
        if self._terminal is not None:
            termios.tcflush(self._terminal, termios.TCIFLUSH)

    async def read_line(self) -> bytes:
        """The next typed line; empty at the end of input.

        Uses no thread, so that it can be cancelled. Raises `OSError` when the terminal is gone.
        """
        assert self._terminal is not None
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._terminal, ready.set)
        try:
            await ready.wait()
            typed = os.read(self._terminal, 1024)
        finally:
            loop.remove_reader(self._terminal)
        if not typed and not os.isatty(self._terminal):  # it is no longer a terminal
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return typed


class LiveCanvas:
    """A `Canvas` on a terminal that nothing else uses, or on a file, which gets the permanent lines only."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.moves = console.is_interactive
        self._keyboard = Keyboard(self.moves)
        self._live: Live | None = None
        self._rows: ConsoleRenderable | None = None

    @property
    def room(self) -> int:
        return self.console.height

    def start(self, rows: ConsoleRenderable | None) -> None:
        self._keyboard.set_echo(False)
        if self.moves and rows is not None:
            # Other output to stderr appears above the changing rows, if it goes to the terminal.
            redirects = bool(sys.stderr and sys.stderr.isatty())
            self._rows = rows
            self._live = Live(self, console=self.console, auto_refresh=False, transient=True, redirect_stderr=redirects)
            self._live.start()

    def stop(self) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                live.stop()
        finally:
            self._keyboard.set_echo(True)

    def start_question(self) -> None:
        self.stop()

    async def ask(self, question: str) -> str:
        self._keyboard.discard_input()
        self.console.print(Text(question), end="")
        answer = b""
        try:
            answer = await self._keyboard.read_line()
        finally:
            if not answer.endswith(b"\n"):
                self.console.print()
        return answer.decode("utf-8", "replace")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[ConsoleRenderable]:
        """The rows; none once they are removed."""
        if self._live is not None and self._rows is not None:
            yield self._rows

    def draw(self, lines: Sequence[ConsoleRenderable]) -> None:
        if lines:
            print_lines(self.console, lines)
        elif self._live is not None:
            self._live.refresh()


class Screen:
    """Shows events and asks for approval. `on_hangup` is called when the terminal is gone.

    If stdout is not a terminal, it gets the answer alone, and everything else goes to stderr.
    """

    def __init__(
        self, cwd: Path, on_hangup: Callable[[], object], *, verbose: bool = False, quiet: bool = False
    ) -> None:
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="replace")  # a character that the terminal cannot show must not end the run
        shown = sys.stdout if is_terminal(sys.stdout) else sys.stderr
        can_move = None if is_terminal(shown) else False
        console = Console(stderr=shown is sys.stderr, highlight=False, force_interactive=can_move)
        answer = None if is_terminal(sys.stdout) else sys.stdout
        self.view = View(LiveCanvas(console), answer=answer, verbose=verbose, quiet=quiet)
        self.closing_line = ""
        """The last line of the output."""
        self._questions = Questions(self.view, lambda: cwd, on_hangup)
        self._is_quiet = quiet
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def approver(self) -> Approver | None:
        """Asks the user; None without a terminal."""
        can_ask = is_terminal(sys.stdin) and (is_terminal(sys.stdout) or is_terminal(sys.stderr))
        return self._questions.ask if can_ask else None

    async def __aenter__(self) -> "Screen":
        self.view.__enter__()
        self._refreshing = asyncio.get_running_loop().create_task(self.view.keep_refreshing())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        self.close()

    def show_cancelling(self) -> None:
        """Show that the task is being cancelled."""
        with contextlib.suppress(OSError):  # the terminal may be gone, which may be the reason
            self.view.show_cancelling()

    def close(self) -> None:
        """Restore the terminal."""
        line, self.closing_line = self.closing_line, ""
        self.view.close()
        if line and not self._is_quiet:
            self.view.console.print(Text(clean(line), "dim"), soft_wrap=True)
