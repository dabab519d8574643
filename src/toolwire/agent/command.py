"""`toolwire run`: an agent in a terminal, or as lines of JSON."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any, TextIO, get_args
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.text import Text

from toolwire.agent.agent import Agent
from toolwire.agent.approval import Approver, Policy
from toolwire.agent.call import ToolCall
from toolwire.agent.events import AgentEvent, TaskEnded, as_line
from toolwire.agent.limits import Limits
from toolwire.agent.loop import Setup
from toolwire.agent.mcp import Server, Servers, read_config
from toolwire.agent.registry import Tool
from toolwire.agent.session import Session, folder
from toolwire.agent.tools import Close, builtin
from toolwire.agent.view import SPINS, View, question
from toolwire.runs.settings import DEMO, Settings, load

INSTRUCTIONS = (
    "You help with the files and programs in the working directory. Use the tools to look before you answer, "
    "and say briefly what you did."
)
NONE = "none"
FAILED, CANCELLED = 1, 130
"""Exit codes."""
BREATH = 0.05
"""Seconds before a question, in which is shown what has happened."""
AT_ONCE = 0.1
"""Seconds in which everything that runs is killed when somebody leaves."""


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
        if screen is None:
            return await _lines(agent, order.prompt)
        where = f" --backend {order.backend}" if ":" in order.backend else ""
        screen.last_words = f"toolwire run --resume {agent.session.id}{where} goes on from here"
        interrupts.before_leaving = screen.close
        return await screen.watch(agent.stream(order.prompt))


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
    if "://" not in url:
        return
    try:
        told = urlsplit(url)
        why = "" if told.scheme in ("http", "https") and told.hostname and told.port != 0 else "no http://HOST[:PORT]"
    except ValueError as error:
        why = str(error)
    if why or any(letter.isspace() for letter in url):
        raise OrderError(f"--backend: {url!r} is not an address: {why or 'it has a space'}")


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


async def _lines(agent: Agent, prompt: str) -> int:
    ended: TaskEnded | None = None
    async for event in agent.stream(prompt):
        sys.stdout.buffer.write(as_line(event))
        sys.stdout.buffer.flush()
        ended = event if isinstance(event, TaskEnded) else ended
    return _code(ended)


def _code(ended: TaskEnded | None) -> int:
    if ended is None or ended.reason == "failed":
        return FAILED
    return CANCELLED if ended.reason == "cancelled" else 0


def _say(name: str, message: str) -> None:
    print(f"toolwire: MCP server {name}: {message}", file=sys.stderr)


class Screen:
    """Shows what happens, and asks before calls run: one question at a time, while nothing else is shown."""

    def __init__(self) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a letter that the terminal has not is no reason to end
        self._view = View(Console(highlight=False, force_interactive=None if sys.stdout.isatty() else False))
        self._keys = Keys(self._view.console.is_interactive)
        self._one_question = asyncio.Lock()
        self._taken = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None
        self.last_words = ""

    async def __aenter__(self) -> "Screen":
        self._keys.hide()
        self._view.__enter__()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self.close()

    def wait_for(self, what: str) -> None:
        self._view.wait_for(what)

    def close(self) -> None:
        """Leave the terminal as it was."""
        words, self.last_words = self.last_words, ""
        try:
            self._view.close()
            if words:
                self._view.console.print(Text(words, "dim"), soft_wrap=True)
        finally:
            self._keys.show()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1 / SPINS)
            self._view.refresh()

    async def watch(self, happening: AsyncIterator[AgentEvent]) -> int:
        """Show all events; the exit code."""
        ended: TaskEnded | None = None
        async for event in happening:
            async with self._taken:
                self._view.show(event)
            ended = event if isinstance(event, TaskEnded) else ended
        return _code(ended)

    @property
    def approver(self) -> Approver | None:
        """Who is asked, if anybody is there who can see a question and answer it."""
        return self._ask if _is_terminal(sys.stdin) and self._asks_on is not None else None

    @property
    def _asks_on(self) -> Console | None:
        if _is_terminal(sys.stdout):
            return self._view.console
        return Console(stderr=True, highlight=False) if _is_terminal(sys.stderr) else None

    async def _ask(self, tool: Tool, call: ToolCall) -> bool:
        console = self._asks_on
        assert console is not None
        async with self._one_question:
            await asyncio.sleep(BREATH)
            return await self._ask_now(console, call)

    async def _ask_now(self, console: Console, call: ToolCall) -> bool:
        async with self._taken:
            with self._view.asking(call.call_id), self._keys.heard():
                console.print(question(call.name, call.text), end="")
                answer = b""
                try:
                    answer = await _typed(sys.stdin.fileno())
                finally:
                    if not answer.endswith(b"\n"):
                        console.print()
        return answer.strip().lower() in (b"y", b"yes")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


async def _typed(terminal: int) -> bytes:
    """The next line that is typed; nothing at its end. No thread waits for it, so that it can be cancelled."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(terminal, ready.set)
    try:
        await ready.wait()
        return os.read(terminal, 1024)
    except OSError:  # the terminal is gone
        return b""
    finally:
        loop.remove_reader(terminal)


class Keys:
    """What is typed while nobody asks: it is not shown, which would tear the rows that change, and is no answer."""

    def __init__(self, is_interactive: bool) -> None:
        self._terminal = sys.stdin.fileno() if _is_terminal(sys.stdin) else None
        self._usual = termios.tcgetattr(self._terminal) if is_interactive and self._terminal is not None else []

    def hide(self) -> None:
        if self._usual:
            *flags, local, speed_in, speed_out, characters = self._usual
            self._set([*flags, local & ~termios.ECHO, speed_in, speed_out, characters])

    def show(self) -> None:
        self._set(self._usual)

    @contextlib.contextmanager
    def heard(self) -> Generator[None]:
        self.show()
        try:
            if self._terminal is not None:
                termios.tcflush(self._terminal, termios.TCIFLUSH)
            yield
        finally:
            self.hide()

    def _set(self, attributes: list[Any]) -> None:
        """Unless we are in the background: the terminal is somebody else's then, and we would be stopped."""
        with contextlib.suppress(OSError, termios.error):
            if attributes and self._terminal is not None and os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, attributes)


class Interrupts:
    """Ctrl-C cancels what runs; a second one leaves at once. Either way, nothing that was started is left running."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.cancel: Callable[[], object] = task.cancel
        self.before_leaving: Callable[[], object] = lambda: None
        self._pressed = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                asyncio.get_running_loop().add_signal_handler(number, self._press)

    def _press(self) -> None:
        if self._pressed:
            self._leave()
        else:
            self._pressed = True
            self.cancel()

    def _leave(self) -> None:
        _kill_children()
        for task in asyncio.all_tasks():
            task.cancel()  # a command kills what it left behind
        asyncio.get_running_loop().call_later(AT_ONCE, self._exit)

    def _exit(self) -> None:
        """Something does not want to end."""
        try:
            self.before_leaving()
        finally:
            os._exit(CANCELLED)


def _kill_children() -> None:
    """Kill commands and MCP servers with all that they started."""
    from toolwire.agent.tools.process import Family  # noqa: PLC0415 - as the tools

    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            Family(int(pid)).signal(signal.SIGKILL)
