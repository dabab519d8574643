"""Runs the application: in this process, or in several workers; signals drain it."""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import TypeAlias

from toolwire.config.display import hash_settings
from toolwire.config.settings import Settings, SettingsError, bytes_of
from toolwire.config.stores import AnyStore, prepare_store
from toolwire.gateway.app import Gateway
from toolwire.gateway.connections import Connections, HttpConnection
from toolwire.gateway.console.access import make_console_line
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.nonblocking_stderr import write_stderr_in_thread
from toolwire.gateway.process import Process, allow_files, new_event_loop
from toolwire.gateway.workers.sockets import BACKLOG, address_of, list_runtime_bases, listen
from toolwire.memory.owned_folders import remove_orphans
from toolwire.memory.pending_results import PendingResults
from toolwire.turns.backends import check_backends, find_obstacles

_ENDING = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))

CHECK_INTERVAL = 0.5
"""Seconds between two checks of all connections."""
DRAIN_INTERVAL = 0.1
"""Seconds between two looks at what a drain waits for."""
CANCEL_TIMEOUT = 2.0
"""Seconds for which cancelled requests may end their answers."""

Announce: TypeAlias = Callable[[int], Coroutine[None, None, None]]
"""Runs beside the gateway once it is ready, with its port."""


class StartFailed(Exception):
    """Workers failed to start for a reason outside the settings: a later start may succeed."""


class _EndedAtOnce(Exception):
    """Running turns are not waited for."""


class GatewayServer:
    """Serves the gateway on a listening socket until a signal or `stop` ends it."""

    def __init__(
        self,
        settings: Settings,
        store: AnyStore,
        process: Process,
        announce: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`announce` runs beside the server once it is ready."""
        server, budget = settings.server, MemoryBudget(bytes_of(settings.server.max_in_flight))
        self._gateway = Gateway(settings, store, budget, process)
        self.connections = Connections(self._gateway, server, budget)
        self.process = process
        self.started = False
        self.is_stopping = False
        self._is_ending_at_once = False
        self._stopped = asyncio.Event()
        self._drain = server.drain
        self._announce = announce

    async def serve(self, listening: socket.socket) -> None:
        """Serve. Raises what keeps the gateway from opening, among it `SettingsError`."""
        loop = asyncio.get_running_loop()
        with self.capture_signals(loop), contextlib.suppress(_EndedAtOnce):
            async with self._gateway.lifespan():
                server = await loop.create_server(
                    lambda: HttpConnection(self.connections), sock=listening, backlog=BACKLOG
                )
                self._check_connections(loop)
                await self.start()
                announcing = loop.create_task(self._announce()) if self._announce is not None else None
                await self._stopped.wait()
                if announcing is not None:
                    announcing.cancel()
                    await asyncio.wait((announcing,))
                await self.drain(server)
                if self._is_ending_at_once:
                    raise _EndedAtOnce

    async def start(self) -> None:
        """Called once connections are accepted."""
        self.started = True
        # Objects that exist by now stay, so the collector skips them, and runs less often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)

    def stop(self, *, at_once: bool = False) -> None:
        """Accept no further connections and let running turns finish; `at_once` does not wait for them."""
        self.is_stopping = True
        self._is_ending_at_once = self._is_ending_at_once or at_once
        self._stopped.set()

    async def drain(self, server: asyncio.Server) -> None:
        """Answer the requests that have arrived, and close all connections."""
        self.process.condition = "draining"
        state = self.connections
        server.close()
        if self.process.retired:
            # Another worker accepts connections, so running turns have no time limit.
            state.drain(is_replaced=True)
            while self.process.retired and self._is_busy:  # noqa: ASYNC110
                await asyncio.sleep(CHECK_INTERVAL)
        state.drain(is_replaced=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain):
                while self._is_busy:  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_INTERVAL)
        if state.tasks:
            for task in state.tasks:
                task.cancel()
            await asyncio.wait(state.tasks, timeout=CANCEL_TIMEOUT)

    @property
    def _is_busy(self) -> bool:
        """Whether there are connections or requests to wait for."""
        return bool(self.connections.open or self.connections.tasks) and not self._is_ending_at_once

    def _check_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(CHECK_INTERVAL, self._check_connections, loop)
        self.connections.check(loop.time())

    def handle_exit(self) -> None:
        """Let running turns finish after a signal; a second one ends them at once."""
        if not self.is_stopping and (running := self.process.metrics.running):
            print_line(describe_drain(running, self._drain))
        self.stop(at_once=self.is_stopping)

    @contextlib.contextmanager
    def capture_signals(self, loop: asyncio.AbstractEventLoop) -> Generator[None, None, None]:
        """Obey the signals that end a process."""

        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.handle_exit)

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
    """Check everything but the store and the port: backends, and that gateway tools load. Raises `SettingsError`.

    Backends that are unavailable are printed, unless a terminal shows them when the gateway is ready.
    """
    check_backends(settings)
    if not sys.stderr.isatty():
        for name, obstacle in find_obstacles(settings).items():
            print_line(f"backend {name} is unavailable: {obstacle}")
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
    remove_orphans(*list_runtime_bases())
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
        server = GatewayServer(settings, store, Process(hash_settings(settings)), announce_ready)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(server.serve(sock))
