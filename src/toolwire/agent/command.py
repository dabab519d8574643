"""`toolwire run`: an agent in a terminal, for one prompt or a whole session, or as lines of JSON."""

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from pathlib import Path

from toolwire.agent.approval import Approver
from toolwire.agent.events import TaskEnded, as_line
from toolwire.agent.hooks import CallOptions
from toolwire.agent.mcp import Servers
from toolwire.agent.model import Model, with_backend
from toolwire.agent.options import (
    RunOptions,
    UsageError,
    choose_directory,
    choose_model,
    choose_prompt,
    choose_servers,
    choose_session,
    choose_tools,
)
from toolwire.agent.runner import Runner
from toolwire.agent.session import Session, folder
from toolwire.agent.terminal.interrupts import CANCELLED, Interrupts
from toolwire.agent.terminal.screen import Screen
from toolwire.config.settings import load
from toolwire.core.display import clean
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.loop import REPEATED_CALLS
from toolwire.turns.tools.registry import Tool

CONTINUE = "Go on."
"""The prompt in the command that resumes a session."""
FAILED = 1
"""The exit code of a run that failed."""
EXIT_CODES = {"failed": FAILED, REPEATED_CALLS: FAILED, "cancelled": CANCELLED}
"""Exit codes by the reason for which a task ended; 0 for any other."""


def run(options: RunOptions) -> int:
    """Run the agent and return the exit code. Raises `UsageError`, `SettingsError`, `SessionError`, `BadRequest`."""
    if sys.__stdout__ is None:
        raise UsageError("stdout is closed")
    try:
        prompt = choose_prompt(options)
        return asyncio.run(_interact(options) if prompt is None else _run(options, prompt))
    except (asyncio.CancelledError, KeyboardInterrupt):  # before the task began, or after a second Ctrl-C
        print("toolwire: cancelled", file=sys.stderr)
        return CANCELLED
    except OSError as error:  # the output cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nor what is still buffered
        with contextlib.suppress(OSError):  # stderr may be on the same terminal
            if not isinstance(error, BrokenPipeError):
                print(f"toolwire: {error.strerror or error}", file=sys.stderr, flush=True)
        return FAILED


async def _run(options: RunOptions, prompt: str) -> int:
    """Work on one prompt."""

    def say(server: str, message: str) -> None:
        print(clean(f"toolwire: MCP server {server}: {message}"), file=sys.stderr)

    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = _choose_session(stack, options)
        servers = choose_servers(options.mcp)
        cwd = choose_directory(options.cwd, session)
        screen: Screen | None = None
        if not options.as_json:
            screen = Screen(cwd, interrupts.cancel, verbose=options.verbose, quiet=options.quiet)
        agent = await _open_runner(stack, options, session, cwd, screen.approver if screen else None)
        if screen is not None:
            await stack.enter_async_context(screen)
            interrupts.after_cancelling = screen.show_cancelling
            screen.view.wait_for("MCP servers" if servers else "the model")
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
                await screen.show(event)
            else:
                sys.stdout.buffer.write(as_line(event))
                sys.stdout.buffer.flush()
            reason = event.reason if isinstance(event, TaskEnded) else reason
        return EXIT_CODES.get(reason, 0)


async def _interact(options: RunOptions) -> int:
    """Work on typed prompts, until the user leaves."""
    # Only here, as nothing else needs prompt_toolkit.
    from toolwire.agent.terminal.interactive import Interactive  # noqa: PLC0415

    async def approve(tool: Tool, call: ToolCall) -> bool | str:
        return await screen.questions.ask(tool, call)

    def say(server: str, message: str) -> None:
        screen.say(server, message)

    interrupts = Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        session = _choose_session(stack, options)
        servers = choose_servers(options.mcp)
        agent = await _open_runner(stack, options, session, choose_directory(options.cwd, session), approve)
        connected = Servers(servers, say) if servers else None
        screen = Interactive(
            agent, connected, has_session=session is not None, verbose=options.verbose, quiet=options.quiet
        )
        if connected is not None:
            await stack.enter_async_context(connected)
            agent.registry.follow(connected.update)
        interrupts.target = screen.leave
        await screen.run()
        if screen.commands.has_session and not options.quiet:
            print(clean(_resume_command(options, agent.session.id)))
    return 0


def _choose_session(stack: contextlib.AsyncExitStack, options: RunOptions) -> Session | None:
    session = choose_session(options)
    if session is not None:
        stack.callback(session.close)
    return session


async def _open_runner(
    stack: contextlib.AsyncExitStack,
    options: RunOptions,
    session: Session | None,
    cwd: Path,
    approver: Approver | None,
) -> Runner:
    settings = load(options.settings_path)
    model, backend = choose_model(options, session, settings)
    settings, name = with_backend(settings, backend, model, "--backend")
    config = options.agent_config
    tools = await stack.enter_async_context(choose_tools(options.tools))
    runner = Runner(
        Model(settings, name, idle=config.idle),
        tools=tools.tools,
        config=config,
        cwd=cwd,
        calls=CallOptions(approver),
        session=session,
    )
    return await stack.enter_async_context(runner)


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
