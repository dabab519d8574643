"""A program in a terminal with an input line: a real pseudo-terminal, and pyte to read its screen."""

import os
import select
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from tests.support import processes

PATIENCE = 120.0
"""Seconds after which a test that waits is over."""


class TypedTerminal:
    """A program that runs in a terminal of its own. Leaving the context kills it."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path, *, columns: int = 80, rows: int = 30
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=2000)
        self.output = b""
        self._stream = pyte.ByteStream(self.screen)
        self._ours, self._theirs = os.openpty()
        termios.tcsetwinsize(self._theirs, (rows, columns))
        self._usual = termios.tcgetattr(self._theirs)
        self.process = processes.Popen(
            argv,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            cwd=cwd,
            env={"TERM": "xterm-256color", **environment},
            terminal=True,
        )

    def __enter__(self) -> "TypedTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)

    @property
    def lines(self) -> list[str]:
        """All lines, also those that have left the screen."""
        top = ["".join(row[column].data for column in range(self.screen.columns)) for row in self.screen.history.top]
        return [line.rstrip() for line in (*top, *self.screen.display) if line.strip()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal is as the program found it."""
        return termios.tcgetattr(self._theirs) == self._usual and not self.screen.cursor.hidden

    def colours_of(self, text: str) -> set[str]:
        """The colours of a text on the screen."""
        for row, line in enumerate(self.screen.display):
            if text in line:
                at = line.index(text)
                return {self.screen.buffer[row][column].fg for column in range(at, at + len(text))}
        raise AssertionError(f"{text!r} is not on the screen:\n{self.text}")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def enter(self, line: str) -> None:
        """Type a line, see it, and press Enter."""
        self.type(line)
        self.until(lambda: line[-20:].strip() in self.text)
        self.type("\r")

    def paste(self, text: str) -> None:
        """As a terminal does it that marks what is pasted."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def until(self, what: str | Callable[[], bool]) -> None:
        """Look at the screen until something stands there."""
        holds = (lambda: what in self.text) if isinstance(what, str) else what
        deadline = time.monotonic() + PATIENCE
        while not holds():
            is_over = self.process.poll() is not None
            if not self._read(0.05) and (is_over or time.monotonic() > deadline):
                assert holds(), f"{what!r} is not on the screen:\n{self.text}"

    def look(self, seconds: float = 0.0) -> None:
        """See what comes in this time."""
        until = time.monotonic() + seconds
        while self._read(max(0.0, until - time.monotonic())) or time.monotonic() < until:
            pass

    def end(self) -> int:
        """Wait until the program ends; its exit code."""
        self.until(lambda: self.process.poll() is not None)
        self.look()
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        data = os.read(self._ours, 1 << 16)
        self.output += data
        self._stream.feed(data)
        return bool(data)
