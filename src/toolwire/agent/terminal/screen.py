"""The terminal of a run with one prompt: what happens is shown, questions are asked, and the terminal is restored."""

import asyncio
import contextlib
import sys
import termios
from collections.abc import AsyncGenerator, Callable, Sequence

from rich.console import Console, ConsoleRenderable
from rich.text import Text

from toolwire.agent.approval import Approver
from toolwire.agent.events import AgentEvent
from toolwire.agent.terminal.canvas import LiveCanvas, print_lines
from toolwire.agent.terminal.keys import Keys, is_terminal, typed_line
from toolwire.agent.terminal.questions import Questions
from toolwire.agent.terminal.view import DRAWS, View
from toolwire.core.terminal import clean


def make_console() -> Console:
    """The console on which everything is shown: stdout if that is a terminal, else stderr."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a character that the terminal cannot show is no reason to end
    shown = sys.stdout if is_terminal(sys.stdout) else sys.stderr
    can_move = None if is_terminal(shown) else False
    return Console(stderr=shown is sys.stderr, highlight=False, force_interactive=can_move)


class Screen:
    """Shows events and asks for approval, one question at a time.

    Where stdout is no terminal, it gets the answer alone, and everything else goes to stderr.
    """

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self._is_quiet = quiet
        answer = None if is_terminal(sys.stdout) else sys.stdout
        self.view = View(LiveCanvas(make_console()), answer=answer, verbose=verbose, quiet=quiet)
        self.questions = Questions(self.view.console, self._print, self._answer, self._paused)
        self._keys = Keys(self.view.console.is_interactive)
        self._taken = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None
        self.closing_line = ""
        self.on_hangup: Callable[[], object] = lambda: None
        """Called when the terminal is gone."""

    async def __aenter__(self) -> "Screen":
        self._keys.hide()
        self.view.__enter__()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self.close()

    def cancelling(self) -> None:
        """Show that the task is being cancelled."""
        with contextlib.suppress(OSError):  # the terminal may be gone, and that be the reason
            self.view.cancelling()

    def close(self) -> None:
        """Restore the terminal."""
        line, self.closing_line = self.closing_line, ""
        try:
            self.view.close()
            if line and not self._is_quiet:
                self.view.console.print(Text(clean(line), "dim"), soft_wrap=True)
        finally:
            self._keys.show()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1 / DRAWS)
            if not self._taken.locked():
                self.view.refresh()

    async def show(self, event: AgentEvent) -> None:
        """Show an event."""
        async with self._taken:
            self.view.show(event)

    @property
    def approver(self) -> Approver | None:
        """Asks the user; None without a terminal."""
        can_ask = is_terminal(sys.stdin) and (is_terminal(sys.stdout) or is_terminal(sys.stderr))
        return self.questions.ask if can_ask else None

    @contextlib.asynccontextmanager
    async def _paused(self, call_id: str) -> AsyncGenerator[None]:
        try:
            async with self._taken:
                with self.view.asking(call_id), self._keys.echoing():
                    yield
        except (OSError, termios.error):  # the terminal is gone
            self.on_hangup()
            raise asyncio.CancelledError from None

    def _print(self, lines: Sequence[ConsoleRenderable]) -> None:
        print_lines(self.view.console, lines)

    async def _answer(self, prompt: str) -> str:
        """The line typed after this prompt; what was typed before is discarded."""
        console = self.view.console
        self._keys.flush()
        console.print(Text(prompt), end="")
        answer = b""
        try:
            answer = await typed_line(sys.stdin.fileno())
        finally:
            if not answer.endswith(b"\n"):
                console.print()
        return answer.decode("utf-8", "replace")
