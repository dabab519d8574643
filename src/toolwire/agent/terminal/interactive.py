"""An interactive session: typed prompts and commands are worked on one after the other; the others are queued."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from rich.text import Text

from toolwire import __version__
from toolwire.agent.events import AgentEvent, TaskEnded
from toolwire.agent.mcp import Servers
from toolwire.agent.runner import Runner
from toolwire.agent.session import SessionError
from toolwire.agent.terminal.commands import (
    COMMANDS,
    IMMEDIATE_COMMANDS,
    Commands,
    argument_words,
    command_in,
    recap,
    user_line,
)
from toolwire.agent.terminal.completion import LineCompleter
from toolwire.agent.terminal.input_line import InputLine, PromptHistory
from toolwire.agent.terminal.interrupts import kill_children
from toolwire.agent.terminal.questions import Questions
from toolwire.agent.terminal.view import View
from toolwire.core.display import clean
from toolwire.core.errors import ToolwireError


class Interactive:
    """The terminal of an interactive session; `run` works until the user leaves.

    With `has_session` the agent's session is a resumed one; otherwise the first prompt begins one.
    """

    def __init__(
        self, agent: Runner, servers: Servers | None, *, has_session: bool, verbose: bool = False, quiet: bool = False
    ) -> None:
        self._agent = agent
        self._queue: deque[str] = deque()
        self._line = InputLine(
            LineCompleter(lambda: agent.cwd, COMMANDS, partial(argument_words, agent)),
            PromptHistory(),
            on_line=self._take,
            on_interrupt=self._interrupt,
            queued=lambda: self._queue,
            status=self._status,
        )
        self._view = View(self._line, verbose=verbose, quiet=quiet, sums=False)
        self.questions = Questions(self._view, lambda: agent.cwd, self._line.exit)
        self.commands = Commands(agent, self._view, servers, self.questions.always, has_session=has_session)
        self._wake = asyncio.Event()
        self._is_busy = False
        self._has_cancelled = False

    def say(self, server: str, message: str) -> None:
        """Show a message about an MCP server."""
        self._view.note(f"MCP server {server}: {message}")

    def leave(self) -> None:
        """End the session."""
        self._line.exit()

    async def run(self) -> None:
        """Work on typed lines until the user leaves."""
        agent = self._agent
        self._view.print(Text(f"toolwire {__version__} · {clean(agent.session.model)} · /help", "dim"))
        if self.commands.has_session:
            self._view.resume(agent.session.usage)
            self._view.print(*recap(agent.session.history))
        with self._view:
            self._view.refresh()
            work = (self._line.run(), self._work(), self._view.keep_refreshing())
            tasks = [asyncio.ensure_future(each) for each in work]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._line.exit()
                for task in reversed(tasks):
                    task.cancel()
                await asyncio.wait(tasks)
            for task in done:
                task.result()

    def _status(self) -> str:
        path, home = self._agent.cwd, Path.home()
        shown = f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)
        return f"{self._agent.session.model} · {self._view.sums} · {shown}"

    # Keys

    def _take(self, line: str) -> None:
        command = command_in(line)
        if self._is_busy and command is not None and command[0] in IMMEDIATE_COMMANDS:
            self.commands.show(command[0])
            return
        self._queue.append(line)
        self._wake.set()

    def _interrupt(self) -> None:
        if not self._is_busy:
            self._view.note("Ctrl-D or /exit leaves")
        elif self._has_cancelled:
            kill_children()
        else:
            self._has_cancelled = True
            self._agent.cancel()
            self._view.cancelling()

    # Work

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            self._is_busy, self._has_cancelled = True, False
            try:
                is_done = await self._handle(self._queue.popleft())
            except (SessionError, ToolwireError, OSError, ValueError) as error:
                self._view.note(str(error))
                is_done = False
            self._is_busy = False
            if not is_done and self._queue:
                self._line.put("\n".join([*self._queue, self._line.text]).rstrip("\n"))
                self._queue.clear()

    async def _handle(self, line: str) -> bool:
        """Carry out a command or a prompt; whether the next one may follow."""
        self._view.print(user_line(line))
        match command_in(line):
            case None:
                return await self._watch(self.commands.on_prompt(line))
            case ("/exit" | "/quit", _):
                self.leave()
                return True
            case ("/compact", _):
                return await self._watch(self.commands.on_compact())
            case (name, argument):
                return await self.commands.run(name, argument)

    async def _watch(self, events: AsyncIterator[AgentEvent]) -> bool:
        """Show all events; whether the task ended well."""
        is_done = True
        async for event in events:
            await self._view.show_next(event)
            is_done = isinstance(event, TaskEnded) and event.reason == "done"
        return is_done
