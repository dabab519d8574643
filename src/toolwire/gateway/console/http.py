"""Answers of the console: no other page may frame, read or keep them, and nothing is loaded from elsewhere."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from toolwire.core.errors import BadRequest, Failure
from toolwire.gateway.console.own_turns import OwnTurns
from toolwire.gateway.console.threads import in_thread
from toolwire.gateway.flight import Claim, Flight
from toolwire.gateway.http import PREFIX, ClientGone, send_pieces
from toolwire.gateway.keys import Caller

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
READ_SECONDS = 120.0
"""Seconds within which an answer must be read."""
_ASKED = 64 * 1024
"""Bytes of what a page sends to change something."""


class PassedOn(Response):
    """An answer of an endpoint, passed on as it comes."""

    def __init__(self, own: OwnTurns, dialect: str, body: bytes, caller: Caller, claim: Claim) -> None:
        super().__init__()
        self._asked = own, dialect, body, caller
        self._claim = claim

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own, dialect, body, caller = self._asked
        self._claim.release()  # the exchange claims it

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                held = {name for name, _ in extra}
                message = {
                    **message,
                    "headers": [*(each for each in message["headers"] if each[0] not in held), *extra],
                }
            await send(message)

        await own.from_form(dialect, body, caller, receive, guarded)


def port_of(request: Request) -> int:
    server = request.scope.get("server")
    return int(server[1]) if server and server[1] else 0


def prefix_of(request: Request) -> str:
    """The prefix that the gateway is mounted at, as it stands in a URL; empty if there is none."""
    return quote(request.scope.get(PREFIX, ""))


def address_of(request: Request) -> str:
    """The address of this gateway, as it is reached from here."""
    host, port = request.scope["server"]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{prefix_of(request)}"


class Answers:
    """Answers whose bytes count with all that the gateway holds. Identical requests that arrive while an answer is
    built share it: it is built, held and counted once. A later request sees what has changed since."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._shared: dict[object, _Shared] = {}

    @asynccontextmanager
    async def use(self, key: object, make: Callable[[], Coroutine[None, None, Response]]) -> AsyncGenerator[Response]:
        """The answer to this question, until it is sent."""
        shared = self._shared.get(key)
        if shared is None or shared.is_built:
            shared = self._shared[key] = _Shared(make(), Claim(self._flight))
        shared.users += 1
        try:
            yield await shared.answer()
        finally:
            shared.users -= 1
            if not shared.users:
                shared.close()
                if self._shared.get(key) is shared:
                    del self._shared[key]


class _Shared:
    """An answer that is being built, or sent to the viewers that requested it."""

    def __init__(self, making: Coroutine[None, None, Response], claim: Claim) -> None:
        self.users = 0
        self._claim = claim
        self._task = asyncio.create_task(self._make(making))

    async def _make(self, making: Coroutine[None, None, Response]) -> Response:
        response = await making
        self._claim.grow(len(response.body))
        return response

    @property
    def is_built(self) -> bool:
        return self._task.done()

    async def answer(self) -> Response:
        """Wait for it. A viewer that disconnects does not cancel it for the others."""
        return await asyncio.shield(self._task)

    def close(self) -> None:
        self._task.cancel()
        self._claim.release()


class Answer:
    """An answer as an ASGI application; it is cut off if the client does not read it."""

    def __init__(self, answers: Answers, key: object, make: Callable[[], Coroutine[None, None, Response]]) -> None:
        self._using = answers.use(key, make)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._using as response, asyncio.timeout(READ_SECONDS):
                start = {"status": response.status_code, "headers": response.raw_headers}
                await send({"type": "http.response.start", **start})
                await send_pieces(send, (bytes(response.body),), last=True)
        except TimeoutError:
            raise ClientGone from None


async def given_in(request: Request) -> dict[str, Any]:
    """The object that a page sends."""
    try:
        given: Any = msgspec.json.decode(await body_of(request, _ASKED) or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(given, dict):
        raise BadRequest("The body must be an object.")
    return cast("dict[str, Any]", given)


async def body_of(request: Request, most: int, claim: Claim | None = None) -> bytes:
    """The body of a request, at most so many bytes, which are claimed."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if claim is not None:
            claim.grow(len(piece))
        if len(body) > most:
            raise BadRequest("The body is too large.", code="request_too_large", status=413)
    return bytes(body)


def as_html(page: bytes, status: int = 200) -> Response:
    return Response(page, status, HEADERS, "text/html; charset=utf-8")


def as_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, HEADERS, "application/json")


async def as_large_json(value: object) -> Response:
    """An answer that may have many bytes."""
    return Response(await in_thread(msgspec.json.encode, value), 200, HEADERS, "application/json")


def as_failure(failure: Failure) -> Response:
    return as_json({"error": {"code": failure.code, "message": failure.message}}, failure.status)
