"""ASGI in small pieces: reading a body, header and query values, one-piece answers."""

import re
import sys
import zlib
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import Receive, Send

from toolwire.core.errors import BadRequest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

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
            body = b"".join(pieces)
            encoding = headers.get(b"content-encoding", b"").strip().lower()
            return body if encoding in (b"", b"identity") else _unpacked(body, encoding, limit)


def _unpacked(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A compressed body, never unpacked further than the limit. Codex with a ChatGPT login sends zstd."""
    if encoding in (b"gzip", b"x-gzip", b"deflate"):
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress
    elif encoding == b"zstd":
        unpack = zstd.ZstdDecompressor().decompress
    else:
        name = encoding.decode("latin-1")
        raise BadRequest(f"content-encoding: {name!r} cannot be read here.", "content-encoding", status=415)
    try:
        unpacked = unpack(body, limit + 1)
    except (zlib.error, zstd.ZstdError) as error:
        raise BadRequest(f"The body is not what its content-encoding says: {error}.", "content-encoding") from None
    if len(unpacked) > limit:
        raise _too_large(limit)
    return unpacked


def number(request: Request, name: str, default: int, least: int) -> int:
    """A number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < least:
        raise BadRequest(f"{name} must be a number from {least} on; received {text!r}.", name)
    return int(text)


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
