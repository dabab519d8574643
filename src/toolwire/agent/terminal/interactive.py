"""An interactive session: typed prompts and commands are queued, and handled one after the other."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from rich.table import Table
from rich.text import Text

from toolwire import __version__
from toolwire.agent.changes import Changes
from toolwire.agent.events import AgentEvent, TaskEnded
from toolwire.agent.history import user_message
from toolwire.agent.mcp import Servers
from toolwire.agent.runner import Runner
from toolwire.agent.session import Session, folder, list_sessions, session_rows
from toolwire.agent.terminal.commands import (
    COMMANDS,
    IMMEDIATE_COMMANDS,
    KEYS,
    MAX_CHARS,
    MAX_DIFF_ROWS,
    MAX_SESSIONS,
    TAKEN_BACK,
    change_rows,
    list_arguments,
    make_recap,
    parse_command,
    prompt_line,
    status_rows,
)
from toolwire.agent.terminal.completion import LineCompleter
from toolwire.agent.terminal.display import shorten_line
from toolwire.agent.terminal.input_line import InputLine, PromptHistory
from toolwire.agent.terminal.interrupts import kill_children
from toolwire.agent.terminal.mentions import include_files
from toolwire.agent.terminal.questions import Questions
from toolwire.agent.terminal.view import View
from toolwire.core.display import clean
from toolwire.core.errors import BackendFault, BadRequest, ToolwireError
from toolwire.turns.tools.registry import Context


class Interactive:
    """The terminal of an interactive session; `run` works until the user leaves.

    With `has_session` the agent's session is a resumed one; otherwise the first prompt begins one.
    """

    def __init__(
        self, agent: Runner, servers: Servers | None, *, has_session: bool, verbose: bool = False, quiet: bool = False
    ) -> None:
        self.has_session = has_session
        """Whether the session is stored: from the first prompt on, or from the start if it is resumed."""
        self._agent = agent
        self._servers = servers
        self._queue: deque[str] = deque()
        self._line = InputLine(
            LineCompleter(lambda: agent.cwd, COMMANDS, partial(list_arguments, agent)),
            PromptHistory(),
            on_line=self._take,
            on_interrupt=self._interrupt,
            queued=lambda: self._queue,
            status=self._status,
        )
        self._view = View(self._line, verbose=verbose, quiet=quiet, sums=False)
        self.questions = Questions(self._view, lambda: agent.cwd, self._line.exit)
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
        self._view.print(
            Text(f"toolwire {__version__} · {clean(agent.session.model)} · {agent.sandbox} · /help", "dim")
        )
        if self.has_session:
            self._view.resume(agent.session.usage)
            self._view.print(*make_recap(agent.session.history))
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
        return f"{self._agent.session.model} · {self._agent.sandbox} · {self._view.sums} · {shown}"

    # Keys

    def _take(self, line: str) -> None:
        command = parse_command(line)
        if self._is_busy and command is not None and command[0] in IMMEDIATE_COMMANDS:
            self._show(command[0])
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
            self._view.show_cancelling()

    # Work

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            self._is_busy, self._has_cancelled = True, False
            try:
                is_done = await self._handle(self._queue.popleft())
            except (ToolwireError, OSError, ValueError) as error:
                self._view.note(str(error))
                is_done = False
            self._is_busy = False
            if not is_done and self._queue:
                self._line.put("\n".join([*self._queue, self._line.text]).rstrip("\n"))
                self._queue.clear()

    async def _handle(self, line: str) -> bool:
        """Carry out a command or a prompt; returns whether the next one may follow."""
        agent, view = self._agent, self._view
        view.print(prompt_line(line))
        match parse_command(line):
            case None:
                return await self._answer(line)
            case ("/exit" | "/quit", _):
                self.leave()
            case ("/compact", _) if not len(agent.session.history):
                view.note("there is nothing to summarise yet")
            case ("/compact", _):
                view.wait_for("the summary")
                return await self._watch(agent.compact())
            case ("/model", ""):
                current, names = agent.session.model, agent.model.settings.model_names
                self._table([(">" if each == current else "", each) for each in dict.fromkeys((current, *names))])
            case ("/model", name):
                await agent.use_model(name)
                view.note(f"the model is {name} now")
            case ("/resume", which):
                await self._resume(which)
            case ("/new", _):
                agent.session.close()
                agent.session = Session.begin(agent.session.model, agent.cwd, None)
                agent.changes = Changes()
                self.has_session = False
                view.resume(agent.session.usage)
                view.note("the next prompt begins a new session")
            case (name, _) if not (self._show(name) or await self._review(name)):
                view.note(f"there is no command {name}; /help lists them")
                return False
            case _:
                pass
        return True

    async def _watch(self, events: AsyncIterator[AgentEvent]) -> bool:
        """Show all events; returns whether the task ended well."""
        is_done = True
        async for event in events:
            await self._view.show_next(event)
            is_done = isinstance(event, TaskEnded) and event.reason == "done"
        return is_done

    def _show(self, name: str) -> bool:
        """Carry out a command that only shows something; returns whether it is one."""
        match name:
            case "/help":
                self._table([*COMMANDS.items(), ("", ""), *KEYS.items()])
            case "/tools":
                self._agent.registry.refresh()
                rows: list[tuple[str, ...]] = []
                for tool in self._agent.registry:
                    changes = "may change something" if tool.writes else ""
                    permission = "always allowed" if tool.name in self.questions.always else changes
                    rows.append((tool.name, permission, tool.description))
                self._table(rows, "there are no tools")
            case "/mcp":
                remotes = self._servers.remotes if self._servers is not None else ()
                rows = [(each.server.name, each.state, f"{len(each.tools)} tools") for each in remotes]
                self._table(rows, "there are no MCP servers; --mcp FILE starts some")
            case _:
                return False
        return True

    async def _answer(self, prompt: str) -> bool:
        """Work on a prompt; returns whether the task ended well."""
        agent = self._agent
        if self._servers is not None:
            self._view.wait_for("MCP servers")
            await self._servers.ready()
        if not self.has_session:
            agent.session = Session.begin(agent.session.model, agent.cwd, folder())
            agent.session.hold()
            self.has_session = True
        whole = await asyncio.to_thread(include_files, prompt, agent.cwd)
        for problem in whole.problems:
            self._view.note(problem)
        return await self._watch(agent.stream(whole.text, whole.images))

    async def _review(self, name: str) -> bool:
        """Carry out a command about the session so far; returns whether it is one. Raises `ToolError`."""
        agent, view, changes = self._agent, self._view, self._agent.changes
        match name:
            case "/status":
                self._table(await status_rows(agent, self.questions), max_chars=4 * MAX_CHARS)
            case "/diff":
                found = await asyncio.to_thread(changes.list_all)
                rows = await asyncio.to_thread(lambda: [*change_rows(found, view.console.width)])
                view.print(*rows[:MAX_DIFF_ROWS])
                rest = f"{len(rows) - MAX_DIFF_ROWS:,} more rows are not shown; " if len(rows) > MAX_DIFF_ROWS else ""
                old = "older changes are forgotten; " if changes.are_forgotten else ""
                none = "" if rows else "the file tools have changed nothing; "
                view.note(f"{rest}{old}{none}changes by commands are not included")
            case "/undo":
                names = ", ".join(await asyncio.to_thread(changes.undo, Context(agent.cwd)))
                agent.session.add([user_message(TAKEN_BACK.format(names))])
                view.note(f"taken back: {names}")
            case _:
                return False
        return True

    async def _resume(self, which: str) -> None:
        """Show earlier sessions, or continue one, by its id or its number in the list."""
        found = [*islice(list_sessions(folder()), MAX_SESSIONS)]
        if not which:
            rows = [(str(number), *row) for number, row in enumerate(session_rows(found, time.time()), 1)]
            self._table(rows, "there are no sessions yet")
            return
        id = found[int(which) - 1].id if which.isdecimal() and 0 < int(which) <= len(found) else which
        agent, model = self._agent, self._agent.session.model
        if id == agent.session.id:
            self._view.note("this session is already open")
            return
        session = Session.resume(id, folder())
        agent.session.close()
        agent.session, agent.changes = session, Changes()
        try:
            await agent.use_model(session.model)
        except (BadRequest, BackendFault) as error:
            self._view.note(f"{error} The session continues with {model}.")
            session.use_model(model)
        self._show_resumed()

    def _show_resumed(self) -> None:
        """Continue in the directory of a resumed session, with its tokens, and show its last prompt and answer."""
        session = self._agent.session
        if Path(session.cwd).is_dir():
            self._agent.cwd = Path(session.cwd)
        else:
            self._view.note(f"the directory of the session no longer exists: {session.cwd}")
        self._view.resume(session.usage)
        self.has_session = True
        self._view.print(*make_recap(session.history))

    def _table(self, rows: Sequence[Sequence[str]], none: str = "", max_chars: int = MAX_CHARS) -> None:
        if not rows:
            self._view.note(none)
            return
        table = Table.grid(padding=(0, 2))
        for name, *cells in rows:
            others = (Text(shorten_line(cell, max_chars)) for cell in cells)
            table.add_row(Text(shorten_line(name, max_chars), "bold"), *others)
        self._view.print(table)
