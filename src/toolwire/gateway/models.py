"""The models that can be asked, as the client's dialect lists them.

{"object":"list","data":[{"id":"demo","object":"model","created":0,"owned_by":"demo"}]}
"""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolwire.gateway.shared import Shared
from toolwire.protocols import protocol_for


class Models:
    """The handlers, as routes."""

    def __init__(self, shared: Callable[[], Shared]) -> None:
        self._shared = shared

    def routes(self) -> list[Route]:
        return [Route("/v1/models", self._list), Route("/v1/models/{model:path}", self._retrieve)]

    async def _list(self, request: Request) -> Response:
        caller = self._shared().keys.check(dict(request.scope["headers"]))
        row = protocol_for(request.url.path, request.headers)
        found = await self._shared().engine.router.models(caller.upstream_key, row.vendor)
        return _json(row.client.encode_models(found, request.query_params))

    async def _retrieve(self, request: Request) -> Response:
        self._shared().keys.check(dict(request.scope["headers"]))
        name = request.path_params["model"]
        owner = self._shared().engine.router.owner(name)
        return _json(protocol_for(request.url.path, request.headers).client.encode_model(name, owner))


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
