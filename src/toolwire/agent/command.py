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
from toolwire.agent.limits import Limits
from toolwire.agent.loop import REPEATED_CALLS, Setup
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.agent.model import GIVEN
from toolwire.agent.registry import Tool
from toolwire.agent.screen import CANCELLED, Interrupts, Screen
from toolwire.agent.session import Session, folder
from toolwire.agent.tools import Close, builtin
from toolwire.core.terminal import clean
from toolwire.runs.settings import DEMO, Settings, address_fault, load

INSTRUCTIONS = (
    "You help with the files and programs in the working directory. Use the tools to look before you answer, "
    "and say briefly what you did."
)
NONE = "none"
STDIN = "-"
"""The prompt that stands for standard input."""
GO_ON = "Go on."
"""A prompt for whoever goes on with a session."""
FAILED = 1
"""The exit code of a run that failed."""


class OrderError(Exception):
    """An order that cannot be carried out, in one line."""


class Order(msgspec.Struct, frozen=True):
    """What was asked for on the command line."""

    prompt: str
    model: str = ""
    backend: str = ""
    tools: str | None = None
    mcp: str = ""
    cwd: str = ""
    config: str | None = None
    resume: str = ""
    as_json: bool = False
    setup: Setup = Setup(instructions=INSTRUCTIONS, approve="on-write")


def setup_from(approve: str, effort: str, rounds: int, context_window: int, *, read_only: bool) -> Setup:
    """The set-up that the options ask for."""
    if approve not in get_args(Policy):
        raise OrderError(f"--approve: {approve!r} is none of {', '.join(get_args(Policy))}")
    for option, number in (("--rounds", rounds), ("--context-window", context_window)):
        if number < 0:
            raise OrderError(f"{option}: {number} is less than 0")
    return Setup(
        instructions=INSTRUCTIONS,
        effort=effort,
        limits=Limits(rounds=rounds),
        context_window=context_window,
        approve=msgspec.convert(approve, Policy),
        read_only=read_only,
    )


def run(order: Order) -> int:
    """Carry the order out; the exit code."""
    if sys.stdout is None:
        raise OrderError("stdout is closed")
    try:
        return asyncio.run(_run(order, _prompt(order.prompt)))
    except (asyncio.CancelledError, KeyboardInterrupt):  # before there was anything to do, or somebody has left
        print("toolwire: cancelled", file=sys.stderr)
        return CANCELLED
    except OSError as error:  # what we write cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nor what is still to be flushed
        with contextlib.suppress(OSError):  # which may be on the same terminal
            if not isinstance(error, BrokenPipeError):
                print(f"toolwire: {error.strerror or error}", file=sys.stderr, flush=True)
        return FAILED


async def _run(order: Order, prompt: str) -> int:
    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = Session.resume(order.resume, folder()) if order.resume else None
        if session is not None:
            stack.callback(session.close)
        servers = _servers(order.mcp)
        screen = None if order.as_json else Screen()
        agent = await stack.enter_async_context(_agent(order, session, screen))
        if screen is not None:
            await stack.enter_async_context(screen)
            interrupts.after_cancelling = screen.cancelling
            screen.hung_up = agent.cancel
            screen.wait_for("MCP servers" if servers else "the model")
        if servers:
            connected = await stack.enter_async_context(Servers(servers, _say))
            await connected.ready()
            agent.registry.follow(connected.update)
        if session is None:
            agent.session = Session.begin(agent.session.model, agent.cwd, folder())
            agent.session.hold()
        interrupts.cancel = agent.cancel
        if screen is not None:
            screen.last_words = _way_on(order, agent.session.id)
            if session is not None:
                screen.resume(session.usage)
            interrupts.before_leaving = screen.close
        return await _watch(agent, prompt, _write_line if screen is None else screen.show)


def _agent(order: Order, session: Session | None, screen: Screen | None) -> Agent:
    settings = load(order.config)
    model, backend = _choice(order, session, settings)
    tools, close = _tools(order.tools)
    agent = Agent(
        model,
        tools=tools,
        setup=order.setup,
        backend=backend,
        settings=settings,
        cwd=_directory(order.cwd, session),
        approver=screen.approver if screen is not None else None,
        session=session,
    )
    agent.on_close(close)
    return agent


# What was asked for


def _prompt(given: str) -> str:
    prompt = _typed() if given == STDIN else given
    if not prompt.strip():
        raise OrderError("the prompt is empty")
    if any("\ud800" <= letter <= "\udfff" for letter in prompt):
        raise OrderError("the prompt is not UTF-8")
    return prompt


def _typed() -> str:
    """All of standard input."""
    if sys.stdin is None:
        raise OrderError("stdin is closed")
    try:
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape").rstrip("\n")
    except OSError as error:
        raise OrderError(f"stdin: {error.strerror}") from None
    except KeyboardInterrupt:
        print(file=sys.stderr)  # after the `^C` of a terminal
        raise


def _directory(cwd: str, session: Session | None) -> Path:
    """The working directory that was given, that of the session, or the one that we are in."""
    if session is not None and session.cwd and not cwd:
        if not Path(session.cwd).is_dir():
            fault = f"the directory of the session is gone: {session.cwd}"
            raise OrderError(f"--resume: {fault}; choose another with --cwd")
        return Path(session.cwd)
    try:
        path = Path(cwd or ".").resolve()
        if path.is_dir():
            return path
    except FileNotFoundError:
        raise OrderError("the directory that you are in is gone; choose another with --cwd") from None
    except OSError as error:
        raise OrderError(f"--cwd: {cwd}: {error.strerror}") from None
    raise OrderError(f"--cwd: there is no directory {cwd!r}")


def _choice(order: Order, session: Session | None, settings: Settings) -> tuple[str, str]:
    """The model, and the backend to look for it."""
    _check_address(order.backend)
    if order.model or session is None:
        if order.backend not in ("", DEMO.name) and not order.model:
            raise OrderError("--backend: say with --model which of its models")
        return order.model or "demo", order.backend
    name, slash, inner = session.model.partition("/")
    is_known = any(each.name == name for each in settings.backends)
    if slash and name == GIVEN and not is_known and not order.backend:
        raise OrderError("--resume: say again with --backend where the model is")
    # A backend replaces that of the session.
    model = inner if order.backend and slash and (is_known or name == GIVEN) else session.model
    return model, order.backend


def _check_address(backend: str) -> None:
    url = backend.partition(":")[2]
    fault = address_fault(url) if "://" in url else ""
    if fault:
        raise OrderError(f"--backend: {url!r} is not an address: {fault}")


def _tools(chosen: str | None) -> tuple[list[Tool], Close]:
    names = [name.strip().lower() for name in (chosen or "").split(",") if name.strip()]
    if chosen is not None and not names:
        raise OrderError(f"--tools: {chosen!r} names no tool; {NONE} is the word for no tools")
    if NONE in names and names != [NONE]:
        raise OrderError(f"--tools: {NONE} goes with no other name")
    try:
        tools, close = builtin(() if names == [NONE] else names)
    except ValueError as error:
        raise OrderError(f"--tools: {error}") from None
    return ([] if names == [NONE] else tools), close


def _servers(path: str) -> tuple[Server, ...]:
    try:
        return read_config(Path(path).read_text("utf-8"), beside=Path(path).absolute().parent) if path else ()
    except OSError as error:
        raise OrderError(f"--mcp: {path}: {error.strerror}") from None
    except ValueError as error:
        raise OrderError(f"--mcp: {path}: {error}") from None


# What is said at the end


def _way_on(order: Order, id: str) -> str:
    """A line to paste, which goes on with the session. It has what the session does not know: that is how it began."""
    options = {"--config": order.config or ""}
    if order.resume or ":" in order.backend:
        options["--backend"] = order.backend
    if order.resume:
        options |= {"--model": order.model, "--cwd": order.cwd}
    words = [word for option, value in options.items() if value for word in (option, value)]
    return f'{shlex.join((*_program(), "run", "--resume", id, *words))} "{GO_ON}"'


def _program() -> tuple[str, ...]:
    """How we were called."""
    called = sys.argv[0]
    if Path(called).name != "toolwire":
        return sys.orig_argv[0], "-m", "toolwire"
    return ("toolwire" if called == shutil.which("toolwire") else called,)


# Who watches


async def _watch(agent: Agent, prompt: str, show: Callable[[AgentEvent], Awaitable[None]]) -> int:
    """Show all that happens; the exit code."""
    ended: TaskEnded | None = None
    async for event in agent.stream(prompt):
        await show(event)
        ended = event if isinstance(event, TaskEnded) else ended
    return _code(ended)


async def _write_line(event: AgentEvent) -> None:
    sys.stdout.buffer.write(as_line(event))
    sys.stdout.buffer.flush()


def _code(ended: TaskEnded | None) -> int:
    if ended is None or ended.reason in ("failed", REPEATED_CALLS):
        return FAILED
    return CANCELLED if ended.reason == "cancelled" else 0


def _say(name: str, message: str) -> None:
    print(clean(f"toolwire: MCP server {name}: {message}"), file=sys.stderr)
