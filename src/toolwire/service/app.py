"""The gateway as an ASGI application: which path leads where."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolwire import __version__
from toolwire.core.errors import BadRequest, Failure
from toolwire.dialects import chat
from toolwire.service.delivery import Pace
from toolwire.service.exchange import MODES, Endpoint, Shared
from toolwire.service.http import EXPOSED
from toolwire.service.keys import Keys
from toolwire.service.log import Log
from toolwire.service.metrics import Metrics
from toolwire.service.routes import Router
from toolwire.service.settings import Settings, bytes_of
from toolwire.transport.alarm import Ticker
from toolwire.transport.http import make_session


class Gateway:
    """The whole application. Model endpoints are called at once, everything else goes through Starlette.

    `/obsidian-xml/v1/…` and `/openai-json/v1/…` set the output mode, for clients that cannot set headers.
    """

    def __init__(self, endpoints: dict[str, ASGIApp], rest: ASGIApp) -> None:
        self._endpoints = endpoints
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["path"] not in self._endpoints:
                prefix, slash, rest = scope["path"][1:].partition("/")
                if slash and prefix in MODES:
                    scope = {**scope, "path": "/" + rest, "toolwire.output_mode": prefix}
            endpoint = self._endpoints.get(scope["path"])
            if endpoint is not None and scope["method"] == "POST":
                return await endpoint(scope, receive, send)
        return await self._rest(scope, receive, send)


def make_app(settings: Settings) -> Gateway:
    """The application for these settings."""
    state: dict[str, Shared] = {}

    def shared() -> Shared:
        return state["shared"]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        async with make_session(settings.timeouts) as session:
            router = Router(settings, session)
            state["shared"] = Shared(
                settings,
                router,
                Keys(settings),
                log := Log(settings.debug.level, loop),
                Metrics(),
                bytes_of(settings.server.max_body),
                Pace(settings.server.commit_after, settings.server.keepalive),
                loop,
                Ticker(loop),
            )
            yield
            log.flush()

    async def models(request: Request) -> Response:
        caller = shared().keys.check(dict(request.scope["headers"]))
        found = await shared().router.models(caller.upstream_key)
        listed = [{"id": id, "object": "model", "created": 0, "owned_by": owner} for id, owner in found]
        wanted = request.path_params.get("model")
        if wanted is None:
            return _json({"object": "list", "data": listed})
        for model in listed:
            if model["id"] == wanted:
                return _json(model)
        raise BadRequest(f"There is no model {wanted!r} here.", "model", "model_not_found", status=404)

    async def healthz(request: Request) -> Response:
        return _json({"status": "ok", "version": __version__})

    async def readyz(request: Request) -> Response:
        return _json({"status": "ready", "backends": [backend.name for backend in settings.backends]})

    async def metrics(request: Request) -> Response:
        shared().keys.check(dict(request.scope["headers"]))
        return Response(shared().metrics.text(), media_type="text/plain; version=0.0.4")

    async def model_endpoint(request: Request) -> Response:
        raise HTTPException(405)

    endpoints: dict[str, ASGIApp] = {chat.PATH: Endpoint(shared, "chat", chat)}
    rest = Starlette(
        routes=[
            *(Route(path, model_endpoint) for path in endpoints),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", models),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ],
        middleware=[
            Middleware(
                CORSMiddleware,
                allow_origins=["*"],
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=EXPOSED,
                allow_private_network=True,
            ),
        ],
        exception_handlers={HTTPException: _no_such_thing, BadRequest: _bad_request},
        lifespan=lifespan,
    )
    return Gateway(endpoints, rest)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _no_such_thing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrong_method = error.status_code == 405
    what = f"allows no {request.method}" if wrong_method else "is not served here"
    code = "method_not_allowed" if wrong_method else "not_found"
    failure = Failure(error.status_code, code, f"{request.url.path} {what}.")
    return Response(chat.encode_error(failure), error.status_code, media_type="application/json")


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    return Response(chat.encode_error(error.failure), error.status, media_type="application/json")
