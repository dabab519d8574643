"""`toolwire run`: an agent in a terminal, for one prompt or a whole session, or as lines of JSON."""

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from toolwire.agent.approval import Approver
from toolwire.agent.events import AgentEvent, TaskEnded, as_line
from toolwire.agent.hooks import CallOptions
from toolwire.agent.mcp import Servers
from toolwire.agent.model import Model, with_backend
from toolwire.agent.options import (
    Options,
    UsageError,
    chosen_directory,
    chosen_model,
    chosen_prompt,
    chosen_servers,
    chosen_session,
    chosen_tools,
)
from toolwire.agent.runner import Runner
from toolwire.agent.session import Session, folder
from toolwire.agent.terminal.interrupts import CANCELLED, Interrupts
from toolwire.agent.terminal.screen import Screen
from toolwire.config.settings import load
from toolwire.core.terminal import clean
from toolwire.turns.tools.loop import REPEATED_CALLS

CONTINUE = "Go on."
"""The prompt in the command that resumes a session."""
FAILED = 1
"""The exit code of a run that failed."""
EXIT_CODES = {"failed": FAILED, REPEATED_CALLS: FAILED, "cancelled": CANCELLED}
"""The exit codes by the reason for which a task ended; 0 for any other."""


def run(options: Options) -> int:
    """Run the agent and return the exit code."""
    if sys.__stdout__ is None:
        raise UsageError("stdout is closed")
    try:
        prompt = chosen_prompt(options)
        return asyncio.run(_interact(options) if prompt is None else _run(options, prompt))
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
    """Work on one prompt."""
    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = _held(stack, chosen_session(options))
        servers = chosen_servers(options.mcp)
        screen = None if options.as_json else Screen(verbose=options.verbose, quiet=options.quiet)
        agent = await _runner(stack, options, session, screen.approver if screen else None)
        if screen is not None:
            await stack.enter_async_context(screen)
            screen.questions.cwd = agent.cwd
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
            screen.closing_line = f'{_resume_command(options, agent.session.id)} "{CONTINUE}"'
            if session is not None:
                screen.view.resume(session.usage)
            interrupts.before_leaving = screen.close
        return await _watch(agent, prompt, _write_line if screen is None else screen.show)


async def _interact(options: Options) -> int:
    """Work on what is typed, until the user leaves."""
    # Only here, as nothing else needs prompt_toolkit.
    from toolwire.agent.terminal.interactive import Interactive, Work  # noqa: PLC0415

    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = _held(stack, chosen_session(options))
        servers = chosen_servers(options.mcp)
        screen = Interactive(verbose=options.verbose, quiet=options.quiet)
        agent = await _runner(stack, options, session, screen.questions.ask)
        connected = None
        if servers:
            connected = await stack.enter_async_context(Servers(servers, screen.say))
            agent.registry.follow(connected.update)
        interrupts.cancel = screen.leave
        work = Work(agent, connected, has_session=session is not None)
        await screen.run(work)
        if work.has_session and not options.quiet:
            print(clean(_resume_command(options, agent.session.id)))
    return 0


def _held(stack: contextlib.AsyncExitStack, session: Session | None) -> Session | None:
    if session is not None:
        stack.callback(session.close)
    return session


async def _runner(
    stack: contextlib.AsyncExitStack, options: Options, session: Session | None, approver: Approver | None
) -> Runner:
    settings = load(options.settings_path)
    model, backend = chosen_model(options, session, settings)
    settings, name = with_backend(settings, backend, model, "--backend")
    config = options.agent_config
    tools = await stack.enter_async_context(chosen_tools(options.tools))
    runner = Runner(
        Model(settings, name, idle=config.idle),
        tools=tools.tools,
        config=config,
        cwd=chosen_directory(options.cwd, session),
        calls=CallOptions(approver),
        session=session,
    )
    return await stack.enter_async_context(runner)


# The closing line


def _resume_command(options: Options, id: str) -> str:
    """A command to paste that resumes the session, with the options that the session does not store."""
    given = {"--config": options.settings_path or ""}
    is_resumed = options.resume or options.continues
    if is_resumed or ":" in options.backend:
        given["--backend"] = options.backend
    if is_resumed:
        given |= {"--model": options.model, "--cwd": options.cwd}
    words = [word for option, value in given.items() if value for word in (option, value)]
    return shlex.join((*_program(), "run", "--resume", id, *words))


def _program() -> tuple[str, ...]:
    """The command that started this program."""
    called = sys.argv[0]
    if Path(called).name != "toolwire":
        return sys.orig_argv[0], "-m", "toolwire"
    return ("toolwire" if called == shutil.which("toolwire") else called,)


# Output


async def _watch(agent: Runner, prompt: str, show: Callable[[AgentEvent], Awaitable[None]]) -> int:
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
