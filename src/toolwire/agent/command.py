"""`toolwire run`: an agent in a terminal, or as lines of JSON."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from toolwire.agent.agent import Agent
from toolwire.agent.approval import Approver
from toolwire.agent.call import ToolCall
from toolwire.agent.events import TaskEnded, as_line
from toolwire.agent.loop import Setup
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.agent.registry import Tool
from toolwire.agent.session import Session, folder
from toolwire.agent.tools import Close, builtin
from toolwire.agent.view import View
from toolwire.runs.settings import load

INSTRUCTIONS = (
    "You help with the files and programs in the working directory. Use the tools to look before you answer, "
    "and say briefly what you did."
)


NONE = "none"


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


def run(order: Order) -> int:
    """Carry the order out; the exit code."""
    cwd = Path(order.cwd).resolve()
    if not cwd.is_dir():
        raise OrderError(f"--cwd: there is no directory {order.cwd!r}")
    return asyncio.run(_run(order, cwd))


async def _run(order: Order, cwd: Path) -> int:
    session = Session.resume(order.resume, folder()) if order.resume else None
    model = order.model or (session.model if session is not None else "demo")
    tools, close = _tools(order.tools)
    console = Console(highlight=False)
    agent = Agent(
        model,
        tools=tools,
        setup=order.setup,
        backend="" if session is not None and not order.model else order.backend,
        settings=load(order.config),
        cwd=cwd,
        approver=None if order.as_json or not sys.stdin.isatty() else _asking(console),
        session=session or Session.begin(model, cwd, folder()),
    )
    agent.on_close(close)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(agent)
        if order.mcp:
            servers = await stack.enter_async_context(Servers(_servers(order.mcp), _say))
            await servers.ready()
            agent.registry.follow(servers.update)
        _on_interrupt(agent)
        return await (_lines(agent, order.prompt) if order.as_json else _watched(agent, order.prompt, console))


def _tools(chosen: str) -> tuple[list[Tool], Close]:
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    try:
        tools, close = builtin(names)
    except ValueError as error:
        raise OrderError(f"--tools: {error}") from None
    return ([] if names == [NONE] else tools), close


def _servers(path: str) -> tuple[Server, ...]:
    try:
        return read_config(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OrderError(f"--mcp: {path}: {error}") from None


async def _lines(agent: Agent, prompt: str) -> int:
    ended: TaskEnded | None = None
    async for event in agent.stream(prompt):
        sys.stdout.buffer.write(as_line(event))
        sys.stdout.buffer.flush()
        ended = event if isinstance(event, TaskEnded) else ended
    return _code(ended)


async def _watched(agent: Agent, prompt: str, console: Console) -> int:
    ended: TaskEnded | None = None
    with View(console) as view:
        async for event in agent.stream(prompt):
            view.show(event)
            ended = event if isinstance(event, TaskEnded) else ended
    console.print(f"[dim]toolwire run --resume {agent.session.id} goes on from here[/]")
    return _code(ended)


def _code(ended: TaskEnded | None) -> int:
    if ended is None or ended.reason == "failed":
        return 1
    return 130 if ended.reason == "cancelled" else 0


def _on_interrupt(agent: Agent) -> None:
    """Ctrl-C cancels the task; a second one leaves."""
    pressed = False

    def interrupted() -> None:
        nonlocal pressed
        if pressed:
            os._exit(130)
        pressed = True
        agent.cancel()

    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)


def _asking(console: Console) -> Approver:
    """Asks at the terminal, one question at a time."""
    one = asyncio.Lock()

    async def ask(tool: Tool, call: ToolCall) -> bool:
        async with one:
            return await asyncio.to_thread(_ask, console, call)

    return ask


def _ask(console: Console, call: ToolCall) -> bool:
    console.print(f"[yellow]{call.name}[/] wants to run:")
    console.print(call.text, markup=False)
    try:
        return console.input("allow? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _say(name: str, message: str) -> None:
    print(f"toolwire: MCP server {name}: {message}", file=sys.stderr)
