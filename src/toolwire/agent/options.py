"""The options of `toolwire run`, and the prompt, session, model and tools that they select."""

import os
import sys
from pathlib import Path
from typing import get_args

import msgspec

from toolwire.agent.approval import Policy
from toolwire.agent.errors import ServerFailed
from toolwire.agent.mcp import Server, read_config, require_package
from toolwire.agent.model import GIVEN_BACKEND
from toolwire.agent.session import Session, folder
from toolwire.agent.session_index import list_sessions
from toolwire.agent.task import AgentConfig
from toolwire.agent.terminal.screen import is_terminal
from toolwire.agent.tools import builtin
from toolwire.config.settings import DEMO, Settings, find_address_fault
from toolwire.memory.private_files import read_file
from toolwire.turns.tools.loop import Limits
from toolwire.turns.tools.registry import Toolset

INSTRUCTIONS = (
    "You help with the files and programs in the working directory. Use the tools to look before you answer, "
    "and say briefly what you did."
)
NO_TOOLS = "none"
STDIN = "-"
"""The prompt argument that means standard input."""


class UsageError(Exception):
    """The command line is not valid; the message is one line for the user."""


class RunOptions(msgspec.Struct, frozen=True):
    """The options of the command line."""

    prompt: str | None = None
    """None: standard input if that is not a terminal, else an interactive session."""
    model: str = ""
    backend: str = ""
    tools: str | None = None
    mcp: str = ""
    cwd: str = ""
    settings_path: str | None = None
    resume: str = ""
    continues: bool = False
    as_json: bool = False
    verbose: bool = False
    quiet: bool = False
    agent_config: AgentConfig = AgentConfig(instructions=INSTRUCTIONS, approve="on-write")


def config_from(approve: str, effort: str, max_turns: int, context_window: int, *, read_only: bool) -> AgentConfig:
    """The agent configuration for these options. Raises `UsageError`."""
    if approve not in get_args(Policy):
        raise UsageError(f"--approve: {approve!r} is none of {', '.join(get_args(Policy))}")
    for option, number in (("--max-turns", max_turns), ("--context-window", context_window)):
        if number < 0:
            raise UsageError(f"{option}: {number} is less than 0")
    return AgentConfig(
        instructions=INSTRUCTIONS,
        effort=effort,
        limits=Limits(max_turns=max_turns),
        context_window=context_window,
        approve=msgspec.convert(approve, Policy),
        read_only=read_only,
    )


def choose_prompt(options: RunOptions) -> str | None:
    """The prompt; None for an interactive session. Raises `UsageError`."""
    given = options.prompt
    if given is None and is_terminal(sys.stdin):
        if options.as_json:
            raise UsageError("--json: say what to do, or - to read it from standard input")
        if not is_terminal(sys.stdout) or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
            raise UsageError("an interactive session needs a terminal; say what to do instead")
        return None
    prompt = _read_stdin() if given in (None, STDIN) else given
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    if any("\ud800" <= char <= "\udfff" for char in prompt):
        raise UsageError("the prompt is not UTF-8")
    return prompt


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("stdin is closed")
    try:
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape").rstrip("\n")
    except OSError as error:
        raise UsageError(f"stdin: {error.strerror}") from None
    except KeyboardInterrupt:
        print(file=sys.stderr)  # after the `^C` of a terminal
        raise


def choose_session(options: RunOptions) -> Session | None:
    """The session to resume, if any. Raises `UsageError` and `SessionError`."""
    if not options.continues:
        return Session.resume(options.resume, folder()) if options.resume else None
    if options.resume:
        raise UsageError("--continue and --resume: choose one of them")
    cwd = choose_directory(options.cwd, None)
    found = next(list_sessions(folder(), cwd), None)
    if found is None:
        raise UsageError(f"--continue: there is no session in {cwd}; toolwire sessions lists all")
    return Session.resume(found.id, folder())


def choose_directory(cwd: str, session: Session | None) -> Path:
    """The working directory: the given one, that of the session, or the current one. Raises `UsageError`."""
    if session is not None and session.cwd and not cwd:
        if not Path(session.cwd).is_dir():
            fault = f"the directory of the session is gone: {session.cwd}"
            raise UsageError(f"--resume: {fault}; choose another with --cwd")
        return Path(session.cwd)
    try:
        path = Path(cwd or ".").resolve()
        if path.is_dir():
            return path
    except FileNotFoundError:
        raise UsageError("the directory that you are in is gone; choose another with --cwd") from None
    except OSError as error:
        raise UsageError(f"--cwd: {cwd}: {error.strerror}") from None
    raise UsageError(f"--cwd: there is no directory {cwd!r}")


def choose_model(options: RunOptions, session: Session | None, settings: Settings) -> tuple[str, str]:
    """The model, and the name of its backend if one was given. Raises `UsageError`."""
    url = options.backend.partition(":")[2]
    fault = find_address_fault(url) if "://" in url else ""
    if fault:
        raise UsageError(f"--backend: {url!r} is not an address: {fault}")
    if options.model or session is None:
        if options.backend not in ("", DEMO.name) and not options.model:
            raise UsageError("--backend: say with --model which of its models")
        return options.model or "demo", options.backend
    name, slash, inner = session.model.partition("/")
    is_known = any(each.name == name for each in settings.backends)
    if slash and name == GIVEN_BACKEND and not is_known and not options.backend:
        raise UsageError("--resume: say again with --backend where the model is")
    # An explicit backend replaces the one in the session's model name.
    model = inner if options.backend and slash and (is_known or name == GIVEN_BACKEND) else session.model
    return model, options.backend


def choose_tools(given: str | None) -> Toolset:
    """The tools with these names. Raises `UsageError`."""
    names = [name.strip().lower() for name in (given or "").split(",") if name.strip()]
    if given is not None and not names:
        raise UsageError(f"--tools: {given!r} names no tool; {NO_TOOLS} is the word for no tools")
    if NO_TOOLS in names and names != [NO_TOOLS]:
        raise UsageError(f"--tools: {NO_TOOLS} goes with no other name")
    try:
        return Toolset() if names == [NO_TOOLS] else builtin(names)
    except ValueError as error:
        raise UsageError(f"--tools: {error}") from None


def choose_servers(path: str) -> tuple[Server, ...]:
    """The MCP servers in a file; none without a file. Raises `UsageError`."""
    try:
        servers = read_config(read_file(path).decode("utf-8"), beside=Path(path).absolute().parent) if path else ()
        if servers:
            require_package()
    except OSError as error:
        raise UsageError(f"--mcp: {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--mcp: {path}: {error}") from None
    except ServerFailed as error:
        raise UsageError(f"--mcp: {error}") from None
    return servers
