"""Processes: one command, one session, one output. Nothing of a command is left when it is over.

A command runs in a session of its own, so that it has no terminal of ours and can be ended with all that it started.
Its output and its errors come through one pipe, or one pseudo-terminal. POSIX only.
"""

import asyncio
import codecs
import os
import signal
import subprocess
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from toolwire.agent.call import ToolError
from toolwire.agent.registry import Emit, Inherit
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
POLL = 0.05
CHUNK = 1 << 16
MOST_EMITTED = 1 << 20
"""Characters that whoever watches a call is shown."""
NOT_SHOWN = "\n… the rest is not shown …\n"
ENVIRONMENT = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "NO_COLOR": "1"}
TERMINAL_SIZE = (24, 80)
TAKE_TERMINAL = ("/bin/sh", "-c", 'true <"$0"; exec "$@"')
"""The first of a session that opens a terminal has it as its own; then Ctrl-C and /dev/tty work."""


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
        self._popen, self._fd = _start(command, mark)
        self._family = Family(self._popen.pid, mark)
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
        await _exit(self._popen)
        await _within(DRAIN, self._silent)
        for number in (signal.SIGTERM, signal.SIGKILL):  # what it left behind
            self._family.signal(number)
            deadline = time.monotonic() + GRACE
            while self._family.living():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(PAUSE)

    def _bury(self, life: "asyncio.Task[None]") -> None:
        try:
            if life.cancelled() or self.exit_code is None:  # the loop is being closed, or it hangs in the kernel
                self._family.signal(signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    self._popen.wait(GRACE)
            self._fall_silent()
        finally:
            os.close(self._fd)
            self._over.set()

    @property
    def exit_code(self) -> int | None:
        """Of the command itself, once it has ended. A signal is told as a shell does."""
        code: int | None = self._popen.returncode
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


def _start(command: Command, mark: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command; also our end of its pipe or terminal.

    Not through the event loop: uvloop leaves copies of the pipe open in the command, and starting could be cancelled
    halfway.
    """
    ours, theirs = os.openpty() if command.terminal else os.pipe()
    try:
        os.set_blocking(ours, False)
        argv = command.argv
        if command.terminal:
            termios.tcsetwinsize(theirs, TERMINAL_SIZE)
            argv = (*TAKE_TERMINAL, os.ttyname(theirs), *argv)
        popen = subprocess.Popen(  # noqa: S603 running commands is what this is for
            argv,
            stdin=theirs if command.terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=command.cwd,
            env={**command.inherit(), **ENVIRONMENT, **command.env, MARK: mark},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(ours)
        why = error.strerror if isinstance(error, OSError) else error
        raise ToolError(f"cannot run {command.argv[0]!r}: {why}") from error
    finally:
        os.close(theirs)
    return popen, ours


async def _exit(popen: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended, and take its exit code."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        fd = os.pidfd_open(popen.pid)
    except (AttributeError, OSError):  # only Linux has it
        while popen.poll() is None:  # noqa: ASYNC110 nobody would set an event
            await asyncio.sleep(POLL)
        return
    loop.add_reader(fd, ended.set)
    try:
        while popen.poll() is None:
            await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


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
