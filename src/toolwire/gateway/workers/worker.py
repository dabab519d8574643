"""One worker process: the gateway, which sends heartbeats to its supervisor and obeys it."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from toolwire.config.settings import Settings, SettingsError, bytes_of
from toolwire.config.stores import AnyStore, make_store, prepare_store
from toolwire.gateway.metrics import Metrics, SharedFiles
from toolwire.gateway.nonblocking_stderr import write_stderr_in_thread
from toolwire.gateway.peers import Peers, PeerServer
from toolwire.gateway.process import Colleagues, Process, allow_files, new_event_loop
from toolwire.gateway.serve import GatewayServer, StartFailed, check, print_line
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
from toolwire.protocols import backend_kinds


class Generation(msgspec.Struct, frozen=True, eq=False):
    """The settings of the start or of one reload."""

    settings: Settings
    version: str
    number: int

    def make_codex_path(self, folder: Path) -> str:
        """The path of the socket of the process that hosts Codex; empty without a backend of that kind."""
        has_codex = any(backend_kinds()[backend.kind].is_hosted for backend in self.settings.backends)
        return str(folder / f"codex{self.number}") if has_codex else ""


class WorkerPlan(msgspec.Struct, frozen=True):
    """What a worker is started with."""

    generation: Generation
    slot: int
    seat: str
    """The id of its metrics files (`SharedFiles`)."""
    incarnation: str
    """Its name among the workers, new for each process."""
    folder: Path
    """The runtime directory."""
    started: bool
    """Whether all workers have been ready already."""


def divide_limits(settings: Settings, slot: int) -> Settings:
    """The settings of the worker with this number: its share of the limits of the machine, at least one of each.

    `max_in_flight` has room for one body with its reply: otherwise an allowed request could never be answered.
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
        self, settings: Settings, store: AnyStore, process: Process, colleagues: Colleagues, channel: Channel
    ) -> None:
        super().__init__(settings, store, process)
        self._colleagues = colleagues
        self._channel = channel
        self.is_orphaned = False
        """Whether the supervisor is gone."""

    async def serve(self, listening: socket.socket) -> None:
        """Serve. Raises `SettingsError` or `StartFailed` if the gateway does not open."""
        await self._colleagues.server.start()
        talking = asyncio.create_task(self._channel.run(self._obey))
        try:
            await super().serve(listening)
        except SettingsError:
            raise
        except Exception as error:
            if self.started:
                raise
            raise StartFailed(f"{type(error).__name__}: {error}") from error
        finally:
            talking.cancel()
            await self._colleagues.server.stop()

    async def start(self) -> None:
        await super().start()
        if not self._colleagues.fleet.started:
            self.process.condition = "starting"
        await self._channel.send(Ready())

    async def drain(self, server: asyncio.Server) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(SEND_TIMEOUT):
                await self._channel.send(Draining())
        await super().drain(server)

    def _obey(self, message: FromSupervisor | None) -> None:
        if isinstance(message, Fleet):
            self._colleagues.fleet = message
            if message.started and self.process.condition == "starting" and self.started:
                self.process.condition = "ready"
            return
        self.process.retired = isinstance(message, Retire) and not self.is_stopping
        if message is None:
            self.is_orphaned = True  # without a supervisor it would be neither replaced nor ended
        self.stop(at_once=isinstance(message, End))

    def handle_exit(self) -> None:
        """Let running turns finish. Only the supervisor cuts them short: systemd signals all processes."""
        self.process.retired = False
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self, loop: asyncio.AbstractEventLoop) -> Generator[None, None, None]:
        loop.add_signal_handler(signal.SIGTERM, self.handle_exit)
        yield


def run_worker(plan: WorkerPlan, listening: socket.socket, sock: socket.socket) -> int:
    """Serve until the supervisor orders the end; returns the exit code. `sock` leads to the supervisor."""
    whole = plan.generation.settings
    settings = divide_limits(whole, plan.slot)
    allow_files(whole.server.max_connections)

    async def serve() -> bool:
        """Serve; returns whether the supervisor is gone."""
        metrics = Metrics(SharedFiles(plan.folder / METRICS), plan.seat)
        colleagues = Colleagues(
            plan.slot,
            Peers(plan.folder, plan.incarnation),
            PeerServer(plan.folder, plan.incarnation),
            plan.generation.make_codex_path(plan.folder),
            Fleet(settings.server.workers, 0, plan.started),
        )
        process = Process(plan.generation.version, metrics, colleagues)
        store = make_store(settings)  # opened by this event loop: a database may be slow, and heartbeats are due
        channel = await Channel.open(sock, metrics.refresh)
        server = WorkerServer(settings, store, process, colleagues, channel)
        await server.serve(listening)
        return server.is_orphaned

    with write_stderr_in_thread(plan.folder / LOCK):
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                is_orphaned = runner.run(serve())
        except (SettingsError, StartFailed, OSError) as error:
            return _fail(sock, Failed(str(error), is_lasting=isinstance(error, SettingsError)))
    if is_orphaned:
        leave_runtime_folder(plan.folder, is_last=False)
    return 0


def check_settings(settings: Settings, sock: socket.socket) -> int:
    """Check whether workers could serve with these settings, in a process of its own; returns the exit code."""
    try:
        check(settings)
        prepare_store(settings, print_line)
    except SettingsError as error:
        return _fail(sock, Failed(str(error), is_lasting=True))
    sock.sendall(encode_line(Ready()))
    return 0


def _fail(sock: socket.socket, failed: Failed) -> int:
    sock.setblocking(True)
    with contextlib.suppress(OSError):
        sock.sendall(encode_line(failed))
    return 2
