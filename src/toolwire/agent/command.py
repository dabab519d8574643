"""`toolwire run`: an agent in a terminal, or as lines of JSON."""

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import get_args

import msgspec

from toolwire.agent.agent import Agent
from toolwire.agent.approval import Policy
from toolwire.agent.events import AgentEvent, TaskEnded, as_line
from toolwire.agent.loop import REPEATED_CALLS, AgentConfig
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.agent.model import GIVEN
from toolwire.agent.screen import CANCELLED, Interrupts, Screen
from toolwire.agent.session import Session, folder
from toolwire.agent.tools import Close, builtin
from toolwire.core.terminal import clean
from toolwire.turns.settings import DEMO, Settings, address_fault, load
from toolwire.turns.tools.loop import Limits
from toolwire.turns.tools.registry import Tool

INSTRUCTIONS = (
    "You help with the files and programs in the working directory. Use the tools to look before you answer, "
    "and say briefly what you did."
)
NONE = "none"
STDIN = "-"
"""The prompt argument that means standard input."""
CONTINUE = "Go on."
"""The prompt in the command that resumes a session."""
FAILED = 1
"""The exit code of a run that failed."""
EXIT_CODES = {"failed": FAILED, REPEATED_CALLS: FAILED, "cancelled": CANCELLED}
"""The exit codes by the reason for which a task ended; 0 for any other."""


class UsageError(Exception):
    """The command line cannot be carried out; the message is one line for the user."""


class Options(msgspec.Struct, frozen=True):
    """The options of the command line."""

    prompt: str
    model: str = ""
    backend: str = ""
    tools: str | None = None
    mcp: str = ""
    cwd: str = ""
    settings_path: str | None = None
    resume: str = ""
    as_json: bool = False
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


def run(options: Options) -> int:
    """Run the agent and return the exit code."""
    if sys.stdout is None:
        raise UsageError("stdout is closed")
    try:
        return asyncio.run(_run(options, _prompt(options.prompt)))
    except (asyncio.CancelledError, KeyboardInterrupt):  # before the task began, or after a second Ctrl-C
        print("toolwire: cancelled", file=sys.stderr)
        return CANCELLED
    except OSError as error:  # what we write cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nor what is still to be flushed
        with contextlib.suppress(OSError):  # which may be on the same terminal
            if not isinstance(error, BrokenPipeError):
                print(f"toolwire: {error.strerror or error}", file=sys.stderr, flush=True)
        return FAILED


async def _run(options: Options, prompt: str) -> int:
    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = Session.resume(options.resume, folder()) if options.resume else None
        if session is not None:
            stack.callback(session.close)
        servers = _servers(options.mcp)
        screen = None if options.as_json else Screen()
        agent = await stack.enter_async_context(_agent(options, session, screen))
        if screen is not None:
            await stack.enter_async_context(screen)
            interrupts.after_cancelling = screen.cancelling
            screen.on_hangup = agent.cancel
            screen.view.wait_for("MCP servers" if servers else "the model")
        if servers:
            connected = await stack.enter_async_context(Servers(servers, _say))
            await connected.ready()
            agent.registry.follow(connected.update)
        if session is None:
            agent.session = Session.begin(agent.session.model, agent.cwd, folder())
            agent.session.hold()
        interrupts.cancel = agent.cancel
        if screen is not None:
            screen.closing_line = _resume_command(options, agent.session.id)
            if session is not None:
                screen.view.resume(session.usage)
            interrupts.before_leaving = screen.close
        return await _watch(agent, prompt, _write_line if screen is None else screen.show)


def _agent(options: Options, session: Session | None, screen: Screen | None) -> Agent:
    settings = load(options.settings_path)
    model, backend = _choice(options, session, settings)
    tools, close = _tools(options.tools)
    agent = Agent(
        model,
        tools=tools,
        config=options.agent_config,
        backend=backend,
        settings=settings,
        cwd=_directory(options.cwd, session),
        approver=screen.approver if screen is not None else None,
        session=session,
    )
    agent.on_close(close)
    return agent


# Options


def _prompt(given: str) -> str:
    prompt = _typed() if given == STDIN else given
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    if any("\ud800" <= char <= "\udfff" for char in prompt):
        raise UsageError("the prompt is not UTF-8")
    return prompt


def _typed() -> str:
    """All of standard input."""
    if sys.stdin is None:
        raise UsageError("stdin is closed")
    try:
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape").rstrip("\n")
    except OSError as error:
        raise UsageError(f"stdin: {error.strerror}") from None
    except KeyboardInterrupt:
        print(file=sys.stderr)  # after the `^C` of a terminal
        raise


def _directory(cwd: str, session: Session | None) -> Path:
    """The working directory: the given one, that of the session, or the current one."""
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


def _choice(options: Options, session: Session | None, settings: Settings) -> tuple[str, str]:
    """The model, and the name of its backend if one was given."""
    url = options.backend.partition(":")[2]
    fault = address_fault(url) if "://" in url else ""
    if fault:
        raise UsageError(f"--backend: {url!r} is not an address: {fault}")
    if options.model or session is None:
        if options.backend not in ("", DEMO.name) and not options.model:
            raise UsageError("--backend: say with --model which of its models")
        return options.model or "demo", options.backend
    name, slash, inner = session.model.partition("/")
    is_known = any(each.name == name for each in settings.backends)
    if slash and name == GIVEN and not is_known and not options.backend:
        raise UsageError("--resume: say again with --backend where the model is")
    # A backend replaces that of the session.
    model = inner if options.backend and slash and (is_known or name == GIVEN) else session.model
    return model, options.backend


def _tools(chosen: str | None) -> tuple[list[Tool], Close]:
    names = [name.strip().lower() for name in (chosen or "").split(",") if name.strip()]
    if chosen is not None and not names:
        raise UsageError(f"--tools: {chosen!r} names no tool; {NONE} is the word for no tools")
    if NONE in names and names != [NONE]:
        raise UsageError(f"--tools: {NONE} goes with no other name")
    try:
        tools, close = builtin(() if names == [NONE] else names)
    except ValueError as error:
        raise UsageError(f"--tools: {error}") from None
    return ([] if names == [NONE] else tools), close


def _servers(path: str) -> tuple[Server, ...]:
    try:
        return read_config(Path(path).read_text("utf-8"), beside=Path(path).absolute().parent) if path else ()
    except OSError as error:
        raise UsageError(f"--mcp: {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--mcp: {path}: {error}") from None


# The closing line


def _resume_command(options: Options, id: str) -> str:
    """A command to paste that resumes the session, with the options that the session does not store."""
    given = {"--config": options.settings_path or ""}
    if options.resume or ":" in options.backend:
        given["--backend"] = options.backend
    if options.resume:
        given |= {"--model": options.model, "--cwd": options.cwd}
    words = [word for option, value in given.items() if value for word in (option, value)]
    return f'{shlex.join((*_program(), "run", "--resume", id, *words))} "{CONTINUE}"'


def _program() -> tuple[str, ...]:
    """The command that started this program."""
    called = sys.argv[0]
    if Path(called).name != "toolwire":
        return sys.orig_argv[0], "-m", "toolwire"
    return ("toolwire" if called == shutil.which("toolwire") else called,)


# Output


async def _watch(agent: Agent, prompt: str, show: Callable[[AgentEvent], Awaitable[None]]) -> int:
    """Show all events and return the exit code."""
    reason = "failed"
    async for event in agent.stream(prompt):
        await show(event)
        reason = event.reason if isinstance(event, TaskEnded) else reason
    return EXIT_CODES.get(reason, 0)


async def _write_line(event: AgentEvent) -> None:
    sys.stdout.buffer.write(as_line(event))
    sys.stdout.buffer.flush()


def _say(name: str, message: str) -> None:
    print(clean(f"toolwire: MCP server {name}: {message}"), file=sys.stderr)
