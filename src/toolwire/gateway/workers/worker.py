"""One worker process: the gateway, with a supervisor that hears that it lives and says when it is to end."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import msgspec

from toolwire.config.settings import Settings, SettingsError, make_store, opened_store
from toolwire.gateway.files import allow_files
from toolwire.gateway.peers import new_incarnation
from toolwire.gateway.process import Process
from toolwire.gateway.serve import GatewayServer, check, make_server
from toolwire.gateway.stderr import written_aside
from toolwire.gateway.workers.limits import divided
from toolwire.gateway.workers.link import PATIENCE, Link
from toolwire.gateway.workers.messages import (
    Drain,
    Draining,
    End,
    Failed,
    Fleet,
    FromSupervisor,
    Ready,
    Retire,
    line_of,
)
from toolwire.gateway.workers.runtime import LOCK, leave_runtime_folder


class Plan(msgspec.Struct, frozen=True):
    """What a worker is to be."""

    settings: Settings
    version: str
    """Of the settings."""
    slot: int
    folder: Path
    """Where the sockets of workers are."""
    sock: socket.socket
    started: bool
    """Whether all workers have been ready already."""


class WorkerServer(GatewayServer):
    """The gateway in a worker."""

    link: Link
    reasons: "Reasons"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.link.metrics = self.process.metrics
        await self.link.open(self._hear)
        with self.reasons.heard():
            await super().startup(sockets)
        if self.started:
            if not self.link.has_started:
                self.process.condition = "starting"
            await self.link.send(Ready())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(PATIENCE):
                await self.link.send(Draining())
        await super().shutdown(sockets)
        await self.link.close()

    def _hear(self, message: FromSupervisor | None) -> None:
        match message:
            case Fleet(started=True) if self.process.condition == "starting" and self.started:
                self.process.condition = "ready"
            case Retire():
                self.process.retired = not self.should_exit
                self.should_exit = True
            case Drain() | None:  # without a supervisor nobody would replace it, and nobody would end it
                self.process.retired = False
                self.should_exit = True
            case End():
                self.process.retired = False
                self.should_exit = self.force_exit = True
                # uvicorn would log that its lifespan was cancelled, with a traceback.
                logging.getLogger("uvicorn.error").disabled = True
            case _:
                pass

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let running turns finish. Only the supervisor ends them: systemd, say, tells all processes at once."""
        self.process.retired = False
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        signal.signal(signal.SIGTERM, self.handle_exit)
        yield


def run_worker(plan: Plan, channel: socket.socket) -> int:
    """Serve until told to end; returns the exit code."""
    settings = divided(plan.settings, plan.slot)
    allow_files(plan.settings.server.max_connections)
    reasons = Reasons()
    with written_aside(plan.folder / LOCK):
        try:
            store = make_store(settings)  # its loop opens it: a database may be slow, and the supervisor wants to hear
            fleet = Fleet(settings.server.workers, 0, plan.started)
            link = Link(channel, plan.slot, plan.folder, new_incarnation(), fleet)
            process = Process(plan.version, settings.server.drain, link)
            server = make_server(settings, store, process, WorkerServer)
            assert isinstance(server, WorkerServer)
            server.link, server.reasons = link, reasons
            server.run(sockets=[plan.sock])
        except SettingsError as error:
            return _fail(channel, Failed(str(error), is_lasting=True))
        except SystemExit:  # uvicorn's way to say that it cannot start
            return _fail(channel, Failed(reasons.last or "it does not start", reasons.are_settings))
        finally:
            leave_runtime_folder(plan.folder, to_others=True)
    return 0


def check_settings(settings: Settings, channel: socket.socket) -> int:
    """Find out whether workers could serve with these settings, in a process that leaves nothing behind."""
    try:
        check(settings)
        opened_store(settings, _tell)
    except SettingsError as error:
        return _fail(channel, Failed(str(error), is_lasting=True))
    channel.sendall(line_of(Ready()))
    return 0


def _fail(channel: socket.socket, failed: Failed) -> int:
    channel.setblocking(True)
    with contextlib.suppress(OSError):
        channel.sendall(line_of(failed))
    return 2


class Reasons(logging.Handler):
    """Why uvicorn cannot start: the last line of what it would write, which is an exception with its traceback."""

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
    def heard(self) -> Generator[None]:
        logger = logging.getLogger("uvicorn.error")
        logger.addHandler(self)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = True


def _tell(line: str) -> None:
    print(f"toolwire: {line}", file=sys.stderr, flush=True)
