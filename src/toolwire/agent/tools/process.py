"""Processes: one command, one session, one output. Nothing of a command is left when it is over.

A command runs in a session of its own, so that it has no terminal of ours and can be ended with all that it started.
Its output and its errors come through one pipe, or one pseudo-terminal. POSIX only.
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

from toolwire.agent.call import ToolError
from toolwire.agent.registry import Emit, Inherit
from toolwire.agent.tools import keeper
from toolwire.agent.tools.excerpt import Excerpt
from toolwire.agent.tools.family import MARK, Family, new_mark
from toolwire.transport.environment import inherited

TIMEOUT = 120.0
"""Seconds that a command has, if nobody says otherwise."""
MOST_TIMEOUT = 600.0
LEAST_TIMEOUT = 0.1
GRACE = 0.5
"""Seconds between asking to end and ending."""
DRAIN = 0.25
"""Seconds that output may still come after a command has ended: something it started holds the pipe."""
PAUSE = 0.01
CHUNK = 1 << 16
MOST_EMITTED = 1 << 20
"""Characters that whoever watches a call is shown."""
NOT_SHOWN = "\n… the rest is not shown …\n"
ENVIRONMENT = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "NO_COLOR": "1"}
TERMINAL_SIZE = (24, 80)


class Command(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    cwd: Path
    env: dict[str, str] = {}
    """What is added to the inherited environment."""
    terminal: bool = False
    inherit: Inherit = inherited
    """Gives that environment."""


class Process:
    """A command under way, from its making. Whoever makes one awaits `stop`."""

    def __init__(self, command: Command) -> None:
        self.output = Excerpt()
        self._watchers: list[Emit] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._typing = asyncio.Lock()
        self._silent = asyncio.Event()
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        mark = new_mark()
        self._code: int | None = None
        self._keeper, self._fd, self._report = _start(command, mark)
        self._family = Family(self._keeper.pid, mark, keeps_leader=sys.platform == "linux")
        loop.add_reader(self._fd, self._read)
        self._life = loop.create_task(self._live())
        self._life.add_done_callback(self._bury)

    # What it says and hears

    @contextmanager
    def watched(self, emit: Emit) -> Generator[None]:
        """Show its output as it comes, and first what nobody has taken yet."""
        watcher = _Watcher(emit)
        if self.output.size:
            watcher(self.output.text())
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def take(self) -> Excerpt:
        """The output since the last time."""
        taken, self.output = self.output, Excerpt()
        return taken

    async def write(self, data: bytes, seconds: float) -> int:
        """Type into its terminal; how many bytes were taken in time."""
        done = 0
        with suppress(TimeoutError, OSError):  # OSError: it has ended
            async with asyncio.timeout(seconds), self._typing:
                while done < len(data) and not self._silent.is_set():
                    try:
                        done += os.write(self._fd, data[done : done + CHUNK])
                    except BlockingIOError:
                        await asyncio.sleep(PAUSE)
        return done

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        if data:
            self._hear(self._decoder.decode(data))
        else:
            self._fall_silent()

    def _hear(self, text: str) -> None:
        if text:
            self.output.add(text)
            for watcher in tuple(self._watchers):
                watcher(text)

    def _fall_silent(self) -> None:
        """Nothing more comes. A terminal stays open: to close it would end the process that is about to end itself."""
        if not self._silent.is_set():
            self._silent.set()
            asyncio.get_running_loop().remove_reader(self._fd)
            self._hear(self._decoder.decode(b"", final=True))

    # Its life

    async def _live(self) -> None:
        self._code = await _exit_code(self._report, self._keeper)
        await _within(DRAIN, self._silent)
        for number in (signal.SIGTERM, signal.SIGKILL):  # what it left behind
            self._family.signal(number)
            deadline = time.monotonic() + GRACE
            while self._family.living():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(PAUSE)
                if number == signal.SIGKILL:  # what was born meanwhile
                    self._family.signal(number)

    def _bury(self, life: "asyncio.Task[None]") -> None:
        try:
            if life.cancelled() or self._code is None:  # the loop is being closed, or it hangs in the kernel
                self._family.signal(signal.SIGKILL)
            self._keeper.kill()
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(GRACE)
            self._fall_silent()
        finally:
            os.close(self._fd)
            os.close(self._report)
            self._over.set()

    @property
    def exit_code(self) -> int | None:
        """Of the command itself, once it has ended. A signal is told as a shell does."""
        code = self._keeper.returncode if self._code is None else self._code
        return 128 - code if code is not None and code < 0 else code

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def wait(self, seconds: float) -> bool:
        """Until it is over, all output is there and nothing of it is left, but not longer than this."""
        return await _within(seconds, self._over)

    async def stop(self) -> None:
        """End it with all that it started: it is asked, and after a grace it is not."""
        if self.is_over:
            return
        try:
            self._family.signal(signal.SIGTERM)
            await self.wait(GRACE)
        finally:
            if not self.is_over:  # also if nobody waits for us any more
                self._family.signal(signal.SIGKILL)
        if not await self.wait(2 * GRACE):
            self._life.cancel()


def _start(command: Command, mark: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start a command under a keeper; also our end of its pipe or terminal, and where its exit code will be.

    Not through the event loop: uvloop leaves copies of the pipe open in the command, and starting could be cancelled
    halfway.
    """
    environment = {**command.inherit(), **ENVIRONMENT, **command.env, MARK: mark}
    _check_program(command, environment.get("PATH", os.defpath))
    ours, theirs = os.openpty() if command.terminal else os.pipe()
    code, report = os.pipe()
    try:
        os.set_blocking(ours, False)
        os.set_blocking(code, False)
        if command.terminal:
            termios.tcsetwinsize(theirs, TERMINAL_SIZE)
        popen = subprocess.Popen(  # noqa: S603 running commands is what this is for
            (sys.executable, "-I", "-S", keeper.__file__, str(report), *command.argv),
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
        why = error.strerror if isinstance(error, OSError) else error
        raise ToolError(f"cannot run {command.argv[0]!r}: {why}") from error
    finally:
        os.close(theirs)
        os.close(report)
    return popen, ours, code


def _check_program(command: Command, path: str) -> None:
    """Raise `ToolError` if there is no such program; the keeper would only notice later."""
    name = command.argv[0]
    there = os.path.join(command.cwd, name)
    if os.sep in name:
        fault = 0 if shutil.which(there) else errno.EACCES if os.path.exists(there) else errno.ENOENT
    else:
        fault = 0 if shutil.which(name, path=path) else errno.ENOENT
    if fault and command.cwd.is_dir():
        raise ToolError(f"cannot run {name!r}: {os.strerror(fault)}")


async def _exit_code(code: int, popen: subprocess.Popen[bytes]) -> int:
    """Wait until a command has ended; its exit code, or that of its keeper if somebody has killed it."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_reader(code, told.set)
    try:
        await told.wait()
    finally:
        loop.remove_reader(code)
    data = os.read(code, 16)
    return int(data) if data else popen.wait()


class _Watcher:
    """Shows a bounded part of what comes."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._room = MOST_EMITTED

    def __call__(self, text: str) -> None:
        if self._room <= 0:
            return
        self._emit(text if len(text) <= self._room else text[: self._room] + NOT_SHOWN)
        self._room -= len(text)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
