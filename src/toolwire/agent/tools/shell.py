"""Runs commands. `Bash` and `local_shell` run one to its end; `exec_command` may leave it running after the call.

The context says whether commands run in a sandbox. Without one, a command has all permissions of this process, and only
the directory in which it starts is confined, unless calls are approved before they run. So read-only mode refuses all
commands.

`Bash` and `local_shell` answer in this form, with the exit code if it is not 0:

Exit code: 1
Wall time: 0.1 seconds
Output:
…

The others answer as Codex does, whose models know this form. A command that still runs has a session id for later
calls:

Chunk ID: 84809a
Wall time: 10.0012 seconds
Process running with session ID 27299        or: Process exited with code 0
Original token count: 4
Output:
…
"""

import asyncio
import random
import secrets
import shutil
import time
from pathlib import Path
from typing import Literal

import msgspec

from toolwire.agent.approval import USE_DEFAULT
from toolwire.agent.sandbox import HINT, REFUSED
from toolwire.agent.tools.file_access import check_writable, confine, resolve
from toolwire.agent.tools.process import (
    BYTES_PER_TOKEN,
    DEFAULT_TIMEOUT,
    MAX_RESULT_TOKENS,
    MAX_TIMEOUT,
    MIN_TIMEOUT,
    Command,
    Process,
)
from toolwire.core.request import TextPart
from toolwire.turns.tools.call import LOCAL_SHELL, ToolError
from toolwire.turns.tools.registry import Context, Emit, FunctionTool, Result, tool

NO_COMMANDS = "commands cannot be run, because nothing prevents them from writing"
MAX_SESSIONS = 64
"""As in Codex. Codex ends the least recently used session to make room; here the model has to end one."""
DEFAULT_YIELD_MS = 10_000.0
"""Milliseconds to wait for a new command before its session id is returned."""
MIN_YIELD_MS = 250.0
MIN_POLL_MS = 5_000.0
"""Minimum milliseconds of a call that only waits, so that a model does not poll in a tight loop."""
MAX_YIELD_MS = 30_000.0
MAX_POLL_MS = 300_000.0
SESSION_IDS = range(1_000, 100_000)
"""Session ids are random: a resumed conversation must not find another process under an old id."""
STDIN_CLOSED = "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open"


class Outcome(msgspec.Struct, frozen=True):
    """The result of a command; with `timed_out` it was stopped."""

    exit_code: int | None
    seconds: float
    output: str
    timed_out: bool


@tool(name="Bash", writes=True)
async def bash(
    command: str,
    context: Context,
    cwd: str = "",
    timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109 an argument of the model
    dangerouslyDisableSandbox: bool = False,  # noqa: N803 as in Claude Code
) -> Result:
    """Run a shell command to its end, and return its output and errors.

    Every command has a shell of its own, without input. Its background processes are ended with it.

    Args:
        command: The command, as for `bash -c`.
        cwd: Where to run it. Defaults to the working directory.
        timeout: Seconds after which it is ended. Defaults to 120; at most 600.
        dangerouslyDisableSandbox: Run it without the sandbox, if there is one. The user is asked.
    """
    check_writable(context, NO_COMMANDS)
    sandbox = () if dangerouslyDisableSandbox else context.sandbox
    started = Command(shell_argv(command), resolve_directory(context, cwd), sandbox=sandbox, inherit=context.inherit)
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
    """Run a program to its end, and return its output and errors.

    Args:
        command: The program and its arguments.
        working_directory: Where to run it. Defaults to the working directory.
        timeout_ms: Milliseconds after which it is ended. Defaults to 120000; at most 600000.
        env: Environment variables to add.
        with_escalated_permissions: Run it without the sandbox, if there is one. The user is asked.
        justification: Why that is needed; the approver of the command reads it.
    """
    check_writable(context, NO_COMMANDS)
    if with_escalated_permissions and not justification.strip():
        raise ToolError("with_escalated_permissions needs a justification")
    if not command:
        raise ToolError("missing command")
    seconds = DEFAULT_TIMEOUT if timeout_ms is None else timeout_ms / 1000
    sandbox = () if with_escalated_permissions else context.sandbox
    if sandbox and env:  # only in the sandbox: some variables make any program run code
        command, env = ("env", *(f"{name}={value}" for name, value in env.items()), *command), None
    directory = resolve_directory(context, working_directory)
    started = Command(command, directory, env or {}, sandbox=sandbox, inherit=context.inherit)
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
    output = process.output.text()
    return Outcome(process.exit_code, time.monotonic() - began, output + _hint(process, output), timed_out)


def _hint(process: Process, output: str) -> str:
    """What follows the output of a command if its sandbox may have refused something."""
    is_refused = process.has_sandbox and process.exit_code and REFUSED.search(output)
    return f"\n{HINT}" if is_refused else ""


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


# Sessions


class Sessions:
    """The commands that `exec_command` has started, by session id, and the tools that share them."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._sessions: dict[int, Process] = {}  # in the order of their start
        self._is_closed = False
        self.tools = (
            FunctionTool(self.exec_command, parallel=True, writes=True),
            FunctionTool(self.write_stdin, parallel=True, writes=True),
            FunctionTool(self.kill_session, writes=True),
        )

    def __len__(self) -> int:
        return len(self._sessions)

    async def close(self) -> None:
        """End all sessions. No new one can begin."""
        self._is_closed = True
        ending = [process.stop() for process in self._sessions.values()]
        self._sessions.clear()
        await asyncio.gather(*ending)

    # The tools

    async def exec_command(
        self,
        cmd: str,
        context: Context,
        workdir: str = "",
        tty: bool = False,
        yield_time_ms: float = DEFAULT_YIELD_MS,
        max_output_tokens: float = MAX_RESULT_TOKENS,
        sandbox_permissions: Literal["use_default", "require_escalated"] = USE_DEFAULT,
        justification: str = "",
    ) -> Result:
        """Runs a command, returning output or a session ID for ongoing interaction.

        Args:
            cmd: Shell command to execute.
            workdir: Working directory for the command. Defaults to the turn cwd.
            tty: True allocates a PTY for the command; false or omitted uses plain pipes.
            yield_time_ms: Wait before yielding output. Defaults to 10000 ms; effective range is 250-30000 ms.
            max_output_tokens: Output token budget. Defaults to 10000 tokens, the maximum.
            sandbox_permissions: require_escalated runs it without the sandbox, if there is one. The user is asked.
            justification: Why that is needed; the user reads it.
        """
        check_writable(context, NO_COMMANDS)
        began = time.monotonic()
        sandbox = context.sandbox if sandbox_permissions == USE_DEFAULT else ()
        directory = resolve_directory(context, workdir)
        command = Command(shell_argv(cmd), directory, terminal=tty, sandbox=sandbox, inherit=context.inherit)
        if self._is_closed:
            raise ToolError("the sessions are closed")
        finished = [id for id, process in self._sessions.items() if process.is_over]
        while len(self._sessions) >= self._limit:
            if not finished:
                raise ToolError(f"there are {self._limit} sessions already: end one with kill_session")
            del self._sessions[finished.pop(0)]
        while (id := random.choice(SESSION_IDS)) in self._sessions:
            pass
        self._sessions[id] = process = Process(command)
        try:
            with process.emit_output(context.emit):
                await process.wait(_clamp_seconds(yield_time_ms, MIN_YIELD_MS, MAX_YIELD_MS))
        except asyncio.CancelledError:  # the model never gets its session id
            self._sessions.pop(id, None)
            await process.stop()
            raise
        return self._answer(id, process, began, max_output_tokens)

    async def write_stdin(
        self,
        session_id: float,
        context: Context,
        chars: str = "",
        yield_time_ms: float = 0,
        max_output_tokens: float = MAX_RESULT_TOKENS,
    ) -> Result:
        """Writes characters to an existing unified exec session and returns recent output.

        Args:
            session_id: Identifier of the running unified exec session.
            chars: Characters to write to stdin. Defaults to empty, which polls without writing.
            yield_time_ms: Wait before yielding output. Non-empty writes default to 250 ms and cap at 30000 ms;
                empty polls wait 5000-300000 ms.
            max_output_tokens: Output token budget. Defaults to 10000 tokens, the maximum.
        """
        process = self._find(session_id, "write_stdin")
        if chars:
            check_writable(context, NO_COMMANDS)
        bounds = (MIN_YIELD_MS, MAX_YIELD_MS) if chars else (MIN_POLL_MS, MAX_POLL_MS)
        seconds = _clamp_seconds(yield_time_ms, *bounds)
        began = time.monotonic()
        with process.emit_output(context.emit):
            if chars and not process.is_over:
                if not process.has_terminal:
                    raise ToolError(f"write_stdin failed: {STDIN_CLOSED}")
                data = chars.encode()
                taken = await process.write(data, seconds)
                if taken < len(data) and not process.is_over:
                    raise ToolError(f"write_stdin failed: the process took {taken} of {len(data)} bytes")
            await process.wait(seconds - (time.monotonic() - began))
        return self._answer(int(session_id), process, began, max_output_tokens)

    async def kill_session(self, session_id: float) -> Result:
        """Ends a unified exec session with all that it started, and returns its last output.

        Args:
            session_id: Identifier of the unified exec session.
        """
        process = self._find(session_id, "kill_session")
        began = time.monotonic()
        await process.stop()
        return self._answer(int(session_id), process, began, MAX_RESULT_TOKENS)

    # Bookkeeping

    def _find(self, id: float, tool: str) -> Process:
        process = self._sessions.get(int(id))
        if process is None:
            raise ToolError(f"{tool} failed: Unknown process id {id:.0f}")
        return process

    def _answer(self, id: int, process: Process, began: float, max_tokens: float) -> Result:
        state = f"Process running with session ID {id}"
        if process.is_over:
            self._sessions.pop(id, None)
            state = f"Process exited with code {process.exit_code}"
        output = process.take()
        budget = int(min(max(max_tokens, 0), MAX_RESULT_TOKENS)) * BYTES_PER_TOKEN
        text = output.text(budget)
        if not output.fits(budget):
            warning = f"Warning: truncated output (original token count: {output.tokens})"
            text = f"{warning}\nTotal output lines: {output.lines}\n\n{text}"
        text += _hint(process, text) if process.is_over else ""
        lines = (
            f"Chunk ID: {secrets.token_hex(3)}",
            f"Wall time: {time.monotonic() - began:.4f} seconds",
            state,
            f"Original token count: {output.tokens}",
            "Output:",
            text,
        )
        return Result((TextPart("\n".join(lines)),), failed=process.is_over and (process.exit_code or 0) > 0)


def _clamp_seconds(milliseconds: float, minimum: float, maximum: float) -> float:
    return min(max(milliseconds, minimum), maximum) / 1000
