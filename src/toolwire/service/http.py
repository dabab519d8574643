"""ASGI in small pieces: reading a body, header values, one-piece answers."""

from collections.abc import Iterable

from starlette.types import Receive, Send

from toolwire.core.errors import BadRequest

Headers = Iterable[tuple[bytes, bytes]]


EXPOSED = (
    "x-request-id",
    "x-proxy-output-mode",
    "x-codex-tool-call-count",
    "x-codex-tool-call-truncated",
    "x-codex-stop-after-tools-mode",
    "x-toolwire-notes",
    "retry-after",
)
"""Our headers that a page in a browser may read."""

_CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", ", ".join(EXPOSED).encode()),
)


def cors_headers(headers: dict[bytes, bytes]) -> Headers:
    """What an answer to a browser needs. Preflights are Starlette's."""
    return _CORS if b"origin" in headers else ()


class ClientGone(Exception):
    """The client closed the connection."""


async def read_body(headers: dict[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """The whole body, or a clear 413."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        _check_gone(message["type"])
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces)


def _check_gone(type: str) -> None:
    if type == "http.disconnect":
        raise ClientGone


def _too_large(limit: int) -> BadRequest:
    message = f"The body is larger than the limit of {limit} bytes (server.max_body)."
    return BadRequest(message, code="request_too_large", status=413)


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    length = (b"content-length", b"%d" % len(body))
    start = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
