"""The prompts and commands of an interactive session. Commands begin with a slash."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from pathlib import Path

from rich.console import ConsoleRenderable
from rich.table import Table
from rich.text import Text

from toolwire.agent.events import AgentEvent
from toolwire.agent.history import History, MessageItem
from toolwire.agent.mcp import Servers
from toolwire.agent.runner import Runner
from toolwire.agent.session import Session, folder, list_sessions, session_rows
from toolwire.agent.terminal.display import shorten_line
from toolwire.agent.terminal.markdown import SafeMarkdown
from toolwire.agent.terminal.mentions import with_files
from toolwire.agent.terminal.view import View
from toolwire.core.display import clean
from toolwire.core.errors import BadRequest

COMMANDS = {
    "/model": "show the models, or switch to one: /model NAME",
    "/tools": "show the tools",
    "/mcp": "show the MCP servers",
    "/resume": "show earlier sessions, or resume one: /resume ID",
    "/new": "begin a new session",
    "/compact": "replace the conversation with a summary",
    "/help": "show this help",
    "/exit": "leave; the same as Ctrl-D",
}
IMMEDIATE_COMMANDS = ("/tools", "/mcp", "/help")
"""Commands that run even while a task runs."""
KEYS = {
    "Enter": "send; while a task runs, the line is queued",
    "Ctrl-J, Alt-Enter, \\ Enter": "a new line",
    "@path": "include a file; Tab completes its path",
    "Up, Down, Ctrl-R": "earlier prompts",
    "Ctrl-C": "cancel the task, or clear the line",
    "Ctrl-D": "leave",
}
MAX_SESSIONS = 10
MAX_CHARS = 60
"""Characters of a prompt or description in a list."""

_COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)


def command_in(line: str) -> tuple[str, str] | None:
    """The command in a line and what follows it; None if it is a prompt, such as one that begins with a path."""
    found = _COMMAND.fullmatch(line.strip())
    return (found[1], (found[2] or "").strip()) if found is not None else None


class Commands:
    """Carries out prompts and commands. `always` are the tools that run without a question."""

    def __init__(
        self, agent: Runner, view: View, servers: Servers | None, always: set[str], *, has_session: bool
    ) -> None:
        self.has_session = has_session
        """Whether the session is stored: from the first prompt on, or from the start if it is resumed."""
        self._agent = agent
        self._view = view
        self._servers = servers
        self._always = always

    async def run(self, name: str, argument: str) -> bool:
        """Carry out a command; whether it succeeded."""
        match name:
            case "/model" if argument:
                await self._agent.use_model(argument)
                self._view.note(f"the model is {argument} now")
            case "/model":
                current, names = self._agent.session.model, self._agent.model.settings.model_names
                self._table([(">" if each == current else "", each) for each in dict.fromkeys((current, *names))])
            case "/resume":
                await self._resume(argument)
            case "/new":
                self._agent.session.close()
                self._agent.session = Session.begin(self._agent.session.model, self._agent.cwd, None)
                self.has_session = False
                self._view.resume(self._agent.session.usage)
                self._view.note("the next prompt begins a new session")
            case _ if not self.show(name):
                self._view.note(f"there is no command {name}; /help lists them")
                return False
            case _:
                pass
        return True

    def show(self, name: str) -> bool:
        """Carry out a command that only shows something; whether it is one."""
        match name:
            case "/help":
                self._table([*COMMANDS.items(), ("", ""), *KEYS.items()])
            case "/tools":
                self._agent.registry.refresh()
                rows: list[tuple[str, ...]] = []
                for tool in self._agent.registry:
                    changes = "may change something" if tool.writes else ""
                    permission = "always allowed" if tool.name in self._always else changes
                    rows.append((tool.name, permission, tool.description))
                self._table(rows, "there are no tools")
            case "/mcp":
                remotes = self._servers.remotes if self._servers is not None else ()
                rows = [(each.server.name, each.state, f"{len(each.tools)} tools") for each in remotes]
                self._table(rows, "there are no MCP servers; --mcp FILE starts some")
            case _:
                return False
        return True

    async def on_prompt(self, line: str) -> AsyncIterator[AgentEvent]:
        """Work on a prompt."""
        agent = self._agent
        if self._servers is not None:
            self._view.wait_for("MCP servers")
            await self._servers.ready()
        if not self.has_session:
            agent.session = Session.begin(agent.session.model, agent.cwd, folder())
            agent.session.hold()
            self.has_session = True
        prompt = await asyncio.to_thread(with_files, line, agent.cwd)
        for problem in prompt.problems:
            self._view.note(problem)
        async for event in agent.stream(prompt.text, prompt.images):
            yield event

    async def on_compact(self) -> AsyncIterator[AgentEvent]:
        """Summarise the conversation."""
        if not len(self._agent.session.history):
            self._view.note("there is nothing to summarise yet")
            return
        self._view.wait_for("the summary")
        async for event in self._agent.compact():
            yield event

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
        agent.session = session
        try:
            await agent.use_model(session.model)
        except BadRequest:
            self._view.note(f"no backend serves {session.model} here; continuing with {model}")
            session.use_model(model)
        self.show_resumed()

    def show_resumed(self) -> None:
        """Continue in the directory of a resumed session, with its tokens, and show its last prompt and answer."""
        session = self._agent.session
        if Path(session.cwd).is_dir():
            self._agent.cwd = Path(session.cwd)
        else:
            self._view.note(f"the directory of the session no longer exists: {session.cwd}")
        self._view.resume(session.usage)
        self.has_session = True
        self._view.print(*recap(session.history))

    def _table(self, rows: Sequence[Sequence[str]], none: str = "") -> None:
        if not rows:
            self._view.note(none)
            return
        table = Table.grid(padding=(0, 2))
        for name, *cells in rows:
            others = (Text(shorten_line(cell, MAX_CHARS)) for cell in cells)
            table.add_row(Text(shorten_line(name, MAX_CHARS), "bold"), *others)
        self._view.print(table)


def argument_words(agent: Runner, name: str) -> Iterable[tuple[str, str]]:
    """The words that may follow a command, with their meaning."""
    if name == "/model":
        return [(each, "") for each in agent.model.settings.model_names]
    if name == "/resume":
        found = islice(list_sessions(folder()), MAX_SESSIONS)
        return [(each.id, shorten_line(each.prompt, MAX_CHARS)) for each in found]
    return []


def user_line(text: str) -> ConsoleRenderable:
    """A prompt as it stands above its answer."""
    return Text.assemble(("> ", "bold cyan"), clean(text).replace("\n", "\n  "))


def recap(history: History) -> list[ConsoleRenderable]:
    """The last prompt and the last answer of a conversation."""
    messages = [item for item in history.items if isinstance(item, MessageItem) and item.text.strip()]
    prompts = [item for item in messages if item.role == "user"]
    answers = [item for item in messages if item.role == "assistant"]
    shown: list[ConsoleRenderable] = [user_line(shorten_line(item.text, 500)) for item in prompts[-1:]]
    return [*shown, *(SafeMarkdown(clean(item.text)) for item in answers[-1:])]
