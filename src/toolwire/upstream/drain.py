"""Takes all bytes that have arrived out of aiohttp's buffer at once.

aiohttp returns a body chunk by chunk, with a flow control check after each. A streaming server sends each event as a
chunk, so in a burst that is most of the cost of reading. Here the chunks are joined, with one check. This uses private
attributes of aiohttp's `StreamReader`; where they differ, the public methods are used.

The size is bounded by what can be processed in a few milliseconds, and by what may wait for a slow client.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, cast

from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

INSIDE = (
    "_buffer",
    "_buffer_offset",
    "_size",
    "_cursor",
    "_http_chunk_splits",
    "_low_water",
    "_protocol",
    "_eof",
    "_exception",
    "_wait",
)
KNOWN = all(hasattr(StreamReader, name) for name in INSIDE) and hasattr(BaseProtocol, "_reading_paused")
BUFFER = 64 * 1024
"""The size of aiohttp's buffer: it stops reading when twice as many bytes wait."""
MOST = 2 * BUFFER
"""The most bytes taken at once."""


def drained(content: StreamReader) -> bytes:
    """The bytes that have arrived, up to the limit; empty if none have."""
    if not (KNOWN and type(content) is StreamReader):
        return content.read_nowait(MOST)
    inside = cast("Any", content)
    buffer = inside._buffer
    if inside._exception is not None or inside._buffer_offset:
        return content.read_nowait(MOST)
    if not buffer:
        return b""
    if inside._size <= MOST:
        data = b"".join(buffer)
        buffer.clear()
    elif len(buffer[0]) < MOST:
        data = b"".join(_first_chunks(buffer))
    else:
        return content.read_nowait(MOST)
    inside._size -= len(data)
    inside._cursor += len(data)
    splits = inside._http_chunk_splits
    if splits and not buffer:
        splits.clear()
    while splits and splits[0] <= inside._cursor:
        splits.popleft()
    if inside._size < inside._low_water and inside._protocol._reading_paused:
        inside._protocol.resume_reading()
    return data


def _first_chunks(buffer: deque[bytes]) -> Iterator[bytes]:
    """Take chunks out of the buffer, up to the limit."""
    left = MOST
    while buffer and len(buffer[0]) <= left:
        left -= len(buffer[0])
        yield buffer.popleft()


async def arrived(content: StreamReader) -> bytes:
    """Wait for bytes and return them; empty at the end."""
    inside = cast("Any", content)
    if not (KNOWN and type(content) is StreamReader) or inside._exception is not None:
        return await content.readany()
    while not inside._buffer and not inside._eof:
        await inside._wait("readany")
    return drained(content)
