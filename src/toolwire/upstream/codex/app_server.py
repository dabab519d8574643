"""One `codex app-server` process: its start, its pipes and its end.

Its output is one stream for all threads. Every line goes to the thread that it names, or to the sender of the request
that it answers. `backends/codex` alone knows what lines mean.
"""

import asyncio
import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, cast

import msgspec

from toolwire.backends.codex import protocol
from toolwire.backends.codex.protocol import Envelope
from toolwire.core import jsonrpc
from toolwire.core.backend import Ask
from toolwire.core.display import clean
from toolwire.core.errors import BackendFault, Failure
from toolwire.core.jsonrpc import Id, LineReader
from toolwire.core.redact import BlankCredentials, find_filter
from toolwire.memory.owned_folders import PREFIX, OwnedFolder, remove_orphans
from toolwire.upstream.reply import Broken, make_broken

START_TIMEOUT = 20.0
"""Seconds within which a process must start and answer `initialize`."""
DRAIN_TIME = 0.2
"""Seconds for which output is read after the process has ended; a child process may hold the pipe open."""
STOP_TIMEOUT = 2.0
"""Seconds within which it must end; then it is killed."""
ANSWER_TIMEOUT = 30.0
"""Seconds after which a process that does not answer counts as hung."""
MAX_PENDING_REQUESTS = 64
"""Maximum concurrent requests: with many more, app-server loses answers."""
MAX_STDERR_BYTES = 8192
UNUSABLE = "backend_unusable"
"""The failure code of an app-server that does not start; a later start may succeed."""


class Listener(Protocol):
    """Receives the lines of a thread, or the answers to requests."""

    def receive(self, envelope: Envelope, line: bytes) -> None: ...

    def lose(self, fault: BackendFault) -> None:
        """The app-server is gone."""
        ...


class AppServerSpec(msgspec.Struct, frozen=True):
    """The command, environment and files of an app-server."""

    command: tuple[str, ...]
    environment: Callable[[], Mapping[str, str]]
    """Returns the variables that it inherits."""
    files: Callable[[str, Sequence[str]], Mapping[str, bytes]]
    """Returns the files of its home directory, given the path of that directory and the models."""
    links: Mapping[str, str]
    """Links to files of the user's own home."""
    version: str
    """Our own version, for the handshake."""
    credentials: Callable[[], tuple[str, ...]] = tuple
    """Returns its credentials, which are blanked in its output."""


class AppServer(asyncio.SubprocessProtocol):
    """A process and its pipe."""

    def __init__(self, spec: AppServerSpec, models: frozenset[str], exited: "Callable[[AppServer], None]") -> None:
        self.models = models
        self.turns = 0
        self.started = 0  # number of threads so far
        self.is_ready = False
        self.is_retiring = False
        self.threads: dict[str, Listener] = {}
        self.make_limit_headers: Mapping[str, str] = {}  # the rate limits of its account
        self._spec = spec
        self._exited = exited
        self._folder: OwnedFolder | None = None
        self._reader = LineReader()
        self._blanks = find_filter(spec.credentials())
        self._blank = BlankCredentials(self._blanks)
        self._channels: dict[str, Listener] = {}
        self._pending: dict[Id, asyncio.TimerHandle] = {}
        self._queue: deque[tuple[Id, bytes]] = deque()
        self._next_channel = 0
        self._stderr = b""
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._gone = asyncio.get_running_loop().create_future()

    # A process's life

    async def start(self) -> None:
        """Start and initialize it. Raises `Broken`."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(remove_orphans, tempfile.gettempdir())
        self._folder = OwnedFolder(f"{PREFIX}codex-{os.getpid()}-")
        home = str(self._folder.path)
        try:
            for name, content in self._spec.files(home, sorted(self.models)).items():
                (self._folder.path / name).write_bytes(content)
            for name, target in self._spec.links.items():
                (self._folder.path / name).symlink_to(target)
            await loop.subprocess_exec(
                lambda: self,
                *self._spec.command,
                cwd=home,
                env={**self._spec.environment(), "CODEX_HOME": home},
                start_new_session=True,  # Ctrl-C is for the gateway, which drains
            )
            async with asyncio.timeout(START_TIMEOUT):
                await self._initialize()
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise _make_unusable("it does not answer") from error
            if isinstance(error, OSError):
                raise _make_unusable(f"{self._spec.command[0]!r} cannot be started: {error.strerror}") from error
            raise
        self.is_ready = not self._gone.done()
        if not self.is_ready:
            raise self._make_end_fault()

    async def _initialize(self) -> None:
        greeting = _Answer()
        self.ask(self.open_channel(greeting), protocol.initialize(self._spec.version))
        if fault := protocol.find_fault(await greeting.received):
            raise _make_unusable(fault)
        self.write(protocol.INITIALIZED)

    async def stop(self) -> None:
        """End the process and remove its home."""
        self.is_ready = False
        transport = self._transport
        if transport is not None:
            if self._stdin is not None:
                self._stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._gone), STOP_TIMEOUT)
            if not self._gone.done():
                self.kill()
                await self._gone
            transport.close()
        if self._folder is not None:
            self._folder.remove()

    def kill(self) -> None:
        """Kill it with its child processes."""
        transport = self._transport
        if transport is not None and not self._gone.done():
            with suppress(OSError):
                os.killpg(transport.get_pid(), signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    def process_exited(self) -> None:
        asyncio.get_running_loop().call_later(DRAIN_TIME, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        """End everything that depends on the process, after all of its output was read."""
        if self._gone.done():
            return
        self._gone.set_result(None)
        fault = self._make_end_fault()
        self.is_ready = False
        for timer in self._pending.values():
            timer.cancel()
        self._pending.clear()
        listeners = {id(each): each for each in (*self._channels.values(), *self.threads.values())}
        self._channels.clear()
        self.threads.clear()
        for listener in listeners.values():
            listener.lose(fault)
        self._exited(self)

    def _make_end_fault(self) -> BackendFault:
        if self.is_ready:
            return make_broken("backend_broke_off", "The worker ended in the middle of the turn.")
        output = clean(self._blanks.clean(self._stderr).decode("utf-8", "replace")).strip().splitlines()
        return _make_unusable(f"it ended at once: {output[-1]}" if output else "it ended at once")

    # Its input

    def open_channel(self, listener: Listener) -> str:
        """Return a prefix for the ids of requests whose answers go to the listener."""
        self._next_channel += 1
        channel = str(self._next_channel)
        self._channels[channel] = listener
        return channel

    def close_channel(self, channel: str) -> None:
        self._channels.pop(channel, None)

    def ask(self, channel: str, ask: Ask) -> None:
        id = f"{channel}.{ask.name}"
        line = jsonrpc.write_request(id, ask.method, ask.params)
        if len(self._pending) >= MAX_PENDING_REQUESTS:
            self._queue.append((id, line))
        else:
            self._send(id, line)

    def _send(self, id: Id, line: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._pending[id] = loop.call_later(ANSWER_TIMEOUT, self.kill)
        self.write(line)

    def write(self, line: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(line)

    # Its output

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd != 1:
            self._stderr = (self._stderr + data)[-MAX_STDERR_BYTES:]
            return
        try:
            frames = self._reader.feed(self._blank.feed(data))
        except BackendFault:
            self.kill()
            return
        for frame in frames:
            self._route(frame.data)

    def _route(self, line: bytes) -> None:
        envelope = protocol.read(line)
        listener = self.threads.get(envelope.thread) if not envelope.is_answer else None
        if envelope.is_answer and envelope.id in self._pending:  # otherwise it is unexpected or repeated
            self._pending.pop(envelope.id).cancel()
            if self._queue:
                self._send(*self._queue.popleft())
            listener = self._channels.get(str(envelope.id).partition(".")[0])
        if listener is not None:
            listener.receive(envelope, line)
            return
        if refusal := envelope.refusal:
            self.write(refusal)
        if envelope.holds_limits:
            # A notification without limits changes nothing.
            self.make_limit_headers = protocol.make_limit_headers(line) or self.make_limit_headers
        elif unassigned := envelope.unassigned:
            for thread in tuple(self.threads.values()):
                thread.receive(protocol.read(unassigned), unassigned.rstrip())


class _Answer:
    """Waits for one answer."""

    def __init__(self) -> None:
        self.received: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()

    def receive(self, envelope: Envelope, line: bytes) -> None:
        if not self.received.done():
            self.received.set_result(envelope)

    def lose(self, fault: BackendFault) -> None:
        if not self.received.done():
            self.received.set_exception(fault)


def _make_unusable(why: str) -> Broken:
    return Broken(Failure(503, UNUSABLE, f"Codex cannot be used: {why}.", retryable=True))
