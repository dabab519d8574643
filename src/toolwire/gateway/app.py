"""The gateway as an ASGI application, and its paths."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import TypeAlias, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from toolwire.config.display import hash_settings
from toolwire.config.flags import MODES
from toolwire.config.settings import Settings, bytes_of
from toolwire.config.stores import AnyStore
from toolwire.core.errors import Failure, ToolwireError
from toolwire.gateway.admin_routes import AdminRoutes
from toolwire.gateway.console.routes import ConsoleApp, open_console, serves_console
from toolwire.gateway.endpoint import Endpoint, make_turn_operation
from toolwire.gateway.http import (
    EXPOSED,
    OUTPUT_MODE,
    PREFIX,
    correct_path,
    find_nearest_path,
    remove_prefix,
    send_json,
)
from toolwire.gateway.lifespan import open_application
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.process import Process
from toolwire.gateway.responses.operations import Operations, State
from toolwire.gateway.responses.resources import resource_routes
from toolwire.gateway.responses.socket import Socket, refuse
from toolwire.gateway.service_routes import ServiceRoutes
from toolwire.protocols import DialectSide, dialects, find_dialect

Patterns: TypeAlias = list[tuple[re.Pattern[str], ASGIApp]]

_UPGRADE = Failure(426, "upgrade_required", "There is no WebSocket here; send the request by POST.")


class Gateway:
    """The gateway as an ASGI application. It serves while its lifespan is open."""

    def __init__(
        self,
        settings: Settings,
        store: "AnyStore | None" = None,
        budget: MemoryBudget | None = None,
        process: Process | None = None,
    ) -> None:
        """By default it has a store and a memory budget of its own, and is the only worker."""
        self._settings = settings
        self._store = store
        self._budget = budget or MemoryBudget(bytes_of(settings.server.max_in_flight))
        self._process = process or Process(hash_settings(settings))
        self._paths: ASGIApp | None = None

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Open the gateway; at the end, let its turns finish and close it. Raises `SettingsError`."""
        async with open_application(self._settings, self._process, self._store, self._budget) as state:
            endpoints, patterns = model_endpoints(state)
            is_shown = self._settings.console.enabled
            async with open_console(state.shared, endpoints) if is_shown else nullcontext() as console:
                paths, issued = Paths(state, endpoints, patterns, console), state.shared.keys.issued
                self._paths = paths if issued is None else issued.admit(paths)
                self._process.condition = "ready"
                yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await Router(lifespan=self.lifespan).lifespan(scope, receive, send)
        if self._paths is None:
            raise RuntimeError("the gateway serves only within its lifespan")
        return await self._paths(scope, receive, send)


def model_endpoints(state: State) -> tuple[dict[str, ASGIApp], Patterns]:
    """The model endpoints, by path and by path pattern."""
    operations = Operations(state)
    endpoints: dict[str, ASGIApp] = {**operations.endpoints()}
    patterns: Patterns = [operations.submit_endpoint()]
    for name, side in dialects().items():
        if side.decode_steps is not None:
            endpoint = Endpoint(state.shared, name, make_turn_operation(side.module, side.decode_steps))
            endpoints[side.module.PATH] = endpoint
            if side.pattern is not None:
                patterns.append((side.pattern, endpoint))
    return endpoints, patterns


class Paths:
    """All paths of an open gateway. Model endpoints are called directly, all others through Starlette.

    `/obsidian-xml/v1/…` and `/openai-json/v1/…` set the output mode, for clients that cannot set headers.
    """

    def __init__(
        self, state: State, endpoints: dict[str, ASGIApp], patterns: Patterns, console: ConsoleApp | None
    ) -> None:
        shared = state.shared
        self._origin_check = shared.origin_check
        self._endpoints = endpoints
        self._patterns = patterns
        self._socket = Socket(state)
        self._console = console
        self._log = shared.log
        has_keys = shared.origin_check.has_keys
        self._rest = Starlette(
            routes=[
                *resource_routes(state),
                *ServiceRoutes(shared).make_routes(),
                *(AdminRoutes(shared).make_routes() if shared.settings.admin_key else ()),
                *(Route(path, _refuse_method) for path in endpoints),
            ],
            middleware=[
                Middleware(
                    CORSMiddleware,
                    # Without keys the origin check has admitted the page, so its origin is echoed.
                    allow_origins=["*"] if has_keys else [],
                    allow_origin_regex=None if has_keys else ".*",
                    allow_methods=["*"],
                    allow_headers=["*"],
                    expose_headers=EXPOSED,
                    allow_private_network=True,
                ),
            ],
            exception_handlers={
                HTTPException: self._refuse_path,
                ToolwireError: lambda request, error: _encode_failure(request, cast("ToolwireError", error).failure),
            },
        )
        self._rest.router.redirect_slashes = False  # a redirect would echo the client's Host header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if prefix := scope.get("root_path"):
            scope = {**scope, "path": remove_prefix(scope["path"], prefix), "root_path": "", PREFIX: prefix.rstrip("/")}
        if scope["path"] not in self._endpoints:
            prefix, slash, rest = scope["path"][1:].partition("/")
            if slash and prefix in MODES:
                scope = {**scope, "path": "/" + rest, OUTPUT_MODE: prefix}
            scope = {**scope, "path": correct_path(scope["path"])}
        path = scope["path"]
        refusal = self._origin_check.find_refusal(scope["headers"])
        if scope["type"] == "websocket":
            if refusal is None and path == Socket.PATH:
                return await self._socket(scope, receive, send)
            await receive()
            return await refuse(send, refusal or _UPGRADE)
        if refusal is not None:
            return await send_json(send, refusal.status, _dialect_of(Request(scope)).module.encode_error(refusal))
        if scope["method"] == "POST":
            endpoint = self._endpoints.get(path)
            if endpoint is not None:
                return await endpoint(scope, receive, send)
            for pattern, endpoint in self._patterns:
                if found := pattern.fullmatch(path):
                    return await endpoint({**scope, "path_params": found.groupdict()}, receive, send)
        if self._console is not None and serves_console(path):
            return await self._console(scope, receive, send)
        return await self._rest(scope, receive, send)

    async def _refuse_path(self, request: Request, error: Exception) -> Response:
        """Answer and log a request for a path or a method that is not served."""
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 405:
            failure = Failure(405, "method_not_allowed", f"{path} does not allow {request.method}.")
        else:
            main = [*(side.module.PATH for side in dialects().values()), "/v1/models"]
            near = find_nearest_path(path, (*main, "/v1/conversations", "/healthz", "/metrics"))
            meant = f" Did you mean {near}?" if near else f" The main paths are {', '.join(main)}."
            failure = Failure(error.status_code, "not_found", f"{path} is not served here.{meant}")
        self._log.refuse(request.method, path, failure)
        return _encode_failure(request, failure)


async def _refuse_method(request: Request) -> Response:
    """Refuse a request to a model endpoint other than POST, which may be the handshake of a WebSocket."""
    if request.headers.get("upgrade", "").lower() == "websocket":
        body = _dialect_of(request).module.encode_error(_UPGRADE)
        return Response(body, 426, {"upgrade": "websocket"}, "application/json")
    raise HTTPException(405)


def _encode_failure(request: Request, failure: Failure) -> Response:
    headers = {"retry-after": failure.retry_after} if failure.retry_after else None
    return Response(_dialect_of(request).module.encode_error(failure), failure.status, headers, "application/json")


def _dialect_of(request: Request) -> DialectSide:
    """The dialect for errors of this path."""
    return find_dialect(request.url.path, request.headers)
