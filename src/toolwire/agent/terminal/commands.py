"""The commands and keys of an interactive session. Commands begin with a slash."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rich.console import ConsoleRenderable
from rich.text import Text

from toolwire.agent.history import History, MessageItem
from toolwire.agent.runner import Runner
from toolwire.agent.session import folder, list_sessions
from toolwire.agent.terminal.display import shorten_line
from toolwire.agent.terminal.markdown import SafeMarkdown
from toolwire.agent.terminal.questions import Questions, can_diff, diff_rows
from toolwire.core.display import clean, escape_invisible
from toolwire.turns.tools.registry import FileChange

COMMANDS = {
    "/model": "show the models, or switch to one: /model NAME",
    "/tools": "show the tools",
    "/mcp": "show the MCP servers",
    "/status": "show the model, the share of its context that is used, and what is allowed",
    "/diff": "show what the file tools have changed in this session",
    "/undo": "take back the changes of the last prompt that changed files",
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
APPROVAL = {
    "never": "no call is asked about",
    "on-write": "calls that may change something are asked about",
    "always": "all calls are asked about",
}
TAKEN_BACK = "I have taken back your last changes to these files: {}"
"""Tells the model about `/undo`."""
MAX_DIFF_ROWS = 2000
MAX_SESSIONS = 10
MAX_CHARS = 60
"""Characters of a prompt or description in a list."""

_COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)


def parse_command(line: str) -> tuple[str, str] | None:
    """The command in a line and what follows it; None if it is a prompt, such as one that begins with a path."""
    found = _COMMAND.fullmatch(line.strip())
    return (found[1], (found[2] or "").strip()) if found is not None else None


def list_arguments(agent: Runner, name: str) -> Iterable[tuple[str, str]]:
    """The words that may follow a command, with their meaning."""
    if name == "/model":
        return [(each, "") for each in agent.model.settings.model_names]
    if name == "/resume":
        found = islice(list_sessions(folder()), MAX_SESSIONS)
        return [(each.id, shorten_line(each.prompt, MAX_CHARS)) for each in found]
    return []


async def status_rows(agent: Runner, questions: Questions) -> list[tuple[str, str]]:
    """The state of a session, as the cells of a table."""
    backend, target = agent.model.place
    used, window = agent.session.last.total, agent.config.context_window or await agent.model.context_window()
    share = f" of {window:,} tokens ({used / window:.0%})" if window else " tokens; the size of the window is not known"
    allowed = (*sorted(questions.always), *(f"`{' '.join(prefix)}`" for prefix in questions.commands))
    return [
        ("model", agent.session.model if agent.session.model == target else f"{agent.session.model} ({target})"),
        ("backend", f"{backend.name} ({backend.kind})"),
        ("context", f"{used:,}{share}"),
        ("sandbox", str(agent.sandbox)),
        ("approval", "read-only" if agent.config.read_only else APPROVAL[agent.config.approve]),
        ("always allowed", ", ".join(allowed) or "nothing"),
        ("folder", str(agent.cwd)),
        ("session", agent.session.id),
    ]


def change_rows(changes: Sequence[FileChange], width: int) -> Iterator[ConsoleRenderable]:
    """The changes of files as rows of a terminal."""
    for change in changes:
        if can_diff([change]):
            yield from diff_rows([change], width)
        else:
            yield Text(
                f"  {escape_invisible(change.name)} (changed; it is not shown, as it is no text or too large)", "bold"
            )


def prompt_line(text: str) -> ConsoleRenderable:
    """A prompt as shown above its answer."""
    return Text.assemble(("> ", "bold cyan"), clean(text).replace("\n", "\n  "))


def make_recap(history: History) -> list[ConsoleRenderable]:
    """The last prompt and the last answer of a conversation."""
    messages = [item for item in history.items if isinstance(item, MessageItem) and item.text.strip()]
    prompts = [item for item in messages if item.role == "user"]
    answers = [item for item in messages if item.role == "assistant"]
    shown: list[ConsoleRenderable] = [prompt_line(shorten_line(item.text, 500)) for item in prompts[-1:]]
    return [*shown, *(SafeMarkdown(clean(item.text)) for item in answers[-1:])]
