"""The terminal: keyboard input, approval questions and Ctrl-C.

Drawing is done by `view.py`. The terminal is always restored.
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
from toolwire.agent.display import rows_of
from toolwire.agent.events import AgentEvent
from toolwire.agent.view import SPINS, View
from toolwire.core.terminal import clean, escaped
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.registry import Tool

CANCELLED = 130
"""The exit code of a run that was cancelled."""
SETTLE_SECONDS = 0.05
"""Seconds before a question, in which earlier events are shown."""
MAX_ROWS = 200
"""Rows of a call that are shown before the user is asked whether to show the rest."""
EXIT_SECONDS = 0.1
"""Seconds after a second Ctrl-C until the process exits."""


class Screen:
    """Shows events and asks for approval, one question at a time."""

    def __init__(self) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a character that the terminal cannot show is no reason to end
        self.view = View(Console(highlight=False, force_interactive=None if sys.stdout.isatty() else False))
        self._keys = Keys(self.view.console.is_interactive)
        self._one_question = asyncio.Lock()
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
            if line:
                self.view.console.print(Text(clean(line), "dim"), soft_wrap=True)
        finally:
            self._keys.show()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1 / SPINS)
            self.view.refresh()

    async def show(self, event: AgentEvent) -> None:
        """Show an event."""
        async with self._taken:
            self.view.show(event)

    @property
    def approver(self) -> Approver | None:
        """Asks the user; None without a terminal."""
        return self._ask if _is_terminal(sys.stdin) and self._asks_on is not None else None

    @property
    def _asks_on(self) -> Console | None:
        if _is_terminal(sys.stdout):
            return self.view.console
        return Console(stderr=True, highlight=False) if _is_terminal(sys.stderr) else None

    async def _ask(self, tool: Tool, call: ToolCall) -> bool:
        console = self._asks_on
        assert console is not None
        async with self._one_question:
            await asyncio.sleep(SETTLE_SECONDS)
            try:
                async with self._taken:
                    with self.view.asking(call.call_id), self._keys.echoing():
                        is_shown = await self._show_all(console, call)
                        return is_shown and await self._answer(console, "allow? [y/N] ") in ("y", "yes")
            except (OSError, termios.error):  # the terminal is gone
                self.on_hangup()
                raise asyncio.CancelledError from None

    async def _show_all(self, console: Console, call: ToolCall) -> bool:
        """Show a call; whether the user has seen all of it."""
        console.print(Text.assemble((escaped(call.name), "bold yellow"), " wants to run:"))
        rows, count = rows_of(call, console.width), 0
        while some := [*islice(rows, MAX_ROWS)]:
            if count == MAX_ROWS:
                console.print(f"This is not all of it: the call has {len(call.text):,} characters.")
                if await self._answer(console, "show the rest? [s/N] ") not in ("s", "show"):
                    return False
            console.print(Text("\n".join(some)), soft_wrap=True)
            count += len(some)
        if count > console.height - 3:
            console.print(f"The call has {count:,} rows, more than fit on the screen: look at all of them.")
        return True

    async def _answer(self, console: Console, prompt: str) -> str:
        """The line typed after this prompt; what was typed before is discarded."""
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
        self._terminal = sys.stdin.fileno() if _is_terminal(sys.stdin) else None
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


class Interrupts:
    """Ctrl-C cancels the task, a second one exits at once; in both cases all child processes are ended."""

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
        asyncio.get_running_loop().call_later(EXIT_SECONDS, self._exit)

    def _exit(self) -> None:
        """Exit although something has not ended."""
        try:
            self.before_leaving()
        finally:
            os._exit(CANCELLED)


def _kill_children() -> None:
    """Kill commands and MCP servers with all their descendants."""
    from toolwire.agent.tools.process_tree import ProcessTree, marked  # noqa: PLC0415 - as the tools

    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            ProcessTree(int(pid)).signal(signal.SIGKILL)
    for pid in marked(f"{os.getpid()}."):  # what has left them
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
