"""The terminal itself: what is typed and when it is heard, questions and their answers, Ctrl-C and its like.

What is drawn there is `view.py`'s. Whatever happens, the terminal is left as it was found.
"""

import asyncio
import contextlib
import errno
import os
import signal
import sys
import termios
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from toolwire.agent.approval import Approver
from toolwire.agent.call import ToolCall
from toolwire.agent.events import AgentEvent, Tokens
from toolwire.agent.registry import Tool
from toolwire.agent.view import SPINS, View
from toolwire.agent.words import rows_of
from toolwire.core.terminal import clean, escaped

CANCELLED = 130
"""The exit code of a run that was cancelled."""
BREATH = 0.05
"""Seconds before a question, in which is shown what has happened."""
MOST_ROWS = 200
"""Rows of a call that are shown before it is asked whether the others are wanted too."""
AT_ONCE = 0.1
"""Seconds in which everything that runs is killed when somebody leaves."""


class Screen:
    """Shows what happens, and asks before calls run: one question at a time, while nothing else is shown."""

    def __init__(self) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a letter that the terminal has not is no reason to end
        self._view = View(Console(highlight=False, force_interactive=None if sys.stdout.isatty() else False))
        self._keys = Keys(self._view.console.is_interactive)
        self._one_question = asyncio.Lock()
        self._taken = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None
        self.last_words = ""
        self.hung_up: Callable[[], object] = lambda: None
        """Called when there is nobody left who could answer a question."""

    async def __aenter__(self) -> "Screen":
        self._keys.hide()
        self._view.__enter__()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self.close()

    def wait_for(self, what: str) -> None:
        self._view.wait_for(what)

    def resume(self, total: Tokens) -> None:
        self._view.resume(total)

    def cancelling(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone, and that be the reason
            self._view.cancelling()

    def close(self) -> None:
        """Leave the terminal as it was."""
        words, self.last_words = self.last_words, ""
        try:
            self._view.close()
            if words:
                self._view.console.print(Text(clean(words), "dim"), soft_wrap=True)
        finally:
            self._keys.show()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1 / SPINS)
            self._view.refresh()

    async def show(self, event: AgentEvent) -> None:
        async with self._taken:
            self._view.show(event)

    @property
    def approver(self) -> Approver | None:
        """Who is asked, if anybody is there who can see a question and answer it."""
        return self._ask if _is_terminal(sys.stdin) and self._asks_on is not None else None

    @property
    def _asks_on(self) -> Console | None:
        if _is_terminal(sys.stdout):
            return self._view.console
        return Console(stderr=True, highlight=False) if _is_terminal(sys.stderr) else None

    async def _ask(self, tool: Tool, call: ToolCall) -> bool:
        console = self._asks_on
        assert console is not None
        async with self._one_question:
            await asyncio.sleep(BREATH)
            try:
                return await self._ask_now(console, call)
            except (OSError, termios.error):  # the terminal is gone
                self.hung_up()
                raise asyncio.CancelledError from None

    async def _ask_now(self, console: Console, call: ToolCall) -> bool:
        async with self._taken:
            with self._view.asking(call.call_id), self._keys.heard():
                is_shown = await self._show_all(console, call)
                return is_shown and await self._answer(console, "allow? [y/N] ") in ("y", "yes")

    async def _show_all(self, console: Console, call: ToolCall) -> bool:
        """Show a call from its beginning to its end; whether somebody wanted to see all of it."""
        console.print(Text.assemble((escaped(call.name), "bold yellow"), " wants to run:"))
        rows, count = rows_of(call, console.width), 0
        while some := [*islice(rows, MOST_ROWS)]:
            if count == MOST_ROWS:
                console.print(f"This is not all of it: the call has {len(call.text):,} letters.")
                if await self._answer(console, "show the rest? [s/N] ") not in ("s", "show"):
                    return False
            console.print(Text("\n".join(some)), soft_wrap=True)
            count += len(some)
        if count > console.height - 3:
            console.print(f"The call has {count:,} rows, more than fit on the screen: look at all of them.")
        return True

    async def _answer(self, console: Console, prompt: str) -> str:
        """What is typed after this prompt; what was typed before it is no answer to it."""
        self._keys.flush()
        console.print(Text(prompt), end="")
        answer = b""
        try:
            answer = await _typed(sys.stdin.fileno())
        finally:
            if not answer.endswith(b"\n"):
                console.print()
        return answer.decode("utf-8", "replace").strip().lower()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


async def _typed(terminal: int) -> bytes:
    """The next line that is typed; nothing at its end. No thread waits for it, so that it can be cancelled.

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
    """What is typed while nobody asks: it is not shown, which would tear the rows that change, and is no answer."""

    def __init__(self, is_interactive: bool) -> None:
        self._terminal = sys.stdin.fileno() if _is_terminal(sys.stdin) else None
        self._usual = termios.tcgetattr(self._terminal) if is_interactive and self._terminal is not None else []

    def hide(self) -> None:
        if self._usual:
            *flags, local, speed_in, speed_out, characters = self._usual
            self._set([*flags, local & ~termios.ECHO, speed_in, speed_out, characters])

    def show(self) -> None:
        self._set(self._usual)

    @contextlib.contextmanager
    def heard(self) -> Generator[None]:
        self.show()
        try:
            yield
        finally:
            self.hide()

    def flush(self) -> None:
        """Forget what was typed."""
        if self._terminal is not None:
            termios.tcflush(self._terminal, termios.TCIFLUSH)

    def _set(self, attributes: list[Any]) -> None:
        """Unless we are in the background: the terminal is somebody else's then, and we would be stopped."""
        with contextlib.suppress(OSError, termios.error):
            if attributes and self._terminal is not None and os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, attributes)


class Interrupts:
    """Ctrl-C cancels what runs; a second one leaves at once. Either way, nothing that was started is left running."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.cancel: Callable[[], object] = task.cancel
        self.after_cancelling: Callable[[], object] = lambda: None
        self.before_leaving: Callable[[], object] = lambda: None
        self._pressed = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                asyncio.get_running_loop().add_signal_handler(number, self._press)

    def _press(self) -> None:
        if self._pressed:
            self._leave()
        else:
            self._pressed = True
            self.cancel()
            self.after_cancelling()

    def _leave(self) -> None:
        _kill_children()
        for task in asyncio.all_tasks():
            task.cancel()  # a command kills what it left behind
        asyncio.get_running_loop().call_later(AT_ONCE, self._exit)

    def _exit(self) -> None:
        """Something does not want to end."""
        try:
            self.before_leaving()
        finally:
            os._exit(CANCELLED)


def _kill_children() -> None:
    """Kill commands and MCP servers with all that they started."""
    from toolwire.agent.tools.family import Family, marked  # noqa: PLC0415 - as the tools

    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            Family(int(pid)).signal(signal.SIGKILL)
    for pid in marked(f"{os.getpid()}."):  # what has left them
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
