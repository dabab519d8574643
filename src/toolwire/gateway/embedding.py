"""The gateway inside another application.

    gateway = create_app(Settings.from_file("toolwire.toml"))
    app = FastAPI(lifespan=gateway.lifespan)
    app.mount("/llm", gateway)

A mounted application gets no lifespan events, so the outer application enters `lifespan` itself; otherwise the gateway
starts with its first request. One task, independent of any request, owns all that the gateway holds. It ends with
`aclose`, with the lifespan, or when the event loop cancels its tasks.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any, cast

from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from toolwire.config.settings import Settings
from toolwire.config.stores import prepare_store
from toolwire.gateway.app import Gateway
from toolwire.turns.backends import check_backends


class GatewayApp:
    """The gateway as an ASGI application that can be mounted under any prefix."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: _Running | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or the lifespan events of a server that serves this application alone."""
        if scope["type"] == "lifespan":
            return await Router(lifespan=self.lifespan).lifespan(scope, receive, send)
        gateway = await self._start()
        return await gateway(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncGenerator[None]:
        """Start the gateway and, at the end, let its turns finish and close it. Raises `SettingsError`."""
        await self._start()
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Let running turns finish and close the gateway. A later request starts it again."""
        running, self._running = self._running, None
        if running is not None and running.is_here:
            running.stop.set()
            await asyncio.shield(running.task)

    async def _start(self) -> Gateway:
        """Start the gateway unless it runs on this event loop; returns it when it is ready."""
        running = self._running
        if running is None or not running.is_here:
            running = self._running = _Running(self._settings)
        try:
            return await asyncio.shield(running.ready)  # a cancelled request does not cancel the start
        except BaseException:
            ready = running.ready
            has_failed = ready.done() and (ready.cancelled() or ready.exception() is not None)
            if self._running is running and has_failed:
                self._running = None  # the next request tries again
            raise


class _Running:
    """The gateway on one event loop, from its start to its end, in a task of its own."""

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Gateway] = self._loop.create_future()
        self.stop = asyncio.Event()
        self.task = self._loop.create_task(self._serve(settings))

    @property
    def is_here(self) -> bool:
        """Whether it runs on this event loop; a test client has a new one for every request."""
        return self._loop is asyncio.get_running_loop() and not self.task.done()

    async def _serve(self, settings: Settings) -> None:
        try:
            # The store reports its failures in the log, so its messages for a terminal are not printed.
            gateway = Gateway(settings, prepare_store(settings, lambda _: None))
            async with gateway.lifespan():
                self.ready.set_result(gateway)
                await self.stop.wait()
        except asyncio.CancelledError:
            self.ready.cancel()
            raise
        except BaseException as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)


def create_app(settings: Settings | Mapping[str, Any]) -> GatewayApp:
    """The gateway as an ASGI application, alone or mounted under a prefix.

    `settings` may be a dictionary, as in `Settings.from_dict`. Raises `SettingsError`, which names the field, and
    `TypeError` for a path: `Settings.from_file` reads a file.
    """
    if isinstance(cast("object", settings), str | PurePath):
        raise TypeError("settings must be a dictionary or Settings; `Settings.from_file(path)` reads a file")
    if not isinstance(settings, Settings):
        settings = Settings.from_dict(settings)
    check_backends(settings)
    return GatewayApp(settings)
