"""Answers of the console: no other page may frame, read or keep them, and nothing is loaded from elsewhere."""

import asyncio
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from toolwire.core.errors import BadRequest, Failure
from toolwire.gateway.console.own_turns import OwnTurns
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
_ASKED = 64 * 1024
"""Bytes of what a page sends to change something."""


class PassedOn(Response):
    """An answer of an endpoint, passed on as it comes."""

    def __init__(self, own: OwnTurns, dialect: str, body: bytes, caller: Caller) -> None:
        super().__init__()
        self._asked = own, dialect, body, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own, dialect, body, caller = self._asked

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


def address_of(request: Request) -> str:
    """The address of this gateway, as it is reached from here."""
    host, port = request.scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def given_in(request: Request) -> dict[str, Any]:
    """The object that a page sends."""
    try:
        given: Any = msgspec.json.decode(await body_of(request, _ASKED) or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(given, dict):
        raise BadRequest("The body must be an object.")
    return cast("dict[str, Any]", given)


async def body_of(request: Request, most: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise BadRequest("The body is too large.", code="request_too_large", status=413)
    return bytes(body)


def as_html(page: bytes, status: int = 200) -> Response:
    return Response(page, status, HEADERS, "text/html; charset=utf-8")


def as_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, HEADERS, "application/json")


async def as_large_json(value: object) -> Response:
    """An answer that may have many bytes."""
    return Response(await asyncio.to_thread(msgspec.json.encode, value), 200, HEADERS, "application/json")


def as_failure(failure: Failure) -> Response:
    return as_json({"error": {"code": failure.code, "message": failure.message}}, failure.status)
