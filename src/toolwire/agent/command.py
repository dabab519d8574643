"""`toolwire run`: an agent in a terminal, for one prompt or a whole session, or as lines of JSON."""

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import cast, get_args

import msgspec

from toolwire.agent.approval import COMMAND_DIRECTORIES, Approver, CallOptions, Policy
from toolwire.agent.errors import ServerFailed
from toolwire.agent.events import TaskEnded, as_line
from toolwire.agent.mcp import Server, Servers, read_config, require_package
from toolwire.agent.model import Model
from toolwire.agent.runner import Runner
from toolwire.agent.sandbox import SandboxMode, choose_sandbox
from toolwire.agent.session import Session, folder, list_sessions
from toolwire.agent.task import AgentConfig
from toolwire.agent.terminal.interrupts import CANCELLED, Interrupts
from toolwire.agent.terminal.screen import Screen, is_terminal
from toolwire.agent.tools import FAMILIES, READING, BuiltinTools, builtin, family_of
from toolwire.config.settings import DEMO, GIVEN_BACKEND, Settings, load, with_backend
from toolwire.core.display import clean
from toolwire.memory.private_files import read_file
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.loop import REPEATED_CALLS, Limits
from toolwire.turns.tools.registry import Registry, Tool

INSTRUCTIONS = (
    "You help with the files and programs in the working directory. Use the tools to look before you answer, "
    "and say briefly what you did."
)
NO_TOOLS = "none"
STDIN = "-"
"""The prompt argument that means standard input."""
CONTINUE = "Go on."
"""The prompt in the command that resumes a session."""
FAILED = 1
"""The exit code of a run that failed."""
EXIT_CODES = {"failed": FAILED, REPEATED_CALLS: FAILED, "cancelled": CANCELLED}
"""Exit codes by the reason why a task ended; 0 for any other."""


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
    approve: str = "on-write"
    effort: str = ""
    max_turns: int = 100
    context_window: int = 0
    read_only: bool = False
    sandbox: str = "auto"
    network: bool = False

    def agent_config(self) -> AgentConfig:
        """The configuration of the agent. Raises `UsageError`."""
        if self.approve not in get_args(Policy):
            raise UsageError(f"--approve: {self.approve!r} is not one of {', '.join(get_args(Policy))}")
        for option, number in (("--max-turns", self.max_turns), ("--context-window", self.context_window)):
            if number < 0:
                raise UsageError(f"{option}: {number} is less than 0")
        try:
            choose_sandbox(self.sandbox, network=self.network)
        except ValueError as error:
            raise UsageError(f"--sandbox: {error}") from None
        return AgentConfig(
            instructions=INSTRUCTIONS,
            effort=self.effort,
            limits=Limits(max_turns=self.max_turns),
            context_window=self.context_window,
            approve=cast("Policy", self.approve),
            read_only=self.read_only,
            sandbox=cast("SandboxMode", self.sandbox),
            network=self.network,
        )


def run(options: RunOptions) -> int:
    """Run the agent and return the exit code. Raises `UsageError`, `SettingsError`, `SessionError`, `BadRequest`."""
    if sys.__stdout__ is None:
        raise UsageError("stdout is closed")
    try:
        config, prompt = options.agent_config(), choose_prompt(options)
        return asyncio.run(_interact(options, config) if prompt is None else _run(options, config, prompt))
    except (asyncio.CancelledError, KeyboardInterrupt):  # before the task began, or after a second Ctrl-C
        print("toolwire: cancelled", file=sys.stderr)
        return CANCELLED
    except OSError as error:  # the output cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is still buffered
        with contextlib.suppress(OSError):  # stderr may be on the same terminal
            if not isinstance(error, BrokenPipeError):
                print(f"toolwire: {error.strerror or error}", file=sys.stderr, flush=True)
        return FAILED


async def _run(options: RunOptions, config: AgentConfig, prompt: str) -> int:
    """Work on one prompt."""

    def say(server: str, message: str) -> None:
        print(clean(f"toolwire: MCP server {server}: {message}"), file=sys.stderr)

    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = choose_session(stack, options)
        servers = choose_servers(options.mcp)
        cwd = choose_directory(options.cwd, session)
        screen: Screen | None = None
        if not options.as_json:
            screen = Screen(cwd, interrupts.cancel, verbose=options.verbose, quiet=options.quiet)
        agent = await _open_runner(stack, options, config, session, screen.approver if screen else None)
        if screen is not None:
            await stack.enter_async_context(screen)
            interrupts.after_cancelling = screen.show_cancelling
            screen.view.wait_for("MCP servers" if servers else "the model")
            agent.registry.refresh()
            runs_commands = any(tool.name in COMMAND_DIRECTORIES for tool in agent.registry)
            if options.sandbox == "auto" and not agent.sandbox.name and runs_commands:
                screen.view.note("there is no sandbox here: a command can do whatever you can do")
        if servers:
            connected = await stack.enter_async_context(Servers(servers, say))
            await connected.ready()
            agent.registry.follow(connected.update)
        if session is None:
            agent.session = Session.begin(agent.session.model, agent.cwd, folder())
            agent.session.hold()
        interrupts.target = agent.cancel
        if screen is not None:
            screen.closing_line = f'{_resume_command(options, agent.session.id)} "{CONTINUE}"'
            if session is not None:
                screen.view.resume(session.usage)
            interrupts.before_leaving = screen.close
        reason = "failed"
        async for event in agent.stream(prompt):
            if screen is not None:
                await screen.view.show_next(event)
            else:
                sys.stdout.buffer.write(as_line(event))
                sys.stdout.buffer.flush()
            reason = event.reason if isinstance(event, TaskEnded) else reason
        return EXIT_CODES.get(reason, 0)


async def _interact(options: RunOptions, config: AgentConfig) -> int:
    """Work on typed prompts, until the user leaves."""
    # Only here, as nothing else needs prompt_toolkit.
    from toolwire.agent.terminal.interactive import Interactive  # noqa: PLC0415

    async def approve(tool: Tool, call: ToolCall) -> bool | str:
        return await screen.questions.ask(tool, call)

    def say(server: str, message: str) -> None:
        screen.say(server, message)

    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = choose_session(stack, options)
        servers = choose_servers(options.mcp)
        agent = await _open_runner(stack, options, config, session, approve)
        connected = Servers(servers, say) if servers else None
        screen = Interactive(
            agent, connected, has_session=session is not None, verbose=options.verbose, quiet=options.quiet
        )
        if connected is not None:
            await stack.enter_async_context(connected)
            agent.registry.follow(connected.update)
        interrupts.target = screen.leave
        await screen.run()
        if screen.has_session and not options.quiet:
            print(clean(_resume_command(options, agent.session.id)))
    return 0


async def _open_runner(
    stack: contextlib.AsyncExitStack,
    options: RunOptions,
    config: AgentConfig,
    session: Session | None,
    approver: Approver | None,
) -> Runner:
    settings = load(options.settings_path)
    model, backend = choose_model(options, session, settings)
    settings, name = with_backend(settings, backend, model, "--backend")
    tools = await stack.enter_async_context(choose_tools(options.tools))
    runner = Runner(
        Model(settings, name, idle=config.idle),
        tools=tools.tools if options.tools is not None else (),
        config=config,
        cwd=choose_directory(options.cwd, session),
        calls=CallOptions(approver),
        session=session,
    )
    if options.tools is None:
        runner.registry.follow(FamilyTools(tools, runner).update)
    return await stack.enter_async_context(runner)


class FamilyTools:
    """Keeps the tools in a registry those of the model's family, also when the model changes."""

    def __init__(self, tools: BuiltinTools, runner: Runner) -> None:
        self._toolset = tools
        self._runner = runner
        self._names: tuple[str, ...] = ()
        self._tools: list[Tool] = []

    def update(self, registry: Registry) -> None:
        """Replace the tools if the model is of another family now."""
        names = FAMILIES[family_of(self._runner.model.place[1])]
        config = self._runner.config
        if config.read_only or (self._runner.calls.approver is None and config.approve != "never"):
            names = tuple(dict.fromkeys((*names, *READING)))  # commands, which can read too, are refused
        if names != self._names:
            for tool in self._tools:
                registry.remove(tool.name)
            self._names, self._tools = names, self._toolset.named(names)
            for tool in self._tools:
                registry.add(tool)


def _resume_command(options: RunOptions, id: str) -> str:
    """A command to paste that resumes the session, with the options that the session does not store."""
    given = {"--config": options.settings_path or ""}
    is_resumed = options.resume or options.continues
    if is_resumed or ":" in options.backend:
        given["--backend"] = options.backend
    if is_resumed:
        given |= {"--model": options.model, "--cwd": options.cwd}
    words = [word for option, value in given.items() if value for word in (option, value)]
    program = sys.argv[0]
    if Path(program).name != "toolwire":
        called = (sys.orig_argv[0], "-m", "toolwire")
    else:
        called = ("toolwire" if program == shutil.which("toolwire") else program,)
    return shlex.join((*called, "run", "--resume", id, *words))


# What the options select


def choose_prompt(options: RunOptions) -> str | None:
    """The prompt; None for an interactive session. Raises `UsageError`."""
    given = options.prompt
    if given is None and is_terminal(sys.stdin):
        if options.as_json:
            raise UsageError("--json: give a prompt, or - to read it from standard input")
        if not is_terminal(sys.stdout) or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
            raise UsageError("an interactive session needs a terminal; give a prompt instead")
        return None
    if given is None or given == STDIN:
        if sys.stdin is None:
            raise UsageError("stdin is closed")
        try:
            given = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").rstrip("\n")
        except OSError as error:
            raise UsageError(f"stdin: {error.strerror}") from None
        except KeyboardInterrupt:
            print(file=sys.stderr)  # after the `^C` of a terminal
            raise
    if not given.strip():
        raise UsageError("the prompt is empty")
    if any("\ud800" <= char <= "\udfff" for char in given):
        raise UsageError("the prompt is not UTF-8")
    return given


def choose_session(stack: contextlib.AsyncExitStack, options: RunOptions) -> Session | None:
    """The session to resume, if any; the stack closes it. Raises `UsageError` and `SessionError`."""
    id = options.resume
    if options.continues:
        if id:
            raise UsageError("--continue and --resume: choose one of them")
        cwd = choose_directory(options.cwd, None)
        found = next(list_sessions(folder(), cwd), None)
        if found is None:
            raise UsageError(f"--continue: there is no session in {cwd}; toolwire sessions lists all")
        id = found.id
    if not id:
        return None
    session = Session.resume(id, folder())
    stack.callback(session.close)
    return session


def choose_directory(cwd: str, session: Session | None) -> Path:
    """The working directory: the given one, that of the session, or the current one. Raises `UsageError`."""
    if session is not None and session.cwd and not cwd:
        if not Path(session.cwd).is_dir():
            fault = f"the directory of the session no longer exists: {session.cwd}"
            raise UsageError(f"--resume: {fault}; choose another with --cwd")
        return Path(session.cwd)
    try:
        path = Path(cwd or ".").resolve()
        if path.is_dir():
            return path
    except FileNotFoundError:
        raise UsageError("the current directory no longer exists; choose another with --cwd") from None
    except OSError as error:
        raise UsageError(f"--cwd: {cwd}: {error.strerror}") from None
    raise UsageError(f"--cwd: there is no directory {cwd!r}")


def choose_model(options: RunOptions, session: Session | None, settings: Settings) -> tuple[str, str]:
    """The model, and the name of its backend if one was given. Raises `UsageError`."""
    if options.model or session is None:
        if options.backend not in ("", DEMO.name) and not options.model:
            raise UsageError("--backend: name one of its models with --model")
        return options.model or "demo", options.backend
    name, slash, inner = session.model.partition("/")
    is_known = any(each.name == name for each in settings.backends)
    if slash and name == GIVEN_BACKEND and not is_known and not options.backend:
        raise UsageError("--resume: the backend was given by its address; give it again with --backend")
    # An explicit backend replaces the one in the session's model name.
    model = inner if options.backend and slash and (is_known or name == GIVEN_BACKEND) else session.model
    return model, options.backend


def choose_tools(given: str | None) -> BuiltinTools:
    """The tools with these names. Raises `UsageError`."""
    names = [name.strip().lower() for name in (given or "").split(",") if name.strip()]
    if given is not None and not names:
        raise UsageError(f"--tools: {given!r} names no tool; {NO_TOOLS} selects no tools")
    if NO_TOOLS in names and names != [NO_TOOLS]:
        raise UsageError(f"--tools: {NO_TOOLS} cannot be combined with other names")
    try:
        return BuiltinTools(()) if names == [NO_TOOLS] else builtin(names)
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
