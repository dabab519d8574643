"""The gateway as an ASGI application: which path leads where."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolwire.config.display import hash_settings
from toolwire.config.flags import MODES
from toolwire.config.settings import AnyStore, Settings
from toolwire.core.errors import Failure, ToolwireError
from toolwire.core.request import RequestHead
from toolwire.gateway.body import read_body, run_in_steps
from toolwire.gateway.console.routes import ConsoleApp, open_console, serves_console
from toolwire.gateway.endpoint import Endpoint, turn_of
from toolwire.gateway.health import Health
from toolwire.gateway.http import EXPOSED, OUTPUT_MODE, PREFIX, nearest_path, path_below, send_json, served_path
from toolwire.gateway.lifespan import open_application
from toolwire.gateway.memory_budget import MemoryBudget, Reservation
from toolwire.gateway.models import Models
from toolwire.gateway.origin_check import OriginCheck
from toolwire.gateway.process import Process
from toolwire.gateway.responses.operations import Operations, State
from toolwire.gateway.responses.resources import resource_routes
from toolwire.gateway.responses.socket import Socket, refuse
from toolwire.gateway.shared import Shared
from toolwire.protocols import DecodeSteps, DialectSide, dialect_for, dialects
from toolwire.turns.routes import counted


class Gateway:
    """The whole application. Model endpoints are called at once, everything else goes through Starlette.

    `/obsidian-xml/v1/…` and `/openai-json/v1/…` set the output mode, for clients that cannot set headers.
    """

    def __init__(
        self,
        guard: OriginCheck,
        endpoints: dict[str, ASGIApp],
        patterns: Sequence[tuple[re.Pattern[str], ASGIApp]],
        sockets: dict[str, ASGIApp],
        rest: Starlette,
        count_running: Callable[[], int],
        find_console: Callable[[], ConsoleApp | None],
    ) -> None:
        self._guard = guard
        self._find_console = find_console
        self._count_running = count_running
        self._endpoints = endpoints
        self._patterns = patterns
        self._sockets = sockets
        self._rest = rest

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """What starts the application, and ends it; a server that speaks the lifespan protocol does that itself."""
        return self._rest.router.lifespan_context(self._rest)

    @property
    def running(self) -> int:
        """Turns that are being answered now, in the background too."""
        return self._count_running()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._rest(scope, receive, send)
        if prefix := scope.get("root_path"):
            scope = {**scope, "path": path_below(scope["path"], prefix), "root_path": "", PREFIX: prefix.rstrip("/")}
        if scope["path"] not in self._endpoints:
            prefix, slash, rest = scope["path"][1:].partition("/")
            if slash and prefix in MODES:
                scope = {**scope, "path": "/" + rest, OUTPUT_MODE: prefix}
            scope = {**scope, "path": served_path(scope["path"])}
        path = scope["path"]
        refusal = self._guard.refusal(scope["headers"])
        if refusal is not None:
            return await _refuse(refusal, scope, receive, send)
        if scope["type"] == "websocket":
            return await self._sockets.get(path, _no_socket)(scope, receive, send)
        if scope["method"] == "POST":
            endpoint = self._endpoints.get(path)
            if endpoint is not None:
                return await endpoint(scope, receive, send)
            for pattern, endpoint in self._patterns:
                if found := pattern.fullmatch(path):
                    return await endpoint({**scope, "path_params": found.groupdict()}, receive, send)
        if serves_console(path) and (console := self._find_console()) is not None:
            return await console(scope, receive, send)
        return await self._rest(scope, receive, send)


_UPGRADE = Failure(426, "upgrade_required", "There is no WebSocket here; send the request by POST.")


async def _refuse(failure: Failure, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await refuse(send, failure)
    else:
        await send_json(send, failure.status, _dialect_of(Request(scope)).module.encode_error(failure))


async def _no_socket(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await refuse(send, _UPGRADE)


def make_app(
    settings: Settings,
    opened: "AnyStore | None" = None,
    flight: MemoryBudget | None = None,
    process: Process | None = None,
) -> Gateway:
    """The application for these settings, with a store that was opened for it or one of its own, with what else
    counts the bytes in flight, and with what else knows of this process."""
    states: dict[str, State] = {}
    consoles: dict[str, ConsoleApp | None] = {}
    this = process or Process(hash_settings(settings), settings.server.drain)
    guard = OriginCheck(settings)

    def state() -> State:
        return states["state"]

    def shared() -> Shared:
        return state().shared

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with open_application(settings, guard, this, opened, flight) as state:
            states["state"] = state
            async with open_console(state.shared, endpoints) if settings.console.enabled else nullcontext() as console:
                consoles["console"] = console
                this.condition = "ready"
                yield

    async def no_such_thing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        failure = _no_such_thing(request, error.status_code)
        shared().log.refused(request.method, request.url.path, failure)
        return _failed(request, failure)

    operations = Operations(state)
    endpoints: dict[str, ASGIApp] = {**operations.endpoints()}
    patterns: list[tuple[re.Pattern[str], ASGIApp]] = [operations.submit_endpoint()]
    for name, side in dialects().items():
        if side.decode_steps is not None:
            endpoint = Endpoint(shared, name, turn_of(side.module, side.decode_steps))
            if side.pattern is None:
                endpoints[side.module.PATH] = endpoint
            else:
                patterns.append((side.pattern, endpoint))

    sockets: dict[str, ASGIApp] = {Socket.PATH: Socket(state)}
    rest = Starlette(
        routes=[
            *(Route(path, _wrong_method) for path in endpoints),
            *resource_routes(state),
            *_count_routes(shared),
            *Models(shared).routes(),
            *Health(shared).routes(),
        ],
        middleware=[
            Middleware(
                CORSMiddleware,
                # Without keys the guard has let nobody through but own pages: each is named.
                allow_origins=["*"] if guard.has_keys else [],
                allow_origin_regex=None if guard.has_keys else ".*",
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=EXPOSED,
                allow_private_network=True,
            ),
        ],
        exception_handlers={HTTPException: no_such_thing, ToolwireError: _refused},
        lifespan=lifespan,
    )
    rest.router.redirect_slashes = False  # a redirect would repeat whatever host the client named
    return Gateway(
        guard,
        endpoints,
        patterns,
        sockets,
        rest,
        lambda: shared().metrics.running if states else 0,
        lambda: consoles["console"],
    )


def _count_routes(shared: Callable[[], Shared]) -> Iterator[Route]:
    """Where the dialects that have a path for it count the tokens of a request."""

    def handler(side: DialectSide, decode_steps: DecodeSteps) -> Callable[[Request], Awaitable[Response]]:
        async def count_tokens(request: Request) -> Response:
            given, query = dict(request.scope["headers"]), request.scope["query_string"]
            caller = shared().keys.check(given, query)
            with Reservation(shared().memory_budget, side.overload_status) as claim:
                body = await read_body(given, request.receive, shared().bounds, claim)
                head = RequestHead(given, request.path_params, query)
                asked = await run_in_steps(decode_steps(body, shared().bounds, head), len(body))
                tokens, headers = await counted(shared().engine.router, asked, caller.upstream_key)
            return Response(msgspec.json.encode({"input_tokens": tokens}), 200, headers, "application/json")

        return count_tokens

    for side in dialects().values():
        if side.count_path and side.decode_steps is not None:
            yield Route(side.count_path, handler(side, side.decode_steps), methods=["POST"])


async def _wrong_method(request: Request) -> Response:
    """A model endpoint that is not asked by POST: perhaps a client tries a WebSocket where there is none."""
    if request.headers.get("upgrade", "").lower() == "websocket":
        return Response(
            _dialect_of(request).module.encode_error(_UPGRADE), 426, {"upgrade": "websocket"}, "application/json"
        )
    raise HTTPException(405)


def _no_such_thing(request: Request, status: int) -> Failure:
    path = request.url.path
    if status == 405:
        return Failure(status, "method_not_allowed", f"{path} allows no {request.method}.")
    main = [*(side.module.PATH for side in dialects().values()), "/v1/models"]
    near = nearest_path(path, (*main, "/v1/conversations", "/healthz", "/metrics"))
    meant = f" Did you mean {near}?" if near else f" There are {', '.join(main)}."
    return Failure(status, "not_found", f"{path} is not served here.{meant}")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ToolwireError)
    return _failed(request, error.failure)


def _failed(request: Request, failure: Failure) -> Response:
    headers = {"retry-after": failure.retry_after} if failure.retry_after else None
    return Response(_dialect_of(request).module.encode_error(failure), failure.status, headers, "application/json")


def _dialect_of(request: Request) -> DialectSide:
    """The dialect in which an error of this path is written."""
    return dialect_for(request.url.path, request.headers)
