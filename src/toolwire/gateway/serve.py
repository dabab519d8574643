"""Runs the application: in this process, or in several workers; signals drain it."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import TypeAlias, cast

import uvicorn

from toolwire.config.display import hash_settings
from toolwire.config.settings import Settings, SettingsError, bytes_of
from toolwire.config.stores import AnyStore, prepare_store
from toolwire.gateway.app import Gateway
from toolwire.gateway.connections import Connections, HttpConnection
from toolwire.gateway.console.access import make_console_line
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.nonblocking_stderr import write_stderr_in_thread
from toolwire.gateway.process import Process, allow_files
from toolwire.gateway.websocket import SocketConnection
from toolwire.gateway.workers.sockets import address_of, listen, runtime_bases
from toolwire.memory.owned_folders import remove_orphans
from toolwire.memory.pending_results import PendingResults
from toolwire.turns.backends import check_backends

_ENDING = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))

_SILENCED = (
    "completing handshake",  # a refused upgrade; the client has its answer
    "timeout graceful shutdown exceeded",  # every interrupted turn has a log line of its own
)
"""Log lines of uvicorn with these words are dropped: they are redundant, and not JSON."""

CHECK_INTERVAL = 0.5
"""Seconds between two checks of all connections."""

Announce: TypeAlias = Callable[[int], Coroutine[None, None, None]]
"""Runs beside the gateway once it is ready, with its port."""


class StartFailed(Exception):
    """Workers failed to start for a reason outside the settings: a later start may succeed."""


class GatewayServer(uvicorn.Server):
    """uvicorn with connection limits, a line when it is ready, and exit code 0 after a signal."""

    def __init__(
        self,
        settings: Settings,
        store: AnyStore,
        process: Process,
        announce: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`announce` runs beside the server once it is ready."""
        server, budget = settings.server, MemoryBudget(bytes_of(settings.server.max_in_flight))
        config = uvicorn.Config(
            Gateway(settings, store, budget, process),
            loop="auto",  # uvloop if it is installed
            http=HttpConnection,
            ws=SocketConnection if server.websocket else "none",
            ws_max_size=bytes_of(server.max_body),
            ws_per_message_deflate=False,  # a message would be decompressed in one step, whatever its size
            lifespan="on",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=cast("int", server.idle_timeout),  # given to call_later
            timeout_graceful_shutdown=int(server.drain),
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(
            lambda record: not any(words in record.getMessage() for words in _SILENCED)
        )
        self.server_state: Connections = Connections(server, budget)
        self.process = process
        self._drain = server.drain
        self._announce = announce
        self._announcing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._check_connections(asyncio.get_running_loop())
            # Objects that exist by now stay, so the collector skips them, and runs less often.
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 20)
            if self._announce is not None:
                self._announcing = asyncio.create_task(self._announce())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.process.condition = "draining"
        if self._announcing is not None:
            self._announcing.cancel()
            await asyncio.wait((self._announcing,))
        state = self.server_state
        if self.process.retired:
            # Another worker accepts connections, so running turns have no time limit.
            state.drain(is_replaced=True)
            for listening in (*self.servers, *(sockets or ())):
                listening.close()
            for connection in tuple(state.connections):
                connection.shutdown()
            while self.process.retired and (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110
                await asyncio.sleep(CHECK_INTERVAL)
        state.drain(is_replaced=False)
        await super().shutdown(sockets)

    def _check_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        self.server_state.check(loop.time())
        loop.call_later(CHECK_INTERVAL, self._check_connections, loop)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let running turns finish; a second signal ends them at once."""
        if self.should_exit:
            self.end_at_once()
        elif running := self.process.metrics.running:
            print_line(describe_drain(running, self._drain))
        self.should_exit = True

    def end_at_once(self) -> None:
        """Do not wait for running turns any longer."""
        self.force_exit = True
        # uvicorn would log that its lifespan was cancelled, with a traceback.
        logging.getLogger("uvicorn.error").disabled = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self.handle_exit(number, frame)

        # If SIGHUP was ignored at the start, as under nohup, the gateway survives its terminal.
        numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        earlier = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


def describe_drain(running: int, drain: float) -> str:
    """The line that is printed when a gateway with running turns is told to end."""
    turns = "turn is" if running == 1 else "turns are"
    return f"{running} {turns} still running; waiting up to {drain:g} s. Ctrl-C again ends at once."


def check(settings: Settings) -> None:
    """Check everything but the store and the port: backends, and that gateway tools load. Raises `SettingsError`."""
    check_backends(settings)
    if settings.gateway_tools.tools or settings.gateway_tools.mcp:
        from toolwire.gateway.tools.tools import GatewayTools  # noqa: PLC0415

        try:
            GatewayTools(settings, PendingResults())
        except SettingsError as error:
            raise SettingsError(f"{settings.file}: {error}" if settings.file else str(error)) from None


def print_line(line: str) -> None:
    print(f"toolwire: {line}", file=sys.stderr, flush=True)


def serve(settings: Settings, announce: Announce | None = None, read: Callable[[], Settings] | None = None) -> None:
    """Serve until a signal ends it. `announce` runs once the gateway is ready, with its port; `read` reads the settings
    again, for a reload of workers. Raises `SettingsError`, and with several workers `StartFailed`."""
    remove_orphans(*runtime_bases())
    if settings.server.workers > 1:
        from toolwire.gateway.workers.supervisor import supervise  # noqa: PLC0415 - not on Windows

        supervise(settings, announce, read or (lambda: settings))
        return
    check(settings)
    allow_files(settings.server.max_connections)
    sock = listen(settings)
    store = prepare_store(settings, print_line)

    async def announce_ready() -> None:
        print(f"toolwire ready on {address_of(sock)}", file=sys.stderr, flush=True)
        if line := make_console_line(settings, address_of(sock)):
            print(line, file=sys.stderr, flush=True)
        if announce is not None:
            await announce(sock.getsockname()[1])

    with write_stderr_in_thread():
        GatewayServer(settings, store, Process(hash_settings(settings)), announce_ready).run(sockets=[sock])
