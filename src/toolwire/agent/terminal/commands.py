"""The commands of an interactive session, which begin with a slash."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

from rich.console import ConsoleRenderable
from rich.table import Table
from rich.text import Text

from toolwire.agent.history import History, MessageItem
from toolwire.agent.mcp import Servers
from toolwire.agent.runner import Runner
from toolwire.agent.session import Session, folder
from toolwire.agent.session_index import recent, session_rows
from toolwire.agent.terminal.display import short
from toolwire.agent.terminal.markdown import SafeMarkdown
from toolwire.agent.terminal.view import View
from toolwire.core.errors import BadRequest
from toolwire.core.terminal import clean

COMMANDS = {
    "/model": "show the models, or go on with another one: /model NAME",
    "/tools": "show the tools",
    "/mcp": "show the MCP servers",
    "/resume": "show earlier sessions, or go on with one: /resume ID",
    "/new": "begin a new session",
    "/compact": "put a summary in place of the conversation",
    "/help": "show this",
    "/exit": "leave; so does Ctrl-D",
}
SHOWN_AT_ONCE = ("/tools", "/mcp", "/help")
"""Those that need not wait for the end of a task."""
KEYS = {
    "Enter": "send; while a task runs, the line is queued",
    "Ctrl-J, Alt-Enter, \\ Enter": "a new line",
    "@path": "bring a file along; Tab completes its path",
    "Up, Down, Ctrl-R": "earlier prompts",
    "Ctrl-C": "end the task, or clear the line",
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
    """Carries commands out. `on_session` is called when another session is the current one."""

    def __init__(self, agent: Runner, view: View, servers: Servers | None, always: set[str]) -> None:
        self._agent = agent
        self._view = view
        self._servers = servers
        self._always = always
        self.on_session: Callable[[], None] = lambda: None

    def show(self, name: str) -> bool:
        """Carry out a command that only shows something; whether it is one."""
        match name:
            case "/help":
                self._table([*COMMANDS.items(), ("", ""), *KEYS.items()])
            case "/tools":
                self._agent.registry.refresh()
                rows = [
                    (tool.name, self._about(tool.name, tool.writes), tool.description) for tool in self._agent.registry
                ]
                self._table(rows, "there are no tools")
            case "/mcp":
                remotes = self._servers.remotes if self._servers is not None else ()
                rows = [(each.server.name, each.state, f"{len(each.tools)} tools") for each in remotes]
                self._table(rows, "there are no MCP servers; --mcp FILE starts some")
            case _:
                return False
        return True

    async def use_model(self, name: str) -> None:
        """Show the models, or go on with another one."""
        current, names = self._agent.session.model, self._agent.settings.model_names
        if not name:
            self._table([(">" if each == current else "", each) for each in dict.fromkeys((current, *names))])
            return
        await self._agent.use_model(name)
        self._view.note(f"the model is {name} now")

    async def resume(self, which: str) -> None:
        """Show earlier sessions, or go on with one, by its id or its number in the list."""
        found = [*islice(recent(folder()), MAX_SESSIONS)]
        if not which:
            now = time.time()
            rows = [(str(number), *row) for number, row in enumerate(session_rows(found, now), 1)]
            self._table(rows, "there are no sessions yet")
            return
        id = found[int(which) - 1].id if which.isdecimal() and 0 < int(which) <= len(found) else which
        if id == self._agent.session.id:
            self._view.note("that is this session")
            return
        await self._go_on(Session.resume(id, folder()))

    async def _go_on(self, session: Session) -> None:
        agent, model = self._agent, self._agent.session.model
        agent.session.close()
        agent.session = session
        try:
            await agent.use_model(session.model)
        except BadRequest:
            self._view.note(f"nobody serves {session.model} here: {model} goes on")
            session.use_model(model)
        self._use_directory(session.cwd)
        self._view.resume(session.usage)
        self.on_session()
        for line in recap(session.history):
            self._view.print(line)

    def _use_directory(self, cwd: str) -> None:
        if Path(cwd).is_dir():
            self._agent.cwd = Path(cwd)
        else:
            self._view.note(f"the directory of the session is gone: {cwd}")

    def words(self, name: str) -> Iterable[tuple[str, str]]:
        """What may follow a command, with its meaning."""
        if name == "/model":
            return [(each, "") for each in self._agent.settings.model_names]
        if name == "/resume":
            return [(each.id, short(each.prompt, MAX_CHARS)) for each in islice(recent(folder()), MAX_SESSIONS)]
        return []

    def _about(self, name: str, writes: bool) -> str:
        return "always allowed" if name in self._always else "may change something" if writes else ""

    def _table(self, rows: Sequence[Sequence[str]], none: str = "") -> None:
        if not rows:
            self._view.note(none)
            return
        table = Table.grid(padding=(0, 2))
        for row in rows:
            table.add_row(
                *(Text(short(cell, MAX_CHARS), "bold" if not index else "") for index, cell in enumerate(row))
            )
        self._view.print(table)


def user_line(text: str) -> ConsoleRenderable:
    """A prompt as it stands above its answer."""
    return Text.assemble(("> ", "bold cyan"), clean(text).replace("\n", "\n  "))


def recap(history: History) -> list[ConsoleRenderable]:
    """The last prompt and the last answer of a conversation."""
    messages = [item for item in history.items if isinstance(item, MessageItem) and item.text.strip()]
    prompts = [item for item in messages if item.role == "user"]
    answers = [item for item in messages if item.role == "assistant"]
    shown: list[ConsoleRenderable] = [user_line(short(item.text, 500)) for item in prompts[-1:]]
    return [*shown, *(SafeMarkdown(clean(item.text)) for item in answers[-1:])]
