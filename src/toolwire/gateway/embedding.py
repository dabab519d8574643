"""The gateway inside somebody else's application.

    gateway = create_app(Settings.from_file("toolwire.toml"))
    app = FastAPI(lifespan=gateway.lifespan)
    app.mount("/llm", gateway)

A mounted application hears nothing of the lifespan of the one around it, so that one enters `lifespan`. If nobody does,
the gateway starts with its first request. Whatever it holds is owned by one task, which ends with `aclose`, with the
lifespan, or when its event loop cancels its tasks: nothing depends on which request came first.
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
from toolwire.turns.routes import check_backends


class GatewayApp:
    """The gateway as an ASGI application that can be mounted under any prefix."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: _Running | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or take part in the lifespan of a server that runs this application alone."""
        if scope["type"] == "lifespan":
            return await Router(lifespan=self.lifespan).lifespan(scope, receive, send)
        gateway = await self._started()
        return await gateway(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncGenerator[None]:
        """Start the gateway and, at the end, let its turns finish and close all it has. Raises `SettingsError`."""
        await self._started()
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Let running turns finish and close everything. A later request starts the gateway again."""
        running, self._running = self._running, None
        if running is not None and running.is_here:
            await running.close()

    async def _started(self) -> Gateway:
        running = self._running
        if running is None or not running.is_here:
            running = self._running = _Running(self._settings)
        try:
            return await running.gateway()
        except BaseException:
            if self._running is running and running.has_failed:
                self._running = None  # the next request tries again
            raise


class _Running:
    """The gateway on one event loop, from its start to its end, in a task of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Gateway] = self._loop.create_future()
        self._stop = asyncio.Event()
        self._task = self._loop.create_task(self._run())

    @property
    def is_here(self) -> bool:
        """Whether it runs on this event loop; a test client has a new one for every request."""
        return self._loop is asyncio.get_running_loop() and not self._task.done()

    @property
    def has_failed(self) -> bool:
        """Whether it could not be started."""
        return self._ready.done() and (self._ready.cancelled() or self._ready.exception() is not None)

    async def gateway(self) -> Gateway:
        """The gateway, once it is ready. A request that is given up does not take it along."""
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._stop.set()
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            gateway = Gateway(self._settings, prepare_store(self._settings, _unheard))
            async with gateway.lifespan():
                self._ready.set_result(gateway)
                await self._stop.wait()
        except asyncio.CancelledError:
            self._ready.cancel()
            raise
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)


def _unheard(line: str) -> None:
    """The store tells in the log what becomes of it."""


def create_app(settings: Settings | Mapping[str, Any]) -> GatewayApp:
    """The gateway as an ASGI application, alone or mounted under a prefix.

    `settings` may be a dictionary, as in `Settings.from_dict`. Raises `SettingsError`, which names the field.
    """
    if isinstance(cast("object", settings), str | PurePath):
        raise TypeError("settings: a dictionary or Settings are needed; `Settings.from_file(path)` reads a file")
    if not isinstance(settings, Settings):
        settings = Settings.from_dict(settings)
    check_backends(settings)
    return GatewayApp(settings)
