"""Request bodies: read, unpacked and checked, never further than the limits allow."""

import codecs
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from starlette.types import Receive

from toolwire.core.bounds import BYTES_PER_STEP, LARGE_BODY_BYTES, Bounds, Steps, check_values, run_steps
from toolwire.core.errors import BadRequest
from toolwire.gateway.http import ClientGone
from toolwire.gateway.memory_budget import Reservation
from toolwire.upstream.scheduling import give_way

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

PACKED = 64 * 1024
"""Bytes that are unpacked from at a time."""
WINDOW_LOG = 25
"""Of zstd: how far back a body may refer, as a power of two. A window is memory that comes before any content."""


async def run_in_steps(steps: Steps[T], size: int) -> T:
    """The result of a computation on so many bytes, which is only left in between if they are many."""
    return run_steps(steps) if size < LARGE_BODY_BYTES else await in_steps(steps)


async def in_steps(steps: Steps[T]) -> T:
    """The result of a computation; others have their turn between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await give_way()


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, bounds: Bounds, reservation: Reservation
) -> bytes:
    """The whole body, unpacked: UTF-8, and neither too long nor of too many values."""
    body = await _received(headers, receive, bounds.body, reservation)
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in (b"", b"identity"):
        body = await in_steps(_unpacked(body, encoding, bounds.body, reservation))
    await check_body(body, bounds)
    return body


async def check_body(body: bytes, bounds: Bounds) -> None:
    """See whether it is UTF-8 and can be decoded in the time there is."""
    if len(body) < LARGE_BODY_BYTES:
        _check_text(body)
        return
    if not body.isascii():
        await in_steps(_check_long_text(body))
    await in_steps(check_values(body, bounds.values))


async def _received(headers: Mapping[bytes, bytes], receive: Receive, limit: int, reservation: Reservation) -> bytes:
    declared = headers.get(b"content-length", b"")
    if declared.isdigit():
        if len(declared) > len(str(limit)) + 1 or int(declared) > limit:
            raise _too_large(limit)
        reservation.check(int(declared))  # what is only declared takes no room from others
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        reservation.grow(len(piece))
        if not message.get("more_body"):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


def _unpacked(body: bytes, encoding: bytes, limit: int, reservation: Reservation) -> Steps[bytes]:
    """A compressed body, never unpacked further than the limit. Codex with a ChatGPT login sends zstd."""
    if encoding in (b"gzip", b"x-gzip", b"deflate"):
        unpacking = _inflated(body)
    elif encoding == b"zstd":
        unpacking = _zstd(body)
    else:
        name = encoding.decode("latin-1")
        raise BadRequest(f"content-encoding: {name!r} cannot be read here.", "content-encoding", status=415)
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in unpacking:
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            reservation.grow(len(piece))
            pieces.append(piece)
            yield
    except (zlib.error, zstd.ZstdError) as error:
        raise _wrongly_packed(str(error)) from None
    reservation.shrink(len(body))
    return b"".join(pieces)


def _inflated(body: bytes) -> Iterator[bytes]:
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    for start in range(0, len(body), PACKED):
        if unpack.eof:
            raise _trailing()
        rest = body[start : start + PACKED]
        while rest and not unpack.eof:
            yield unpack.decompress(rest, BYTES_PER_STEP)
            rest = unpack.unconsumed_tail
    while not unpack.eof:
        piece = unpack.decompress(b"", BYTES_PER_STEP)
        if not piece:
            raise _cut()
        yield piece
    if unpack.unused_data:
        raise _trailing()


def _zstd(body: bytes) -> Iterator[bytes]:
    unpack = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
    for start in range(0, len(body), PACKED):
        if unpack.eof:
            raise _trailing()
        yield unpack.decompress(body[start : start + PACKED], BYTES_PER_STEP)
        while not unpack.eof and not unpack.needs_input:
            yield unpack.decompress(b"", BYTES_PER_STEP)
    if not unpack.eof:
        raise _cut()
    if unpack.unused_data:
        raise _trailing()


def is_utf8(body: bytes) -> bool:
    try:
        if len(body) < LARGE_BODY_BYTES:
            _check_text(body)
        elif not body.isascii():
            run_steps(_check_long_text(body))
    except BadRequest:
        return False
    return True


def _check_text(body: bytes) -> None:
    """JSON is UTF-8. What says otherwise must not reach anybody who passes it on unread."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise _no_text(error.start) from None


def _check_long_text(body: bytes) -> Steps[None]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    view = memoryview(body)
    for start in range(0, len(body), BYTES_PER_STEP):
        try:
            decode(view[start : start + BYTES_PER_STEP], start + BYTES_PER_STEP >= len(body))
        except UnicodeDecodeError as error:
            raise _no_text(start + error.start) from None
        yield


def _no_text(offset: int) -> BadRequest:
    return BadRequest(f"The body is not valid JSON: it is not UTF-8 near byte {offset}.", code="invalid_json")


def _wrongly_packed(why: str) -> BadRequest:
    return BadRequest(f"The body is not what its content-encoding says: {why}.", "content-encoding")


def _cut() -> BadRequest:
    return _wrongly_packed("it is cut off")


def _trailing() -> BadRequest:
    return _wrongly_packed("something follows its end")


def _too_large(limit: int) -> BadRequest:
    message = f"The body is larger than the limit of {limit} bytes (server.max_body)."
    return BadRequest(message, code="request_too_large", status=413)
