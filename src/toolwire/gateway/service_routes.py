"""Routes that answer without a turn: models, token counts, health and metrics.

GET /v1/models   {"object":"list","data":[{"id":"demo","object":"model","created":0,"owned_by":"demo"}]}
GET /readyz      {"status":"ready","store":"ok","configuration":"…"}
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolwire import __version__
from toolwire.core.request import RequestHead
from toolwire.gateway.body import read_body, run_in_steps
from toolwire.gateway.http import HEALTH_PATHS
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.shared import Shared
from toolwire.protocols import DecodeSteps, DialectSide, dialects, find_protocol


class ServiceRoutes:
    """The handlers, as routes."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def make_routes(self) -> list[Route]:
        health = zip(HEALTH_PATHS, (self.show_liveness, self.show_readiness, self.show_metrics), strict=True)
        paths = dict.fromkeys(side.models_path for side in dialects().values())
        return [
            *(Route(path, self.list_models) for path in paths),
            *(Route(f"{path}/{{model:path}}", self.retrieve_model) for path in paths),
            *(Route(path, handler) for path, handler in health),
            *(
                Route(side.count_path, self.make_token_counter(side, side.decode_steps), methods=["POST"])
                for side in dialects().values()
                if side.count_path and side.decode_steps is not None
            ),
        ]

    async def list_models(self, request: Request) -> Response:
        caller = self._shared.keys.check(dict(request.scope["headers"]), request.scope["query_string"])
        row = find_protocol(request.url.path, request.headers)
        found = await self._shared.engine.router.models(caller.upstream_key, row.vendor, caller.grant)
        return _json(row.client.encode_models(found, request.query_params))

    async def retrieve_model(self, request: Request) -> Response:
        caller = self._shared.keys.check(dict(request.scope["headers"]), request.scope["query_string"])
        name = request.path_params["model"]
        owner = self._shared.engine.router.owner(name, caller.grant)
        return _json(find_protocol(request.url.path, request.headers).client.encode_model(name, owner))

    async def show_liveness(self, request: Request) -> Response:
        return _json({"status": "ok", "version": __version__})

    async def show_readiness(self, request: Request) -> Response:
        shared, settings = self._shared, self._shared.settings
        works = await shared.store.probe()
        condition = shared.process.condition
        if condition == "ready" and settings.store.required and not works:
            condition = "not ready"
        body: dict[str, object] = {"status": condition, "store": "ok" if works else "failing", **shared.process.facts}
        if shared.keys.is_admitted(dict(request.scope["headers"])):
            body["backends"] = [backend.name for backend in settings.backends]
            body["unavailable"] = shared.engine.router.unavailable()
        return _json(body, 200 if condition == "ready" else 503)

    async def show_metrics(self, request: Request) -> Response:
        """The metrics of all workers, in the text format of Prometheus."""
        self._shared.keys.check_operator(dict(request.scope["headers"]))
        metrics = self._shared.process.metrics
        metrics.refresh()
        text = await asyncio.to_thread(metrics.encode_text)
        return Response(text, media_type="text/plain; version=0.0.4")

    def make_token_counter(
        self, side: DialectSide, decode_steps: DecodeSteps
    ) -> Callable[[Request], Awaitable[Response]]:
        """The handler that counts the tokens of a request in this dialect."""
        shared = self._shared

        async def count_tokens(request: Request) -> Response:
            given, query = dict(request.scope["headers"]), request.scope["query_string"]
            caller = shared.keys.check(given, query)
            with Reservation(shared.memory_budget, side.overload_status) as reservation:
                body = await read_body(given, request.receive, shared.bounds, reservation)
                head = RequestHead(given, request.path_params, query)
                asked = await run_in_steps(decode_steps(body, shared.bounds, head), len(body))
                tokens, headers = await shared.engine.router.count_tokens(asked, caller.upstream_key, caller.grant)
            return _json(side.encode_count(tokens), headers=headers)

        return count_tokens


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")
