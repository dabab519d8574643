"""Runs the application: one socket, one process, signals that drain."""

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

import uvicorn

from toolwire.runs.routes import check_backends
from toolwire.runs.settings import Settings, SettingsError, bytes_of, opened_store
from toolwire.service.app import make_app
from toolwire.service.http import PIECE


class GatewayServer(uvicorn.Server):
    """uvicorn, with a line when it is ready, and an end by signal that counts as success."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # What is loaded now stays: the collector need not look at it again, nor look so often.
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 20)
            print(f"toolwire ready on {self._address}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self.handle_exit(number, frame)

        earlier = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
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


def check_own(settings: Settings) -> None:
    """Find out now whether the gateway's own tools are there."""
    if settings.own.tools or settings.own.mcp:
        from toolwire.service.own import OwnTools  # noqa: PLC0415

        try:
            OwnTools(settings, _unheard)
        except SettingsError as error:
            raise SettingsError(f"{settings.file}: {error}" if settings.file else str(error)) from None


def _unheard(server: str, message: str) -> None:
    """Nothing is said before anything is started."""


def _tell(line: str) -> None:
    print(f"toolwire: {line}", file=sys.stderr, flush=True)


def serve(settings: Settings) -> None:
    """Serve until a signal ends it."""
    check_backends(settings)
    check_own(settings)
    sock = listen(settings)
    store = opened_store(settings, _tell)
    print(f"toolwire: configuration: {Path(settings.file).absolute() if settings.file else 'none'}", file=sys.stderr)
    host, port = sock.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    config = uvicorn.Config(
        make_app(settings, store),
        loop="auto",  # uvloop where it can be had
        http="httptools",
        ws="websockets-sansio" if settings.server.websocket else "none",
        ws_max_size=bytes_of(settings.server.max_body),
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.server.drain),
    )
    # uvicorn calls a refused upgrade an unfinished handshake; the client got its answer.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "completing handshake" not in record.getMessage())
    GatewayServer(config, address).run(sockets=[sock])
