"""Commands that run to their end: `Bash`, and `local_shell` of the Responses API.

There is no sandbox: a command has all permissions of this process. So nothing runs in read-only mode. Only the
directory in which a command starts is confined, unless calls are approved before they run. Both tools answer in this
form, with the exit code if it is not 0:

Exit code: 1
Wall time: 0.1 seconds
Output:
…
"""

import shutil
import time
from pathlib import Path

import msgspec

from toolwire.agent.tools.file_access import check_writable, confine, resolve
from toolwire.agent.tools.process import DEFAULT_TIMEOUT, MAX_TIMEOUT, MIN_TIMEOUT, Command, Process
from toolwire.core.request import TextPart
from toolwire.turns.tools.call import LOCAL_SHELL, ToolError
from toolwire.turns.tools.registry import Context, Emit, Result, tool

NO_COMMANDS = "commands cannot be run, because nothing keeps them from writing"


class Outcome(msgspec.Struct, frozen=True):
    """The result of a command; with `timed_out` it was stopped."""

    exit_code: int | None
    seconds: float
    output: str
    timed_out: bool


@tool(name="Bash", writes=True)
async def bash(command: str, context: Context, cwd: str = "", timeout: float = DEFAULT_TIMEOUT) -> Result:  # noqa: ASYNC109 an argument of the model
    """Run a shell command to its end, and return its output and errors.

    Every command has a shell of its own, without input. Its background processes are ended with it.
    There is no sandbox.

    Args:
        command: The command, as for `bash -c`.
        cwd: Where to run it. Defaults to the working directory.
        timeout: Seconds after which it is ended. Defaults to 120; at most 600.
    """
    check_writable(context, NO_COMMANDS)
    started = Command(shell_argv(command), resolve_directory(context, cwd), inherit=context.inherit)
    return _as_result(await run(started, context.emit, timeout))


@tool(name=LOCAL_SHELL, writes=True)
async def local_shell(
    command: tuple[str, ...],
    context: Context,
    working_directory: str = "",
    timeout_ms: float | None = None,
    env: dict[str, str] | None = None,
    with_escalated_permissions: bool = False,
    justification: str = "",
) -> Result:
    """Run a program to its end, and return its output and errors. There is no sandbox.

    Args:
        command: The program and its arguments.
        working_directory: Where to run it. Defaults to the working directory.
        timeout_ms: Milliseconds after which it is ended. Defaults to 120000; at most 600000.
        env: Environment variables to add.
        with_escalated_permissions: Ask for more than is allowed by default.
        justification: Why that is needed; the approver of the command reads it.
    """
    check_writable(context, NO_COMMANDS)
    if with_escalated_permissions and not justification.strip():
        raise ToolError("with_escalated_permissions needs a justification")
    if not command:
        raise ToolError("missing command")
    seconds = DEFAULT_TIMEOUT if timeout_ms is None else timeout_ms / 1000
    started = Command(command, resolve_directory(context, working_directory), env or {}, inherit=context.inherit)
    return _as_result(await run(started, context.emit, seconds))


async def run(command: Command, emit: Emit, seconds: float) -> Outcome:
    """Run a command to its end or its timeout; when cancelled, all its processes are ended."""
    seconds = min(max(seconds, MIN_TIMEOUT), MAX_TIMEOUT)
    began = time.monotonic()
    process = Process(command)
    with process.emit_output(emit):
        try:
            await process.wait(seconds)
            timed_out = process.exit_code is None
        finally:
            await process.stop()
    return Outcome(process.exit_code, time.monotonic() - began, process.output.text(), timed_out)


def _as_result(outcome: Outcome) -> Result:
    lines = [f"Wall time: {outcome.seconds:.1f} seconds", "Output:", outcome.output]
    if outcome.timed_out:
        lines.insert(0, f"Timed out and was stopped after {outcome.seconds:.1f} seconds")
    elif outcome.exit_code != 0:
        lines.insert(0, f"Exit code: {outcome.exit_code}")
    return Result((TextPart("\n".join(lines)),), failed=outcome.timed_out or outcome.exit_code != 0)


def shell_argv(command: str) -> tuple[str, ...]:
    """The program and arguments that run a shell command."""
    return (shutil.which("bash") or "/bin/sh", "-c", command)


def resolve_directory(context: Context, path: str) -> Path:
    """The directory of a command: the working directory, one inside the roots, or any that was approved."""
    directory = context.cwd
    if path:
        directory = resolve(path, context) if context.approved else confine(path, context).path
    if not directory.is_dir():
        raise ToolError(f"{path or directory} is not a directory")
    return directory
