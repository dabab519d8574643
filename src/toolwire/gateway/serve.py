"""Runs the application: one socket, one process, signals that drain."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn

from toolwire.gateway.app import Gateway, make_app
from toolwire.gateway.connections import Connections, HttpConnection, SocketConnection
from toolwire.gateway.flight import Flight
from toolwire.gateway.http import PIECE
from toolwire.gateway.stderr import written_aside
from toolwire.memory.results import KeptResults
from toolwire.turns.routes import check_backends
from toolwire.turns.settings import Server, Settings, SettingsError, bytes_of, opened_store

_ENDING = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))

CHECKED_EVERY = 0.5
"""Seconds between two looks at all connections."""


class GatewayServer(uvicorn.Server):
    """uvicorn, with limits for connections, a line when it is ready, and an end by signal that counts as success."""

    def __init__(self, config: uvicorn.Config, address: str, gateway: Gateway, limits: Server, flight: Flight) -> None:
        super().__init__(config)
        self._address = address
        self._gateway = gateway
        self._drain = limits.drain
        self.server_state: Connections = Connections(limits, flight)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._check_connections(asyncio.get_running_loop())
            # What is loaded now stays: the collector need not look at it again, nor look so often.
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 20)
            print(f"toolwire ready on {self._address}", file=sys.stderr, flush=True)

    def _check_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        self.server_state.check(loop.time())
        loop.call_later(CHECKED_EVERY, self._check_connections, loop)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let running turns finish; a second signal ends them at once."""
        if self.should_exit:
            self.force_exit = True
            # uvicorn would log that its lifespan was cancelled, with a traceback.
            logging.getLogger("uvicorn.error").disabled = True
        elif running := self._gateway.running:
            turns = "turn is" if running == 1 else "turns are"
            _tell(f"{running} {turns} still running; waiting up to {self._drain:g} s. Ctrl-C again ends at once.")
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self.handle_exit(number, frame)

        # Whoever starts it with SIGHUP ignored, as nohup does, wants it to go on without its terminal.
        numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        earlier = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


def listen(settings: Settings) -> socket.socket:
    """The socket to serve on, or one clear line why not."""
    server = settings.server
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # the system's buffer is no place for what a slow client does not take
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, PIECE)
    try:
        sock.bind((server.host, server.port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SettingsError(f"server.port: cannot listen on {server.host}:{server.port}: {reason}") from None
    return sock


def allow_files(connections: int) -> None:
    """Ask the system for as many open files as all connections need, each with one to a backend."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_gateway_tools(settings: Settings) -> None:
    """Find out now whether the gateway's own tools are there."""
    if settings.gateway_tools.tools or settings.gateway_tools.mcp:
        from toolwire.gateway.tools import GatewayTools  # noqa: PLC0415

        try:
            GatewayTools(settings, _unheard, KeptResults())
        except SettingsError as error:
            raise SettingsError(f"{settings.file}: {error}" if settings.file else str(error)) from None


def _unheard(server: str, message: str) -> None:
    """Nothing is said before anything is started."""


def _tell(line: str) -> None:
    print(f"toolwire: {line}", file=sys.stderr, flush=True)


def serve(settings: Settings) -> None:
    """Serve until a signal ends it."""
    check_backends(settings)
    check_gateway_tools(settings)
    allow_files(settings.server.max_connections)
    sock = listen(settings)
    store = opened_store(settings, _tell)
    print(f"toolwire: configuration: {Path(settings.file).absolute() if settings.file else 'none'}", file=sys.stderr)
    host, port = sock.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    flight = Flight(bytes_of(settings.server.max_in_flight))
    with written_aside():
        gateway = make_app(settings, store, flight)
        config = uvicorn.Config(
            gateway,
            loop="auto",  # uvloop where it can be had
            http=HttpConnection,
            ws=SocketConnection if settings.server.websocket else "none",
            ws_max_size=bytes_of(settings.server.max_body),
            ws_per_message_deflate=False,  # a message would be unpacked in one step, however long it gets
            lifespan="on",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=cast("int", settings.server.idle_timeout),  # given to call_later
            timeout_graceful_shutdown=int(settings.server.drain),
        )
        # uvicorn calls a refused upgrade an unfinished handshake; the client got its answer.
        logging.getLogger("uvicorn.error").addFilter(lambda record: "completing handshake" not in record.getMessage())
        GatewayServer(config, address, gateway, settings.server, flight).run(sockets=[sock])
