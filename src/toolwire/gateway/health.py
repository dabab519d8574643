"""What those who operate a gateway ask it: is it alive, is it ready, what are its numbers."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolwire import __version__
from toolwire.gateway.http import HEALTH_PATHS
from toolwire.gateway.shared import Shared


class Health:
    """The handlers, as routes."""

    def __init__(self, shared: Callable[[], Shared]) -> None:
        self._shared = shared

    def routes(self) -> list[Route]:
        handlers = (self._alive, self._ready, self._metrics)
        return [Route(path, handler) for path, handler in zip(HEALTH_PATHS, handlers, strict=True)]

    async def _alive(self, request: Request) -> Response:
        return _json({"status": "ok", "version": __version__})

    async def _ready(self, request: Request) -> Response:
        shared = self._shared()
        works = await shared.store.probe()
        condition = shared.process.condition
        if condition == "ready" and shared.settings.store.required and not works:
            condition = "not ready"
        body: dict[str, object] = {"status": condition, "store": "ok" if works else "failing", **shared.process.facts}
        if shared.keys.knows(dict(request.scope["headers"])):
            body["backends"] = [backend.name for backend in shared.settings.backends]
        return _json(body, 200 if condition == "ready" else 503)

    async def _metrics(self, request: Request) -> Response:
        shared = self._shared()
        shared.keys.check(dict(request.scope["headers"]))
        return Response(await shared.process.numbers(), media_type="text/plain; version=0.0.4")


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
