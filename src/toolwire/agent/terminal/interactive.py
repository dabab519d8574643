"""An interactive session: prompts and commands are typed, one after the other is worked on, the others are queued."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import ConsoleRenderable
from rich.text import Text

from toolwire import __version__
from toolwire.agent.events import AgentEvent, TaskEnded
from toolwire.agent.mcp import Servers
from toolwire.agent.runner import Runner
from toolwire.agent.session import Session, SessionError, folder
from toolwire.agent.terminal.commands import COMMANDS, SHOWN_AT_ONCE, Commands, command_in, recap, user_line
from toolwire.agent.terminal.completion import LineCompleter
from toolwire.agent.terminal.input_line import InputLine
from toolwire.agent.terminal.interrupts import kill_children
from toolwire.agent.terminal.mentions import with_files
from toolwire.agent.terminal.prompt_history import PromptHistory
from toolwire.agent.terminal.questions import Questions
from toolwire.agent.terminal.view import DRAWS, View
from toolwire.core.errors import ToolwireError
from toolwire.core.terminal import clean


class Interactive:
    """The terminal of an interactive session; `run` works until the user leaves."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self._completer = LineCompleter(COMMANDS, self._words)
        self._line = InputLine(self._completer, PromptHistory())
        self.view = View(self._line, verbose=verbose, quiet=quiet, sums=False)
        self.questions = Questions(self._line.console, self._print, self._line.ask, self._paused)
        self._queue: deque[str] = deque()
        self._came = asyncio.Event()
        self._taken = asyncio.Lock()
        self._is_busy = False
        self._has_cancelled = False
        self._commands: Commands | None = None

    def say(self, server: str, message: str) -> None:
        """Show a message about an MCP server."""
        self.view.note(f"MCP server {server}: {message}")

    def leave(self) -> None:
        """End the session."""
        self._line.exit()

    async def run(self, work: "Work") -> None:
        """Work on what is typed until the user leaves."""
        agent = work.agent
        self._commands = commands = Commands(agent, self.view, work.servers, self.questions.always)
        commands.on_session = lambda: self._use_session(work)
        self._use_directory(agent.cwd)
        self._line.on_line = self._take
        self._line.on_interrupt = lambda: self._interrupt(agent)
        self._line.queued = lambda: self._queue
        self._line.status = lambda: f"{agent.session.model} · {self.view.sums} · {_home(agent.cwd)}"
        self.view.print(Text(f"toolwire {__version__} · {clean(agent.session.model)} · /help", "dim"))
        if work.has_session:
            self.view.resume(agent.usage)
            for line in recap(agent.history):
                self.view.print(line)
        with self.view:
            self.view.refresh()
            tasks = [asyncio.ensure_future(each) for each in (self._line.run(), self._work(work), self._tick())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._line.exit()
                for task in reversed(tasks):
                    task.cancel()
                await asyncio.wait(tasks)
            for task in done:
                task.result()

    def _use_session(self, work: "Work") -> None:
        work.has_session = True
        self._use_directory(work.agent.cwd)

    def _use_directory(self, cwd: Path) -> None:
        self._completer.use_directory(cwd)
        self.questions.cwd = cwd

    def _words(self, command: str) -> Iterable[tuple[str, str]]:
        return self._commands.words(command) if self._commands is not None else ()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1 / DRAWS)
            self.view.refresh()

    # Keys

    def _take(self, line: str) -> None:
        command = command_in(line)
        if self._is_busy and command is not None and command[0] in SHOWN_AT_ONCE and self._commands is not None:
            self._commands.show(command[0])
            return
        self._queue.append(line)
        self._came.set()

    def _interrupt(self, agent: Runner) -> None:
        if not self._is_busy:
            self.view.note("Ctrl-D or /exit leaves")
        elif self._has_cancelled:
            kill_children()
        else:
            self._has_cancelled = True
            agent.cancel()
            self.view.cancelling()

    # Questions

    def _print(self, lines: Sequence[ConsoleRenderable]) -> None:
        for line in lines:
            self.view.print(line, matters=True)
        self.view.refresh()

    @asynccontextmanager
    async def _paused(self, call_id: str) -> AsyncGenerator[None]:
        async with self._taken:  # no event is shown between a call and the question about it
            with self.view.asking(call_id, pauses=False):
                yield

    # Work

    async def _work(self, work: "Work") -> None:
        while True:
            while not self._queue:
                self._came.clear()
                await self._came.wait()
            self._is_busy, self._has_cancelled = True, False
            try:
                is_done = await self._handle(self._queue.popleft(), work)
            except (SessionError, ToolwireError, OSError, ValueError) as error:
                self.view.note(str(error))
                is_done = False
            self._is_busy = False
            if not is_done and self._queue:
                self._line.put("\n".join([*self._queue, self._line.text]).rstrip("\n"))
                self._queue.clear()

    async def _handle(self, line: str, work: "Work") -> bool:
        """Carry out a command or a prompt; whether the next one may follow."""
        assert self._commands is not None
        command = command_in(line)
        self.view.print(user_line(line))
        if command is None:
            return await self._watch(work.on_prompt(line, self.view))
        name, rest = command
        match name:
            case "/exit" | "/quit":
                self.leave()
            case "/model":
                await self._commands.use_model(rest)
            case "/resume":
                await self._commands.resume(rest)
            case "/new":
                work.begin_anew(self.view)
            case "/compact":
                return await self._watch(work.on_compact(self.view))
            case _ if not self._commands.show(name):
                self.view.note(f"there is no command {name}; /help lists them")
                return False
            case _:
                pass
        return True

    async def _watch(self, events: AsyncIterator[AgentEvent]) -> bool:
        """Show everything that happens; whether it ended well."""
        is_done = True
        async for event in events:
            async with self._taken:
                self.view.show(event)
            is_done = isinstance(event, TaskEnded) and event.reason == "done"
        return is_done


class Work:
    """What an agent does in a session, which begins with the first prompt unless it is resumed (`has_session`)."""

    def __init__(self, agent: Runner, servers: Servers | None, *, has_session: bool) -> None:
        self.agent = agent
        self.servers = servers
        self.has_session = has_session

    async def on_prompt(self, line: str, view: View) -> AsyncIterator[AgentEvent]:
        """Work on a prompt."""
        agent = self.agent
        if self.servers is not None:
            view.wait_for("MCP servers")
            await self.servers.ready()
        if not self.has_session:
            agent.session = Session.begin(agent.session.model, agent.cwd, folder())
            agent.session.hold()
            self.has_session = True
        prompt = await asyncio.to_thread(with_files, line, agent.cwd)
        for problem in prompt.problems:
            view.note(problem)
        async for event in agent.stream(prompt.text, prompt.images):
            yield event

    async def on_compact(self, view: View) -> AsyncIterator[AgentEvent]:
        """Summarise the conversation."""
        if not len(self.agent.history):
            view.note("there is nothing to summarise yet")
            return
        view.wait_for("the summary")
        async for event in self.agent.compact():
            yield event

    def begin_anew(self, view: View) -> None:
        """Let the next prompt begin a session."""
        self.agent.session.close()
        self.agent.session = Session.begin(self.agent.session.model, self.agent.cwd, None)
        self.has_session = False
        view.resume(self.agent.usage)
        view.note("the next prompt begins a new session")


def _home(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)
