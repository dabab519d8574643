"""The console as an ASGI application: its paths, its pages, and their errors.

Every path needs a viewer, except the sign-in page and the static files. A request that changes something, or starts a
turn or a check, is a POST, which other pages cannot send.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from html import escape
from importlib.resources import files
from typing import cast
from urllib.parse import parse_qs

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolwire import __version__
from toolwire.core.errors import BadRequest, Failure, InternalError, ToolwireError
from toolwire.gateway.console.access import COOKIE_SECONDS, Access, Viewer, cookie_name, load_token
from toolwire.gateway.console.api import ConsoleApi, Handler
from toolwire.gateway.console.http import (
    HEADERS,
    SharedAnswers,
    make_error,
    port_of,
    prefix_of,
    read_body,
    run_in_thread,
)
from toolwire.gateway.console.recorder import TurnRecorder
from toolwire.gateway.http import ClientGone
from toolwire.gateway.log import Log
from toolwire.gateway.shared import Shared

CONTENT_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
API = "/console/api"
MAX_SIGN_IN_SIZE, SIGN_IN_TIMEOUT = 64 * 1024, 10.0
"""Bytes of the sign-in form, and seconds in which it must arrive: no other body is read without a key."""


def serves_console(path: str) -> bool:
    """Whether a path belongs to the console."""
    return path in ("/", "/console") or path.startswith("/console/")


@asynccontextmanager
async def open_console(shared: Shared, endpoints: Mapping[str, ASGIApp]) -> AsyncGenerator["ConsoleApp"]:
    """The console of a gateway, while the gateway serves. `endpoints` are the model endpoints by path."""
    access = Access(shared.settings, shared.keys, load_token())
    recorder = next(each for each in shared.observers if isinstance(each, TurnRecorder))
    api = ConsoleApi(shared, recorder, endpoints, access)
    pages, answers = Pages(access), SharedAnswers(shared.memory_budget)
    routes = [
        Route("/", pages.index),
        Route("/console", pages.index),
        Route("/console/sign-in", pages.sign_in, methods=["POST"]),
        Route("/console/sign-out", pages.sign_out, methods=["POST"]),
        Route("/console/static/{name}", pages.file),
        *(Route(API + path, guard(access, answers, handler), methods=[method]) for method, path, handler in api.routes),
    ]
    try:
        yield ConsoleApp(Router(routes, redirect_slashes=False), shared.log)
    finally:
        await api.close()


class ConsoleApp:
    """Calls the routes, and turns errors into answers."""

    def __init__(self, router: ASGIApp, log: Log) -> None:
        self._router = router
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def send_noted(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._router({**scope, "app": self}, receive, send_noted)
        except HTTPException as error:
            failure = Failure(error.status_code, "not_found", "There is no such page, or it does not allow the method.")
            await make_error(failure)(scope, receive, send)
        except ToolwireError as error:
            await make_error(error.failure)(scope, receive, send)
        except (ClientDisconnect, ClientGone):
            pass
        except Exception as error:  # noqa: BLE001 - reported to the page and in the log
            self._log.crash("console", error)
            if not is_started:
                await make_error(InternalError().failure)(scope, receive, send)


def admit(access: Access, request: Request) -> Viewer:
    """The viewer behind a request; `BadRequest` if there is none, or if another page sent a POST."""
    headers = dict(request.scope["headers"])
    viewer = access.find_viewer(headers, port_of(request))
    if viewer is None:
        raise BadRequest("Sign in to the console first.", code="unauthorized", status=401)
    if request.method == "POST":
        access.check_origin(headers, viewer)
    return viewer


def guard(access: Access, answers: SharedAnswers, handler: Handler) -> Callable[[Request], Awaitable[ASGIApp]]:
    """A handler for viewers only. Viewers with the same rights share the answers to a GET."""

    async def respond(request: Request) -> ASGIApp:
        viewer = admit(access, request)

        async def make() -> Response:
            answer = await handler(request, viewer)
            if callable(answer):
                return cast("Response", answer)
            return Response(await run_in_thread(msgspec.json.encode, answer), 200, HEADERS, "application/json")

        if request.method == "POST":
            return await make()
        key = viewer.key, viewer.sees_all, request.scope["path"], request.scope["query_string"]

        async def send_shared(_: Scope, receive: Receive, send: Send) -> None:
            await answers.send(key, make, send)

        return send_shared

    return respond


class Pages:
    """The page, its files, and the sign-in form."""

    def __init__(self, access: Access) -> None:
        self._access = access
        folder = files("toolwire.gateway.console") / "static"
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    async def index(self, request: Request) -> Response:
        token = request.query_params.get("token")
        if token is not None:
            return self._sign_in(request, self._access.find_by_token(token.encode(errors="replace")))
        if self._access.find_viewer(dict(request.scope["headers"]), port_of(request)) is None:
            return self._show(request, "sign-in.html", said="")
        return self._show(request, "index.html", version=__version__)

    async def sign_in(self, request: Request) -> Response:
        self._access.check_origin(dict(request.scope["headers"]), Viewer(by_cookie=True))
        try:
            async with asyncio.timeout(SIGN_IN_TIMEOUT):
                form = (await read_body(request, MAX_SIGN_IN_SIZE)).decode(errors="replace")
        except TimeoutError:
            raise BadRequest("The form was not received in time.", code="request_timeout", status=408) from None
        secret = parse_qs(form).get("secret", [""])[0]
        return self._sign_in(request, self._access.find_by_secret(secret.encode(errors="replace")))

    async def sign_out(self, request: Request) -> Response:
        admit(self._access, request)
        return self._redirect(request, f"{cookie_name(port_of(request))}=", 0)

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        content_type = CONTENT_TYPES.get(name.rpartition(".")[2])
        if name not in self._files or content_type is None:
            raise HTTPException(404)
        return Response(self._files[name], 200, {**HEADERS, "cache-control": "no-cache"}, content_type)

    def _sign_in(self, request: Request, viewer: Viewer | None) -> Response:
        if viewer is None:
            said = "This is neither the gateway's token nor a key that may open the console."
            return self._show(request, "sign-in.html", 403, said=said)
        return self._redirect(request, self._access.make_cookie(viewer, port_of(request)), COOKIE_SECONDS)

    def _redirect(self, request: Request, cookie: str, seconds: int) -> Response:
        """Redirect to the page with a cookie that is hidden from scripts and other sites, and over HTTPS is Secure."""
        forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        secure = "; Secure" if (forwarded or request.scope.get("scheme", "http")) == "https" else ""
        path = prefix_of(request) or "/"
        cookie = f"{cookie}; Path={path}; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
        return RedirectResponse(_base_of(request), 303, {**HEADERS, "set-cookie": cookie})

    def _show(self, request: Request, name: str, status: int = 200, **values: str) -> Response:
        """A page with these values filled in."""
        page = self._files[name]
        for field, value in {"base": _base_of(request), **values}.items():
            page = page.replace(b"{%b}" % field.encode(), escape(value).encode())
        return Response(page, status, HEADERS, "text/html; charset=utf-8")


def _base_of(request: Request) -> str:
    """The base of the console's URLs: its prefix, or a relative path if a proxy may have removed one."""
    up = "../" if request.scope["path"].startswith("/console/") else "./"
    return f"{prefix_of(request)}/" if prefix_of(request) else up
