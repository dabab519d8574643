"""ASGI in small pieces: header and query values, one-piece answers."""

import re
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import Send

from toolwire.core.errors import BadRequest

Headers = Iterable[tuple[bytes, bytes]]

EXPOSED = (
    "x-request-id",
    "x-upstream-request-id",
    "x-proxy-output-mode",
    "x-codex-tool-call-count",
    "x-codex-tool-call-truncated",
    "x-codex-stop-after-tools-mode",
    "x-toolwire-notes",
    "retry-after",
)
"""Our headers that a page in a browser may read."""


PIECE = 64 * 1024
"""Bytes that are written at once, and that may wait to be written before anything else is."""


class ClientGone(Exception):
    """The client closed the connection."""


def number(request: Request, name: str, default: int, least: int) -> int:
    """A number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < least:
        raise BadRequest(f"{name} must be a number from {least} on; received {text!r}.", name)
    return int(text)


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    length = (b"content-length", b"%d" % len(body))
    start = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    if len(body) <= PIECE:
        await send({"type": "http.response.body", "body": body})
        return
    for place in range(0, len(body), PIECE):  # each waits until the client has taken the one before
        await send({"type": "http.response.body", "body": body[place : place + PIECE], "more_body": True})
    await send({"type": "http.response.body", "body": b""})
