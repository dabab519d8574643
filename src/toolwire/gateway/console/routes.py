"""The paths of the console. Every one of them but the sign-in page and the files of the page asks who looks.

Whatever changes something or asks a backend is a POST from the console's own page.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from html import escape
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolwire import __version__
from toolwire.core.errors import BadRequest, Failure, InternalError, ToolwireError
from toolwire.core.notes import ADVICE
from toolwire.gateway.console.access import SECONDS, Access, Viewer, cookie_name, load_token
from toolwire.gateway.console.api import Api, Handler
from toolwire.gateway.console.http import (
    HEADERS,
    Answer,
    Answers,
    as_failure,
    as_html,
    as_json,
    body_of,
    port_of,
    prefix_of,
)
from toolwire.gateway.exchange import Shared
from toolwire.gateway.http import ClientGone
from toolwire.gateway.log import Log

TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
API = "/console/api"
_FORM, FORM_SECONDS = 64 * 1024, 10.0
"""Bytes of the sign-in form, and how long it may take: it is the one body that is read of a client without a key."""


class Console:
    """The console as an ASGI application for `/` and everything below `/console`."""

    def __init__(self) -> None:
        self._access: Access | None = None
        self._router: Router | None = None
        self._log: Log | None = None
        self._answers: Answers | None = None
        folder = files("toolwire.gateway.console") / "static"
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    @asynccontextmanager
    async def opened(self, shared: Shared, endpoints: Mapping[str, ASGIApp]) -> AsyncGenerator[None]:
        """Answer, for as long as the gateway serves."""
        self._access = Access(shared.settings, shared.keys, load_token())
        self._log = shared.log
        self._answers = Answers(shared.flight)
        shared.keys.is_of_console = self._access.is_own_key
        api = Api(shared, endpoints, self._access)
        self._router = Router(
            [
                Route("/", self._page),
                Route("/console", self._page),
                Route("/console/sign-in", self._sign_in, methods=["POST"]),
                Route("/console/sign-out", self._sign_out, methods=["POST"]),
                Route("/console/static/{name}", self._file),
                Route(f"{API}/advice", self._admitting(_advice)),
                *(Route(API + path, self._admitting(handler), methods=[way]) for way, path, handler in api.table),
            ],
            redirect_slashes=False,
        )
        try:
            yield
        finally:
            await api.close()

    @staticmethod
    def serves(path: str) -> bool:
        """Whether a path is the console's."""
        return path in ("/", "/console") or path.startswith("/console/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._router is not None
        assert self._log is not None
        is_started = False

        async def noted(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._router({**scope, "app": self}, receive, noted)
        except HTTPException as error:
            failure = Failure(error.status_code, "not_found", "There is no such page, or not by this method.")
            await as_failure(failure)(scope, receive, send)
        except ToolwireError as error:
            await as_failure(error.failure)(scope, receive, send)
        except (ClientDisconnect, ClientGone):
            pass
        except Exception as error:  # noqa: BLE001 - the page is told, and the log
            self._log.crashed("console", error)
            if not is_started:
                await as_failure(InternalError().failure)(scope, receive, send)

    @property
    def _doors(self) -> Access:
        assert self._access is not None
        return self._access

    def _admitting(self, handler: Handler) -> Callable[[Request], Awaitable[ASGIApp]]:
        async def answered(request: Request) -> ASGIApp:
            viewer = self._admitted(request)
            if request.method == "POST":
                return await handler(request, viewer)
            assert self._answers is not None
            rights = viewer.key, viewer.sees_all
            key = rights, request.scope["path"], request.scope["query_string"]
            return Answer(self._answers, key, partial(handler, request, viewer))

        return answered

    def _admitted(self, request: Request) -> Viewer:
        """Who looks, if they may do what they ask for."""
        headers = dict(request.scope["headers"])
        viewer = self._doors.viewer(headers, port_of(request))
        if viewer is None:
            raise BadRequest("Sign in to the console first.", code="unauthorized", status=401)
        refusal = self._doors.foreign_post(headers, viewer) if request.method == "POST" else None
        if refusal is not None:
            raise BadRequest(refusal.message, code=refusal.code, status=refusal.status)
        return viewer

    async def _page(self, request: Request) -> Response:
        token = request.query_params.get("token")
        if token is not None:
            return self._let_in(request, self._doors.by_token(token))
        if self._doors.viewer(dict(request.scope["headers"]), port_of(request)) is None:
            return as_html(self._file_of("sign-in.html", _base(request), said=""))
        return as_html(self._file_of("index.html", _base(request), version=__version__))

    async def _sign_in(self, request: Request) -> Response:
        refusal = self._doors.foreign_post(dict(request.scope["headers"]), Viewer(by_cookie=True))
        if refusal is not None:
            return as_failure(refusal)
        try:
            async with asyncio.timeout(FORM_SECONDS):
                form = (await body_of(request, _FORM)).decode(errors="replace")
        except TimeoutError:
            raise BadRequest("The form was not received in time.", code="request_timeout", status=408) from None
        return self._let_in(request, self._doors.by_secret(parse_qs(form).get("secret", [""])[0]))

    def _let_in(self, request: Request, viewer: Viewer | None) -> Response:
        if viewer is None:
            said = "That is neither this gateway's token nor a key that may look at the console."
            return as_html(self._file_of("sign-in.html", _base(request), said=said), 403)
        cookie = _cookie(request, self._doors.cookie(viewer, port_of(request)), SECONDS)
        return RedirectResponse(_base(request), 303, {**HEADERS, "set-cookie": cookie})

    async def _sign_out(self, request: Request) -> Response:
        self._admitted(request)
        ended = _cookie(request, f"{cookie_name(port_of(request))}=", 0)
        return RedirectResponse(_base(request), 303, {**HEADERS, "set-cookie": ended})

    def _file_of(self, name: str, base: str, **values: str) -> bytes:
        """A page with these values in it."""
        page = self._files[name]
        for field, value in {"base": base, **values}.items():
            page = page.replace(b"{%b}" % field.encode(), escape(value).encode())
        return page

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = TYPES.get(name.rpartition(".")[2])
        if name not in self._files or kind is None:
            raise HTTPException(404)
        return Response(self._files[name], 200, {**HEADERS, "cache-control": "no-cache"}, kind)


async def _advice(request: Request, viewer: Viewer) -> Response:
    """What to do about each note."""
    return as_json(ADVICE)


def _base(request: Request) -> str:
    """What the console's URLs begin with: its prefix, or, if a proxy in front has taken one away, the way there."""
    up = "../" if request.scope["path"].startswith("/console/") else "./"
    return f"{prefix_of(request)}/" if prefix_of(request) else up


def _cookie(request: Request, value: str, seconds: int) -> str:
    """A cookie that scripts and other sites cannot use, nor a connection that is not encrypted, if this one is."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    secure = "; Secure" if (forwarded or request.scope.get("scheme", "http")) == "https" else ""
    return f"{value}; Path={prefix_of(request) or '/'}; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
