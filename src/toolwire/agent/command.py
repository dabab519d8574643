"""`toolwire run`: an agent in a terminal, or as lines of JSON."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import get_args

import msgspec

from toolwire.agent.agent import Agent
from toolwire.agent.approval import Policy
from toolwire.agent.events import AgentEvent, TaskEnded, as_line
from toolwire.agent.limits import Limits
from toolwire.agent.loop import Setup
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.agent.registry import Tool
from toolwire.agent.screen import CANCELLED, Interrupts, Screen
from toolwire.agent.session import Session, folder
from toolwire.agent.tools import Close, builtin
from toolwire.runs.settings import DEMO, Settings, address_fault, load

INSTRUCTIONS = (
    "You help with the files and programs in the working directory. Use the tools to look before you answer, "
    "and say briefly what you did."
)
NONE = "none"
FAILED = 1
"""The exit code of a run that failed."""


class OrderError(Exception):
    """An order that cannot be carried out, in one line."""


class Order(msgspec.Struct, frozen=True):
    """What was asked for on the command line."""

    prompt: str
    model: str = ""
    backend: str = ""
    tools: str = ""
    mcp: str = ""
    cwd: str = "."
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
    cwd = Path(order.cwd).resolve()
    if not cwd.is_dir():
        raise OrderError(f"--cwd: there is no directory {order.cwd!r}")
    if not order.prompt.strip():
        raise OrderError("the prompt is empty")
    if any("\ud800" <= letter <= "\udfff" for letter in order.prompt):
        raise OrderError("the prompt is not UTF-8")
    if sys.stdout is None:
        raise OrderError("stdout is closed")
    try:
        return asyncio.run(_run(order, cwd))
    except asyncio.CancelledError:  # before there was anything to do, or somebody has left
        print("toolwire: cancelled", file=sys.stderr)
        return CANCELLED
    except OSError as error:  # what we write cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nor what is still to be flushed
        if not isinstance(error, BrokenPipeError):
            print(f"toolwire: {error.strerror or error}", file=sys.stderr)
        return FAILED


async def _run(order: Order, cwd: Path) -> int:
    interrupts = Interrupts()
    settings = load(order.config)
    session, model, backend = _choice(order, settings)
    servers = _servers(order.mcp)
    tools, close = _tools(order.tools)
    screen = None if order.as_json else Screen()
    agent = Agent(
        model,
        tools=tools,
        setup=order.setup,
        backend=backend,
        settings=settings,
        cwd=cwd,
        approver=screen.approver if screen is not None else None,
        session=session,
    )
    agent.on_close(close)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(agent)
        if screen is not None:
            await stack.enter_async_context(screen)
            screen.wait_for("MCP servers" if servers else "the model")
        if servers:
            connected = await stack.enter_async_context(Servers(servers, _say))
            await connected.ready()
            agent.registry.follow(connected.update)
        if session is None:
            agent.session = Session.begin(agent.session.model, cwd, folder())
        interrupts.cancel = agent.cancel
        if screen is not None:
            where = f" --backend {order.backend}" if ":" in order.backend else ""
            screen.last_words = f"toolwire run --resume {agent.session.id}{where} goes on from here"
            interrupts.before_leaving = screen.close
        return await _watch(agent, order.prompt, _write_line if screen is None else screen.show)


# What was asked for


def _choice(order: Order, settings: Settings) -> tuple[Session | None, str, str]:
    """The session to go on with, the model, and the backend to look for it."""
    session = Session.resume(order.resume, folder()) if order.resume else None
    _check_address(order.backend)
    if order.model or session is None:
        if order.backend not in ("", DEMO.name) and not order.model:
            raise OrderError("--backend: say with --model which of its models")
        return session, order.model or "demo", order.backend
    name, slash, inner = session.model.partition("/")
    is_known = any(each.name == name for each in settings.backends)
    if slash and name == GIVEN and not is_known and not order.backend:
        raise OrderError("--resume: say again with --backend where the model is")
    # A backend replaces that of the session.
    model = inner if order.backend and slash and (is_known or name == GIVEN) else session.model
    return session, model, order.backend


GIVEN = "given"
"""What a backend is named that is given as `KIND:URL`."""


def _check_address(backend: str) -> None:
    url = backend.partition(":")[2]
    fault = address_fault(url) if "://" in url else ""
    if fault:
        raise OrderError(f"--backend: {url!r} is not an address: {fault}")


def _tools(chosen: str) -> tuple[list[Tool], Close]:
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    try:
        tools, close = builtin(names)
    except ValueError as error:
        raise OrderError(f"--tools: {error}") from None
    return ([] if names == [NONE] else tools), close


def _servers(path: str) -> tuple[Server, ...]:
    try:
        return read_config(Path(path).read_text("utf-8")) if path else ()
    except OSError as error:
        raise OrderError(f"--mcp: {path}: {error.strerror}") from None
    except ValueError as error:
        raise OrderError(f"--mcp: {path}: {error}") from None


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
    if ended is None or ended.reason == "failed":
        return FAILED
    return CANCELLED if ended.reason == "cancelled" else 0


def _say(name: str, message: str) -> None:
    print(f"toolwire: MCP server {name}: {message}", file=sys.stderr)
