"""Asks the user whether a call may run: shows all of it, an edit as a diff, and reads the answer."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice
from pathlib import Path

from rich.console import Console, ConsoleRenderable
from rich.text import Text

from toolwire.agent.approval import escalates
from toolwire.agent.terminal.diff import can_be_shown, diff_rows, planned_changes
from toolwire.agent.terminal.display import rows_of
from toolwire.core.display import escape_invisible
from toolwire.turns.tools.call import ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Tool

MAX_ROWS = 200
"""Rows of a call that are shown before a question whether to show the rest."""
SETTLE_SECONDS = 0.05
"""Seconds to wait before a question, so that earlier events are shown first."""

_NO = re.compile(r"no?\b[\s,.:;-]*", re.IGNORECASE)


class Questions:
    """Asks about one call after the other, and remembers for which tools the answer is always yes."""

    def __init__(
        self,
        console: Console,
        cwd: Path,
        show: Callable[[Sequence[ConsoleRenderable]], None],
        ask: Callable[[str], Awaitable[str]],
        pause: Callable[[str], AbstractAsyncContextManager[None]],
    ) -> None:
        """`show` prints lines, `ask` reads a line, and inside of `pause` for a call nothing else is shown."""
        self.cwd = cwd
        """The working directory of the tools."""
        self.always: set[str] = set()
        """The tools that run without a question, except for calls that ask for more than the default."""
        self._console = console
        self._show = show
        self._ask = ask
        self._pause = pause
        self._one_question = asyncio.Lock()

    async def ask(self, tool: Tool, call: ToolCall) -> bool | str:
        """Whether a call may run: yes, no, or why not. There is one question at a time."""
        async with self._one_question:
            if tool.name in self.always and not escalates(call, Context(self.cwd)):
                return True
            await asyncio.sleep(SETTLE_SECONDS)
            async with self._pause(call.call_id):
                return await self._show_all(tool, call) and await self._decide(tool, call)

    async def _decide(self, tool: Tool, call: ToolCall) -> bool | str:
        name = escape_invisible(call.name)
        answer = (await self._ask(f"allow? [y]es / [a]lways for {name} / [N]o, or why not: ")).strip()
        match answer.lower():
            case "y" | "yes":
                return True
            case "a" | "always":
                self.always.add(tool.name)
                return True
            case _:
                return _NO.sub("", answer, count=1) if _NO.match(answer) else answer or False

    async def _show_all(self, tool: Tool, call: ToolCall) -> bool:
        """Show a call; whether the user has seen all of it."""
        self._show([Text.assemble((escape_invisible(call.name), "bold yellow"), " wants to run:")])
        rows, count = await asyncio.to_thread(self._rows, tool, call), 0
        while some := await asyncio.to_thread(lambda: [*islice(rows, MAX_ROWS)]):  # to compare files takes time
            if count == MAX_ROWS:
                self._show([Text(f"This is not all of it: the call has {len(call.text):,} characters.")])
                if (await self._ask("show the rest? [s/N] ")).strip().lower() not in ("s", "show"):
                    return False
            self._show(some)
            count += len(some)
        if count > self._console.height - 3:
            self._show([Text(f"The call has {count:,} rows, more than fit on the screen: look at all of them.")])
        return True

    def _rows(self, tool: Tool, call: ToolCall) -> Iterator[ConsoleRenderable]:
        """The call as rows: a diff if it changes files, else its arguments."""
        width = self._console.width
        try:
            found = planned_changes(tool, call, Context(self.cwd))
        except ToolError:  # the call will fail in the same way if it is allowed
            found = []
        if can_be_shown(found):
            return diff_rows(found, width)
        return (Text(row, no_wrap=True, overflow="ignore") for row in rows_of(call, width))
