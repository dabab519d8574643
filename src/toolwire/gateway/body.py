"""Request bodies: read, decompressed and checked within the limits."""

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

_CUT_OFF, _TRAILING = "it is truncated", "data follows its end"

COMPRESSED_STEP = 64 * 1024
"""Compressed bytes that are decompressed in one step."""
WINDOW_LOG = 25
"""Maximum zstd window, as a power of two. It is allocated before any content is decompressed."""


async def run_in_steps(steps: Steps[T], size: int) -> T:
    """Run a computation on a body of this size. If the body is large, other tasks run between the steps."""
    return run_steps(steps) if size < LARGE_BODY_BYTES else await _yield_between(steps)


async def _yield_between(steps: Steps[T]) -> T:
    """Run a computation; other tasks run between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await give_way()


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, bounds: Bounds, reservation: Reservation
) -> bytes:
    """The whole body, decompressed and checked. Raises `BadRequest`, `Overloaded` or `ClientGone`."""
    body = await _receive_body(headers, receive, bounds.body, reservation)
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in (b"", b"identity"):
        body = await _yield_between(_decompress(body, encoding, bounds.body, reservation))
    await check_body(body, bounds)
    return body


async def check_body(body: bytes, bounds: Bounds) -> None:
    """Check that a body is UTF-8 and has no more values than the limit. Raises `BadRequest`."""
    if len(body) < LARGE_BODY_BYTES:
        _check_text(body)
        return
    if not body.isascii():
        await _yield_between(_check_long_text(body))
    await _yield_between(check_values(body, bounds.values))


async def _receive_body(
    headers: Mapping[bytes, bytes], receive: Receive, limit: int, reservation: Reservation
) -> bytes:
    declared = headers.get(b"content-length", b"")
    if declared.isdigit():
        if len(declared) > len(str(limit)) + 1 or int(declared) > limit:
            raise _make_size_error(limit)
        reservation.check(int(declared))  # a declared length reserves nothing
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _make_size_error(limit)
        reservation.grow(len(piece))
        if not message.get("more_body"):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


def _decompress(body: bytes, encoding: bytes, limit: int, reservation: Reservation) -> Steps[bytes]:
    """Decompress a body, never beyond the limit. Codex with a ChatGPT login sends zstd."""
    if encoding in (b"gzip", b"x-gzip", b"deflate"):
        decompressing = _inflate(body)
    elif encoding == b"zstd":
        decompressing = _decompress_zstd(body)
    else:
        name = encoding.decode("latin-1")
        raise BadRequest(f"content-encoding: {name!r} is not supported.", "content-encoding", status=415)
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in decompressing:
            size += len(piece)
            if size > limit:
                raise _make_size_error(limit)
            reservation.grow(len(piece))
            pieces.append(piece)
            yield
    except (zlib.error, zstd.ZstdError, ValueError) as error:
        message = f"The body does not match its content-encoding: {error}."
        raise BadRequest(message, "content-encoding") from None
    reservation.shrink(len(body))
    return b"".join(pieces)


def _inflate(body: bytes) -> Iterator[bytes]:
    """Raises `ValueError` or `zlib.error`."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    for start in range(0, len(body), COMPRESSED_STEP):
        if stream.eof:
            raise ValueError(_TRAILING)
        rest = body[start : start + COMPRESSED_STEP]
        while rest and not stream.eof:
            yield stream.decompress(rest, BYTES_PER_STEP)
            rest = stream.unconsumed_tail
    while not stream.eof:
        piece = stream.decompress(b"", BYTES_PER_STEP)
        if not piece:
            raise ValueError(_CUT_OFF)
        yield piece
    if stream.unused_data:
        raise ValueError(_TRAILING)


def _decompress_zstd(body: bytes) -> Iterator[bytes]:
    """Raises `ValueError` or `ZstdError`."""
    stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
    for start in range(0, len(body), COMPRESSED_STEP):
        if stream.eof:
            raise ValueError(_TRAILING)
        yield stream.decompress(body[start : start + COMPRESSED_STEP], BYTES_PER_STEP)
        while not stream.eof and not stream.needs_input:
            yield stream.decompress(b"", BYTES_PER_STEP)
    if not stream.eof:
        raise ValueError(_CUT_OFF)
    if stream.unused_data:
        raise ValueError(_TRAILING)


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
    """Check that a body is UTF-8, because some fields are passed to a backend undecoded."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise _make_utf8_error(error.start) from None


def _check_long_text(body: bytes) -> Steps[None]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    view = memoryview(body)
    for start in range(0, len(body), BYTES_PER_STEP):
        try:
            decode(view[start : start + BYTES_PER_STEP], start + BYTES_PER_STEP >= len(body))
        except UnicodeDecodeError as error:
            raise _make_utf8_error(start + error.start) from None
        yield


def _make_utf8_error(offset: int) -> BadRequest:
    return BadRequest(f"The body is not valid JSON: it is not UTF-8 near byte {offset}.", code="invalid_json")


def _make_size_error(limit: int) -> BadRequest:
    message = f"The body is larger than the limit of {limit} bytes (server.max_body)."
    return BadRequest(message, code="request_too_large", status=413)
