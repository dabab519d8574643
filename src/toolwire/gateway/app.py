"""The gateway as an ASGI application: which path leads where."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolwire.core.errors import Failure, ToolwireError
from toolwire.core.shares import Shares
from toolwire.core.terminal import clean
from toolwire.dialects import chat, messages, responses
from toolwire.gateway.answer import DialectModule
from toolwire.gateway.body import read_body, stepped
from toolwire.gateway.exchange import Endpoint, Shared, turn_of
from toolwire.gateway.flight import OVERLOADED, Claim, Flight
from toolwire.gateway.guard import Guard
from toolwire.gateway.health import Health
from toolwire.gateway.http import EXPOSED, send_json
from toolwire.gateway.keys import Keys
from toolwire.gateway.log import Format, Log
from toolwire.gateway.metrics import Metrics
from toolwire.gateway.models import Models, is_anthropic
from toolwire.gateway.paths import nearest_path, served_path
from toolwire.gateway.responses.background import Background
from toolwire.gateway.responses.history import ResponseHistory
from toolwire.gateway.responses.operations import Operations, State
from toolwire.gateway.responses.replay import as_failed
from toolwire.gateway.responses.resources import Resources
from toolwire.gateway.responses.socket import Socket, refuse
from toolwire.gateway.sinks import Pace
from toolwire.memory.results import KeptResults
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import StoreFailed
from toolwire.memory.turns import TurnMemory
from toolwire.turns.flags import MODES
from toolwire.turns.prepare import Engine
from toolwire.turns.routes import Router, counted
from toolwire.turns.settings import Settings, bounds_of, bytes_of, make_store
from toolwire.upstream.alarm import Ticker
from toolwire.upstream.http import make_session

if TYPE_CHECKING:
    from toolwire.gateway.tools import GatewayTools


class Gateway:
    """The whole application. Model endpoints are called at once, everything else goes through Starlette.

    `/obsidian-xml/v1/…` and `/openai-json/v1/…` set the output mode, for clients that cannot set headers.
    """

    def __init__(
        self,
        guard: Guard,
        endpoints: dict[str, ASGIApp],
        submit: ASGIApp,
        sockets: dict[str, ASGIApp],
        rest: ASGIApp,
        count_running: Callable[[], int],
    ) -> None:
        self._guard = guard
        self._count_running = count_running
        self._endpoints = endpoints
        self._submit = submit
        self._sockets = sockets
        self._rest = rest

    @property
    def running(self) -> int:
        """Turns that are being answered now, in the background too."""
        return self._count_running()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._rest(scope, receive, send)
        if scope["path"] not in self._endpoints:
            prefix, slash, rest = scope["path"][1:].partition("/")
            if slash and prefix in MODES:
                scope = {**scope, "path": "/" + rest, "toolwire.output_mode": prefix}
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
            submitted = _SUBMIT.fullmatch(path)
            if submitted:
                return await self._submit({**scope, "path_params": submitted.groupdict()}, receive, send)
        return await self._rest(scope, receive, send)


_SUBMIT = re.compile(r"/v1/responses/(?P<response_id>[^/]+)/submit_tool_outputs")
_UPGRADE = Failure(426, "upgrade_required", "There is no WebSocket here; send the request by POST.")


async def _refuse(failure: Failure, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await refuse(send, failure)
    else:
        await send_json(send, failure.status, _dialect_of(Request(scope)).encode_error(failure))


async def _no_socket(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await refuse(send, _UPGRADE)


def make_app(settings: Settings, opened: SqliteStore | None = None, flight: Flight | None = None) -> Gateway:
    """The application for these settings, with a store that was opened for it or one of its own, and with what else
    counts the bytes in flight."""
    states: dict[str, State] = {}
    guard = Guard(settings)

    def state() -> State:
        return states["state"]

    def shared() -> Shared:
        return state().shared

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        store = opened or make_store(settings)
        memory = TurnMemory(store if store.outlives_process else None)
        async with make_session(settings.timeouts) as session, _gateway_tools(settings, memory.results) as own:
            router = Router(settings, session)
            everything = Shared(
                settings,
                Engine(settings, router, memory.reasoning),
                guard,
                Keys(settings),
                log := Log(settings.debug.level, loop, log_format(settings)),
                Metrics(),
                bounds := bounds_of(settings),
                flight or Flight(bytes_of(settings.server.max_in_flight)),
                Pace(settings.server.commit_after, settings.server.keepalive),
                loop,
                Ticker(loop),
                store,
                memory,
                own,
                bytes_of(settings.server.max_reply),
            )
            store.watch = watch_of(everything)
            await store.fail_unfinished(as_failed)
            background = Background(everything.max_reply)
            ledger = ResponseHistory(store, bounds, keeps_by_default=settings.store.default)
            states["state"] = State(
                everything, ledger, background, Shares(bytes_of(settings.server.max_in_flight) // 2)
            )
            router.start()
            yield
            await background.close(settings.server.drain)
            await router.stop()
            await memory.settled()
            await store.close()
            log.flush()

    async def no_such_thing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        failure = _no_such_thing(request, error.status_code)
        shared().log.refused(request.method, request.url.path, failure)
        return _failed(request, failure)

    operations = Operations(state)
    endpoints: dict[str, ASGIApp] = {
        chat.PATH: Endpoint(shared, "chat", chat, turn_of(chat)),
        responses.PATH: Endpoint(shared, "responses", responses, operations.create),
        f"{responses.PATH}/compact": Endpoint(shared, "responses", responses, operations.compact),
        messages.PATH: Endpoint(shared, "messages", messages, turn_of(messages)),
    }

    async def count_tokens(request: Request) -> Response:
        given = dict(request.scope["headers"])
        caller = shared().keys.check(given)
        with Claim(shared().flight, OVERLOADED["messages"]) as claim:
            body = await read_body(given, request.receive, shared().bounds, claim)
            asked = await stepped(messages.decoding(body, shared().bounds), len(body))
            asked = msgspec.structs.replace(asked, betas=given.get(b"anthropic-beta", b"").decode("latin-1"))
            tokens, headers = await counted(shared().engine.router, asked, caller.upstream_key)
        return Response(msgspec.json.encode({"input_tokens": tokens}), 200, headers, "application/json")

    submit = Endpoint(shared, "responses", responses, operations.submit)
    sockets: dict[str, ASGIApp] = {responses.PATH: Socket(state)}
    rest = Starlette(
        routes=[
            *(Route(path, _wrong_method) for path in endpoints),
            *Resources(state).routes(),
            Route(f"{messages.PATH}/count_tokens", count_tokens, methods=["POST"]),
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
    return Gateway(guard, endpoints, submit, sockets, rest, lambda: shared().metrics.running if states else 0)


def log_format(settings: Settings) -> Format:
    """Words for people at a terminal, JSON for everything else, unless the settings say otherwise."""
    if settings.debug.format != "auto":
        return settings.debug.format
    return "text" if sys.stderr.isatty() else "json"


def watch_of(shared: Shared) -> Callable[[StoreFailed | None], None]:
    """What counts the failures of the store, and tells in the log when they begin and when they are over."""
    reported: list[str] = [""]

    def watch(failed: StoreFailed | None) -> None:
        reason = failed.reason if failed is not None else ""
        shared.metrics.store(reason)
        if reported[0] != reason:
            reported[0] = reason
            shared.log.store(reason, str(failed or ""))

    return watch


@asynccontextmanager
async def _gateway_tools(settings: Settings, kept: KeptResults) -> "AsyncGenerator[GatewayTools | None]":
    """The gateway's own tools, if it has any; without any, what they need is not loaded."""
    if not settings.gateway_tools.tools and not settings.gateway_tools.mcp:
        yield None
        return
    from toolwire.gateway.tools import GatewayTools  # noqa: PLC0415

    own = GatewayTools(settings, _say, kept)
    await own.open()
    try:
        yield own
    finally:
        await own.close()


def _say(server: str, message: str) -> None:
    print(clean(f"toolwire: MCP server {server}: {message}"), file=sys.stderr, flush=True)


async def _wrong_method(request: Request) -> Response:
    """A model endpoint that is not asked by POST: perhaps a client tries a WebSocket where there is none."""
    if request.headers.get("upgrade", "").lower() == "websocket":
        return Response(responses.encode_error(_UPGRADE), 426, {"upgrade": "websocket"}, "application/json")
    raise HTTPException(405)


_SERVED = (chat.PATH, responses.PATH, messages.PATH, "/v1/models", "/v1/conversations", "/healthz", "/metrics")


def _no_such_thing(request: Request, status: int) -> Failure:
    path = request.url.path
    if status == 405:
        return Failure(status, "method_not_allowed", f"{path} allows no {request.method}.")
    near = nearest_path(path, _SERVED)
    meant = f" Did you mean {near}?" if near else f" There are {', '.join(_SERVED[:4])}."
    return Failure(status, "not_found", f"{path} is not served here.{meant}")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ToolwireError)
    return _failed(request, error.failure)


def _failed(request: Request, failure: Failure) -> Response:
    headers = {"retry-after": failure.retry_after} if failure.retry_after else None
    return Response(_dialect_of(request).encode_error(failure), failure.status, headers, "application/json")


def _dialect_of(request: Request) -> DialectModule:
    """The dialect in which an error of this path is written."""
    return messages if request.url.path.startswith(messages.PATH) or is_anthropic(request) else chat
