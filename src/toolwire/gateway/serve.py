"""Runs the application: in this process, or in several workers; signals drain it."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import FrameType
from typing import cast

import uvicorn

from toolwire.config.masking import version_of
from toolwire.config.settings import AnyStore, Server, Settings, SettingsError, bytes_of, opened_store
from toolwire.gateway.app import Gateway, make_app
from toolwire.gateway.connections import Connections, HttpConnection, SocketConnection
from toolwire.gateway.console.access import console_line
from toolwire.gateway.files import allow_files
from toolwire.gateway.flight import Flight
from toolwire.gateway.process import Process
from toolwire.gateway.stderr import written_aside
from toolwire.gateway.workers.runtime import runtime_bases
from toolwire.gateway.workers.sockets import address_of, listen
from toolwire.memory.owned_folders import remove_orphans
from toolwire.memory.pending_results import PendingResults
from toolwire.turns.routes import check_backends

_ENDING = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))

_NO_NEWS = (
    "completing handshake",  # so it calls a refused upgrade; the client got its answer
    "timeout graceful shutdown exceeded",  # every turn that is cut has a line of its own
)
"""Words in lines of uvicorn that are not written: they say nothing new, and are not JSON."""

CHECKED_EVERY = 0.5
"""Seconds between two looks at all connections."""


class StartFailed(Exception):
    """Workers do not start, and no setting is to blame: another time they may."""


class GatewayServer(uvicorn.Server):
    """uvicorn, with limits for connections, a line when it is ready, and an end by signal that counts as success."""

    def __init__(
        self, config: uvicorn.Config, gateway: Gateway, limits: Server, flight: Flight, process: Process
    ) -> None:
        super().__init__(config)
        self.process = process
        self._gateway = gateway
        self._telling: asyncio.Task[None] | None = None
        self.server_state: Connections = Connections(limits, flight)
        self.tell: Callable[[], Coroutine[None, None, None]] | None = None
        """What is said once it is ready, beside serving."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._check_connections(asyncio.get_running_loop())
            # What is loaded now stays: the collector need not look at it again, nor look so often.
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 20)
            if self.tell is not None:
                self._telling = asyncio.create_task(self.tell())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.process.condition = "draining"
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait((self._telling,))
        if self.process.retired:
            await self._finish_turns(sockets or [])
        self.server_state.drain(is_replaced=False)
        await super().shutdown(sockets)

    async def _finish_turns(self, sockets: list[socket.socket]) -> None:
        """Let all that runs take as long as it needs: others accept what is new. Ends when that is no longer so."""
        state = self.server_state
        state.drain(is_replaced=True)
        for listening in (*self.servers, *sockets):
            listening.close()
        for connection in tuple(state.connections):
            connection.shutdown()
        while self.process.retired and (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(CHECKED_EVERY)

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
            _tell(turns_running(running, self.process.drain))
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


def turns_running(running: int, drain: float) -> str:
    """What whoever ends a gateway with running turns is told."""
    turns = "turn is" if running == 1 else "turns are"
    return f"{running} {turns} still running; waiting up to {drain:g} s. Ctrl-C again ends at once."


def check_gateway_tools(settings: Settings) -> None:
    """Find out now whether the gateway's own tools are there."""
    if settings.gateway_tools.tools or settings.gateway_tools.mcp:
        from toolwire.gateway.tools.tools import GatewayTools  # noqa: PLC0415

        try:
            GatewayTools(settings, _unheard, PendingResults())
        except SettingsError as error:
            raise SettingsError(f"{settings.file}: {error}" if settings.file else str(error)) from None


def _unheard(server: str, message: str) -> None:
    """Nothing is said before anything is started."""


def _tell(line: str) -> None:
    print(f"toolwire: {line}", file=sys.stderr, flush=True)


def check(settings: Settings) -> None:
    """Find out now what would not work, but for the store and the port."""
    check_backends(settings)
    check_gateway_tools(settings)


def serve(
    settings: Settings,
    tell_more: Callable[[int], Coroutine[None, None, None]] | None = None,
    read: Callable[[], Settings] | None = None,
) -> None:
    """Serve until a signal ends it. `tell_more` gets the port once the gateway is ready, and runs beside it; `read`
    reads the settings anew, for workers that are to have others."""
    remove_orphans(*runtime_bases())
    if settings.server.workers > 1:
        from toolwire.gateway.workers.supervisor import supervise  # noqa: PLC0415 - not on Windows

        supervise(settings, tell_more, read or (lambda: settings))
        return
    check(settings)
    allow_files(settings.server.max_connections)
    sock = listen(settings)
    store = opened_store(settings, _tell)
    with written_aside():
        server = make_server(settings, store, Process(version_of(settings), settings.server.drain))
        server.tell = partial(_tell_ready, sock, settings, tell_more)
        server.run(sockets=[sock])


async def _tell_ready(
    sock: socket.socket, settings: Settings, tell_more: Callable[[int], Coroutine[None, None, None]] | None
) -> None:
    print(f"toolwire ready on {address_of(sock)}", file=sys.stderr, flush=True)
    if line := console_line(settings, address_of(sock)):
        print(line, file=sys.stderr, flush=True)
    if tell_more is not None:
        await tell_more(sock.getsockname()[1])


def _is_news(record: logging.LogRecord) -> bool:
    line = record.getMessage()
    return not any(words in line for words in _NO_NEWS)


def make_server(
    settings: Settings, store: AnyStore, process: Process, kind: type[GatewayServer] = GatewayServer
) -> GatewayServer:
    """The gateway, ready to run."""
    flight = Flight(bytes_of(settings.server.max_in_flight))
    gateway = make_app(settings, store, flight, process)
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
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return kind(config, gateway, settings.server, flight, process)
