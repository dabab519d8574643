"""Runs commands. No process that a command has started outlives it.

A command runs in a session of its own, so that it has no access to our terminal, and can be ended with all its
descendants. Its stdout and stderr share one pipe, or one pseudo-terminal. POSIX only.
"""

import asyncio
import codecs
import errno
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from toolwire.agent.tools import supervisor
from toolwire.agent.tools.process_tree import MARK, ProcessTree, new_mark
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Emit, Inherit
from toolwire.upstream.credentials import inherit_environment

DEFAULT_TIMEOUT = 120.0
"""Default seconds before a command is stopped."""
MAX_TIMEOUT = 600.0
MIN_TIMEOUT = 0.1
KILL_TIMEOUT = 0.5
"""Seconds between SIGTERM and SIGKILL."""
DRAIN_TIMEOUT = 0.25
"""Seconds to wait for output after a command has ended, while a descendant holds the pipe open."""
POLL_INTERVAL = 0.01
CHUNK_BYTES = 1 << 16
MAX_EMITTED_CHARS = 1 << 20
"""Maximum characters of output that are emitted as events."""
REST_NOT_SHOWN = "\n… the rest is not shown …\n"
ENVIRONMENT = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "NO_COLOR": "1"}
TERMINAL_SIZE = (24, 80)
BYTES_PER_TOKEN = 4
"""How Codex estimates tokens."""
MAX_RESULT_TOKENS = 10_000
"""Maximum tokens of one result, as in Codex."""
MAX_EXCERPT_BYTES = MAX_RESULT_TOKENS * BYTES_PER_TOKEN


class Excerpt:
    """Text of any length in bounded memory: its beginning and its end."""

    def __init__(self, limit: int = MAX_EXCERPT_BYTES) -> None:
        self.size = 0  # bytes of all output
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._newlines = 0
        self._is_open_line = False

    def add(self, text: str) -> None:
        """Add output."""
        data = text.encode()
        self.size += len(data)
        self._newlines += data.count(b"\n")
        self._is_open_line = not text.endswith("\n") if text else self._is_open_line
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -self._half]

    @property
    def tokens(self) -> int:
        """The estimated tokens of all output."""
        return estimate_tokens(self.size)

    @property
    def lines(self) -> int:
        """The number of lines of all output."""
        return self._newlines + self._is_open_line

    def fits(self, budget: int) -> bool:
        """Whether all output fits into this many bytes."""
        return self.size <= min(budget, 2 * self._half)

    def text(self, budget: int = MAX_EXCERPT_BYTES) -> str:
        """All output, or as much of both ends as the budget in bytes allows. Characters are not split."""
        kept = bytes(self._head + self._tail)
        if self.fits(budget):
            return kept.decode()
        half = min(budget // 2, self._half)
        head = kept[:half].decode(errors="ignore")
        tail = kept[len(kept) - half :].decode(errors="ignore")
        lost = self.size - len(head.encode()) - len(tail.encode())
        return f"{head}…{estimate_tokens(lost)} tokens truncated…{tail}"


def estimate_tokens(size: int) -> int:
    """The estimated number of tokens in this many bytes."""
    return -(-size // BYTES_PER_TOKEN)


class Command(msgspec.Struct, frozen=True):
    """A command to run."""

    argv: tuple[str, ...]
    cwd: Path
    env: dict[str, str] = {}
    """Variables that are added to the inherited ones."""
    terminal: bool = False
    sandbox: tuple[str, ...] = ()
    """What precedes the arguments to run it in a sandbox."""
    inherit: Inherit = inherit_environment
    """Returns the inherited environment."""


class Process:
    """A running command, which starts on creation. The owner must await `stop`."""

    def __init__(self, command: Command) -> None:
        self.has_terminal = command.terminal
        self.has_sandbox = bool(command.sandbox)
        self.output = Excerpt()
        self._watchers: list[Emit] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._typing = asyncio.Lock()
        self._output_ended = asyncio.Event()
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        mark = new_mark()
        self._code: int | None = None
        self._supervisor, self._fd, self._report = _start(command, mark)
        self._tree = ProcessTree(self._supervisor.pid, mark, keeps_leader=sys.platform == "linux")
        loop.add_reader(self._fd, self._read)
        self._monitor = loop.create_task(self._wait_for_end())
        self._monitor.add_done_callback(self._clean_up)

    # Output and input

    @contextmanager
    def emit_output(self, emit: Emit) -> Generator[None]:
        """Emit the output as it arrives, up to a limit, starting with output that was not taken yet."""
        room = MAX_EMITTED_CHARS

        def watch(text: str) -> None:
            nonlocal room
            if room > 0:
                emit(text if len(text) <= room else text[:room] + REST_NOT_SHOWN)
                room -= len(text)

        if self.output.size:
            watch(self.output.text())
        self._watchers.append(watch)
        try:
            yield
        finally:
            self._watchers.remove(watch)

    def take(self) -> Excerpt:
        """The output since the last call."""
        taken, self.output = self.output, Excerpt()
        return taken

    async def write(self, data: bytes, seconds: float) -> int:
        """Write to the terminal, and return how many bytes the command accepted in time."""
        done = 0
        with suppress(TimeoutError, OSError):  # OSError: it has ended
            async with asyncio.timeout(seconds), self._typing:
                while done < len(data) and not self._output_ended.is_set():
                    try:
                        done += os.write(self._fd, data[done : done + CHUNK_BYTES])
                    except BlockingIOError:
                        await asyncio.sleep(POLL_INTERVAL)
        return done

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if data:
            self._add_output(self._decoder.decode(data))
        else:
            self._end_output()

    def _add_output(self, text: str) -> None:
        if text:
            self.output.add(text)
            for watcher in tuple(self._watchers):
                watcher(text)

    def _end_output(self) -> None:
        """The output has ended; a terminal stays open, because closing it would kill the process."""
        if not self._output_ended.is_set():
            self._output_ended.set()
            asyncio.get_running_loop().remove_reader(self._fd)
            self._add_output(self._decoder.decode(b"", final=True))

    # Lifetime

    async def _wait_for_end(self) -> None:
        loop = asyncio.get_running_loop()
        is_reported = asyncio.Event()
        loop.add_reader(self._report, is_reported.set)
        try:
            await is_reported.wait()
        finally:
            loop.remove_reader(self._report)
        code = os.read(self._report, 16)
        self._code = int(code) if code else self._supervisor.wait()  # empty if the supervisor was killed
        await _wait_for(DRAIN_TIMEOUT, self._output_ended)
        for number in (signal.SIGTERM, signal.SIGKILL):  # for its descendants
            self._tree.signal(number)
            deadline = time.monotonic() + KILL_TIMEOUT
            while self._tree.list_living():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(POLL_INTERVAL)
                if number == signal.SIGKILL:  # for processes that were started meanwhile
                    self._tree.signal(number)

    def _clean_up(self, monitor: "asyncio.Task[None]") -> None:
        try:
            if monitor.cancelled() or self._code is None:  # the loop is being closed, or a process hangs in the kernel
                self._tree.signal(signal.SIGKILL)
            self._supervisor.kill()
            with suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(KILL_TIMEOUT)
            self._end_output()
        finally:
            os.close(self._fd)
            os.close(self._report)
            self._over.set()

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, None while it runs; 128 plus the number of a signal, as in a shell."""
        code = self._supervisor.returncode if self._code is None else self._code
        return 128 - code if code is not None and code < 0 else code

    @property
    def is_over(self) -> bool:
        """Whether all its processes have ended."""
        return self._over.is_set()

    async def wait(self, seconds: float) -> bool:
        """Wait at most this long for all its processes and output to end, and return whether they have."""
        return await _wait_for(seconds, self._over)

    async def stop(self) -> None:
        """End it with all its processes: SIGTERM first, then SIGKILL."""
        if self.is_over:
            return
        try:
            self._tree.signal(signal.SIGTERM)
            await self.wait(KILL_TIMEOUT)
        finally:
            if not self.is_over:  # also if this wait was cancelled
                self._tree.signal(signal.SIGKILL)
        if not await self.wait(2 * KILL_TIMEOUT):
            self._monitor.cancel()


def _start(command: Command, mark: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start a command under a supervisor. Returns it, our end of its output, and the pipe for its exit code.

    Does not use the event loop: uvloop leaves copies of the pipe open in the command, and starting could be cancelled
    halfway. Raises `ToolError`.
    """
    environment = {**command.inherit(), **ENVIRONMENT, **command.env, MARK: mark}
    name = command.argv[0]
    program = os.path.join(command.cwd, name) if os.sep in name else name
    if shutil.which(program, path=environment.get("PATH", os.defpath)) is None and command.cwd.is_dir():
        # The supervisor would notice this only later.
        fault = errno.EACCES if os.sep in name and os.path.exists(program) else errno.ENOENT
        raise ToolError(f"cannot run {name!r}: {os.strerror(fault)}")
    ours, theirs = os.openpty() if command.terminal else os.pipe()
    code, report = os.pipe()
    try:
        os.set_blocking(ours, False)
        os.set_blocking(code, False)
        if command.terminal:
            termios.tcsetwinsize(theirs, TERMINAL_SIZE)
        popen = subprocess.Popen(  # noqa: S603 running commands is what this is for
            (sys.executable, "-I", "-S", supervisor.__file__, str(report), *command.sandbox, *command.argv),
            stdin=theirs if command.terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=command.cwd,
            env=environment,
            pass_fds=(report,),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(ours)
        os.close(code)
        reason = error.strerror if isinstance(error, OSError) else error
        raise ToolError(f"cannot run {name!r}: {reason}") from error
    finally:
        os.close(theirs)
        os.close(report)
    return popen, ours, code


async def _wait_for(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
