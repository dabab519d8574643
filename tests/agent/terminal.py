"""A program in a real pseudo-terminal, and what stands on its screen.

with Terminal(["toolwire", "run", "…"], environment, columns=40) as terminal:
    terminal.until("allow?")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert terminal.lines == ["…"]
"""

import codecs
import fcntl
import os
import re
import select
import sys
import termios
import time
import unicodedata
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support import processes

PROGRAM = (sys.executable, "-m", "toolwire")
PATIENCE = 120.0
"""Seconds after which a test that waits is over."""

_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^\[\]]")
_COLOUR = re.compile(r"(?:3|4|9|10)[0-7]|[34]8")


class Screen:
    """What a terminal of this size shows after some text, as far as our program steers it. Anything else is an error."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.scrolled: list[str] = []
        self.has_cursor = True
        self.colours: set[str] = set()
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        """All lines, also those that have left the screen."""
        shown = ["".join(row).rstrip() for row in self._cells]
        while shown and not shown[-1]:
            shown.pop()
        return [*self.scrolled, *shown]

    def write(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        index = 0
        while index < len(text):
            if text[index] != "\x1b":
                self._put(text[index])
                index += 1
                continue
            control = _CONTROL.match(text, index)
            if control is None:  # the rest is still to come
                self._rest = text[index:]
                return
            self._obey(control[1] or "", control[2] or "", control[0])
            index = control.end()

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._feed()
        elif char == "\b":
            self._column = max(0, self._column - 1)
        elif char == "\t":
            self._column = min(self.columns - 1, (self._column // 8 + 1) * 8)
        elif char < " " or "\x7f" <= char <= "\x9f":
            raise AssertionError(f"{char!r} steers the terminal")
        else:
            self._draw(char)

    def _draw(self, char: str) -> None:
        width = 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if not width:
            row = self._cells[self._row]
            row[max(0, self._column - 1)] += char
            return
        if self._column + width > self.columns:
            self._column = 0
            self._feed()
        row = self._cells[self._row]
        row[self._column] = char
        if width == 2:
            row[self._column + 1] = ""
        self._column += width

    def _feed(self) -> None:
        self._row += 1
        if self._row == self.rows:
            self._row -= 1
            self.scrolled.append("".join(self._cells.pop(0)).rstrip())
            self._cells.append([" "] * self.columns)

    def _obey(self, numbers: str, command: str, whole: str) -> None:
        match command, numbers:
            case "m", _:
                self.colours |= {code for code in numbers.split(";") if _COLOUR.fullmatch(code)}
            case "A", _:
                self._row = max(0, self._row - int(numbers or 1))
            case "K", "2":
                self._cells[self._row] = [" "] * self.columns
            case "h" | "l", "?25":
                self.has_cursor = command == "h"
            case _:
                raise AssertionError(f"{whole!r} steers the terminal")


class Terminal:
    """A program that runs in a terminal of its own. Leaving the context kills it."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: Path | None = None,
        stdout: int | None = None,
    ) -> None:
        self.screen = Screen(columns, rows)
        self.frames: list[list[str]] = []
        """Every different screen that was seen."""
        self.output = b""
        self.is_as_before = False
        """Whether the terminal was at the end as the program found it."""
        self._is_gone = False
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (rows, columns))
        self._usual = termios.tcgetattr(theirs)
        self._theirs = theirs  # kept, so that its settings can be read at the end
        self.process = processes.Popen(
            argv,
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            cwd=cwd,
            env={"TERM": "xterm-256color", **environment},
            terminal=True,
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._theirs)
        if not self._is_gone:
            os.close(self._ours)

    @property
    def lines(self) -> list[str]:
        return self.screen.lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def unread(self) -> int:
        """Bytes of typed lines that the program has not read."""
        waiting = array("i", [0])
        fcntl.ioctl(self._theirs, termios.FIONREAD, waiting)
        return waiting[0]

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def hang_up(self) -> None:
        """Close the window."""
        self._is_gone = True
        os.close(self._ours)

    def until(self, what: str | Callable[[], bool]) -> None:
        """Look at the screen until something stands there."""
        holds = (lambda: what in self.text) if isinstance(what, str) else what
        deadline = time.monotonic() + PATIENCE
        while not holds():
            is_over = self.process.poll() is not None
            if not self._read(0.05) and (is_over or time.monotonic() > deadline):
                assert holds(), f"{what!r} is not on the screen:\n{self.text}"

    def look(self) -> None:
        """See what has come meanwhile."""
        while self._read(0):
            pass

    def end(self) -> int:
        """Wait until the program ends; its exit code."""
        self.until(lambda: self.process.poll() is not None)
        self.look()
        if not self._is_gone:
            self.is_as_before = self.screen.has_cursor and termios.tcgetattr(self._theirs) == self._usual
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if self._is_gone:
            time.sleep(seconds)
            return False
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        data = os.read(self._ours, 1 << 16)
        self.output += data
        self.screen.write(self._decoder.decode(data))
        if not self.frames or self.frames[-1] != self.lines:
            self.frames.append(self.lines)
        return bool(data)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment with nothing in it that could matter, and sessions in a folder."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    xdg = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / ".config")}
    return {**kept, "HOME": str(folder), "LANG": "C.UTF-8", **xdg, **more}
