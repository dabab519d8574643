"""One worker process: the gateway, with heartbeats for its supervisor, which orders its end."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn
from msgspec.structs import replace

from toolwire.config.settings import Server, Settings, SettingsError, bytes_of
from toolwire.config.stores import make_store, prepare_store
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.metrics import Metrics, SharedFiles
from toolwire.gateway.nonblocking_stderr import write_stderr_in_thread
from toolwire.gateway.peers import Peers, PeerServer, socket_path
from toolwire.gateway.process import Colleagues, Process, allow_files
from toolwire.gateway.serve import GatewayServer, check, make_server
from toolwire.gateway.workers.channel import SEND_TIMEOUT, Channel
from toolwire.gateway.workers.messages import (
    Draining,
    End,
    Failed,
    Fleet,
    FromSupervisor,
    Ready,
    Retire,
    encode_line,
)
from toolwire.gateway.workers.sockets import LOCK, METRICS, leave_runtime_folder


class WorkerPlan(msgspec.Struct, frozen=True):
    """What a worker is started with."""

    settings: Settings
    version: str
    """Of the settings."""
    slot: int
    seat: str
    """Which metrics files are its own."""
    incarnation: str
    """Its name among the workers, new for each process."""
    folder: Path
    """The runtime directory."""
    sock: socket.socket
    codex_socket: str
    """The socket of the process that hosts Codex; empty without a backend of that kind."""
    started: bool
    """Whether all workers have been ready already."""

    @property
    def peer_socket(self) -> str:
        """The path of the socket that other workers reach it by."""
        return socket_path(self.folder, self.incarnation)


def divide_limits(settings: Settings, slot: int) -> Settings:
    """The settings of the worker with this number: limits of the machine are its share of them, and at least one.

    Bytes in flight are at least those of one body with its reply, or a request that is allowed could never be answered.
    """
    server, console = settings.server, settings.console

    def share(total: int) -> int:
        return max(1, total // server.workers + (slot < total % server.workers))

    total = bytes_of(server.max_in_flight)
    least = min(total, bytes_of(server.max_body) + bytes_of(server.max_reply))
    return replace(
        settings,
        server=replace(server, max_in_flight=max(share(total), least), max_connections=share(server.max_connections)),
        console=replace(console, max_size=share(bytes_of(console.max_size))),
    )


class WorkerServer(GatewayServer):
    """The gateway in a worker."""

    def __init__(
        self,
        config: uvicorn.Config,
        limits: Server,
        flight: MemoryBudget,
        process: Process,
        *,
        channel: Channel,
        colleagues: Colleagues,
        startup_errors: "StartupErrors",
    ) -> None:
        super().__init__(config, limits, flight, process)
        self._channel = channel
        self._colleagues = colleagues
        self._startup_errors = startup_errors
        self.is_orphaned = False
        """Whether the supervisor is gone."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._colleagues.server.start()
        self._channel.open(self._obey)
        with self._startup_errors.caught():
            await super().startup(sockets)
        if self.started:
            if not self._colleagues.fleet.started:
                self.process.condition = "starting"
            await self._channel.send(Ready())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(SEND_TIMEOUT):
                await self._channel.send(Draining())
        await super().shutdown(sockets)
        await self._colleagues.server.stop()
        await self._channel.close()

    def _obey(self, message: FromSupervisor | None) -> None:
        if isinstance(message, Fleet):
            self._colleagues.fleet = message
            if message.started and self.process.condition == "starting" and self.started:
                self.process.condition = "ready"
            return
        self.process.retired = isinstance(message, Retire) and not self.should_exit
        self.should_exit = True
        if message is None:
            self.is_orphaned = True  # without a supervisor it would be neither replaced nor ended
        if isinstance(message, End):
            self.force_exit = True
            # uvicorn would log that its lifespan was cancelled, with a traceback.
            logging.getLogger("uvicorn.error").disabled = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let running turns finish. Only the supervisor ends them: systemd signals all processes at once."""
        self.process.retired = False
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        signal.signal(signal.SIGTERM, self.handle_exit)
        yield


def run_worker(plan: WorkerPlan, sock: socket.socket) -> int:
    """Serve until the supervisor orders the end; returns the exit code."""
    settings = divide_limits(plan.settings, plan.slot)
    allow_files(plan.settings.server.max_connections)
    errors = StartupErrors()
    with write_stderr_in_thread(plan.folder / LOCK):
        try:
            store = make_store(settings)  # opened by its event loop: a database may be slow, and heartbeats are due
            metrics = Metrics(SharedFiles(plan.folder / METRICS), plan.seat)
            fleet = Fleet(settings.server.workers, 0, plan.started)
            peers, peer_server = Peers(plan.folder, plan.incarnation), PeerServer(plan.folder, plan.incarnation)
            colleagues = Colleagues(plan.slot, peers, peer_server, plan.codex_socket, fleet)
            process = Process(plan.version, settings.server.drain, metrics, colleagues)
            channel = Channel(sock, metrics.refresh)
            make = partial(WorkerServer, channel=channel, colleagues=colleagues, startup_errors=errors)
            server = make_server(settings, store, process, make)
            server.run(sockets=[plan.sock])
        except (SettingsError, OSError) as error:
            return _fail(sock, Failed(str(error), is_lasting=isinstance(error, SettingsError)))
        except SystemExit:  # uvicorn exits when it cannot start
            return _fail(sock, Failed(errors.last or "it does not start", errors.are_settings))
    if server.is_orphaned:
        leave_runtime_folder(plan.folder, is_last=False)
    return 0


def check_settings(settings: Settings, sock: socket.socket) -> int:
    """Check whether workers could serve with these settings, in a process of its own."""
    try:
        check(settings)
        prepare_store(settings, _print)
    except SettingsError as error:
        return _fail(sock, Failed(str(error), is_lasting=True))
    sock.sendall(encode_line(Ready()))
    return 0


def _fail(sock: socket.socket, failed: Failed) -> int:
    sock.setblocking(True)
    with contextlib.suppress(OSError):
        sock.sendall(encode_line(failed))
    return 2


class StartupErrors(logging.Handler):
    """Why uvicorn cannot start: the last line that it would log, which is an exception with its traceback."""

    last = ""
    are_settings = False
    """Whether the exception is about settings."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = [line.strip() for line in record.getMessage().splitlines() if line.strip()]
        if lines and not self.last:
            name = f"{SettingsError.__module__}.{SettingsError.__name__}: "
            self.are_settings = lines[-1].startswith(name)
            self.last = lines[-1].removeprefix(name)

    @contextlib.contextmanager
    def caught(self) -> Generator[None]:
        logger = logging.getLogger("uvicorn.error")
        logger.addHandler(self)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = True


def _print(line: str) -> None:
    print(f"toolwire: {line}", file=sys.stderr, flush=True)
