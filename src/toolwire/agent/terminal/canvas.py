"""Where a view is drawn: lines that stay, and below them rows that change."""

import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group
from rich.live import Live


class Canvas(Protocol):
    """What a view needs of its terminal or file."""

    console: Console

    @property
    def moves(self) -> bool:
        """Whether rows can be drawn anew."""
        ...

    @property
    def room(self) -> int:
        """The number of rows that can be drawn."""
        ...

    def start(self, rows: ConsoleRenderable) -> None:
        """Begin to draw these rows, which are computed each time."""
        ...

    def stop(self) -> None:
        """Remove the rows that change, and draw none until `start`."""
        ...

    def draw(self, lines: Sequence[ConsoleRenderable]) -> None:
        """Print lines that stay, and draw the rows below them."""
        ...


def print_lines(console: Console, lines: Sequence[ConsoleRenderable]) -> None:
    """Print lines at once. None of them is cut: what does not fit and may not be wrapped is left to the terminal."""
    if lines:
        console.print(Group(*lines), end="", crop=False, soft_wrap=not console.is_interactive)


class LiveCanvas:
    """A terminal of which nobody else makes use, or a file, which gets the lines alone."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._rows: ConsoleRenderable | None = None

    @property
    def moves(self) -> bool:
        """Whether rows can be drawn anew."""
        return self.console.is_interactive

    @property
    def room(self) -> int:
        """The number of rows that can be drawn."""
        return self.console.height

    def start(self, rows: ConsoleRenderable) -> None:
        """Begin to draw these rows."""
        if self.moves:
            # What others write to stderr stands above what still changes, unless it goes elsewhere.
            redirects = bool(sys.stderr and sys.stderr.isatty())
            self._rows = rows
            self._live = Live(self, console=self.console, auto_refresh=False, transient=True, redirect_stderr=redirects)
            self._live.start()

    def stop(self) -> None:
        """Remove the rows."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[ConsoleRenderable]:
        """The rows; none any more while they are being removed."""
        if self._live is not None and self._rows is not None:
            yield self._rows

    def draw(self, lines: Sequence[ConsoleRenderable]) -> None:
        """Print lines; the rows are drawn below them."""
        if lines:
            print_lines(self.console, lines)
        elif self._live is not None:
            self._live.refresh()
