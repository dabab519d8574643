"""Takes all that has arrived out of aiohttp's buffer at once.

aiohttp hands a body out chunk by chunk, and after each looks whether it may read on. A server that streams sends each
event as a chunk of its own, so in a burst that is most of the cost of reading. Here the chunks are joined, and it looks
once. That takes knowledge of what is inside aiohttp's `StreamReader`; a version that is otherwise is read as it wants.

Not more is taken at once than can be worked off in a few milliseconds, and than may wait for a slow client.
"""

from typing import Any, cast

from aiohttp import StreamReader

INSIDE = (
    "_buffer",
    "_buffer_offset",
    "_size",
    "_cursor",
    "_http_chunk_splits",
    "_low_water",
    "_protocol",
    "_eof",
    "_wait",
)
KNOWN = all(hasattr(StreamReader, name) for name in INSIDE)
FEW = 4
"""Up to so many chunks aiohttp may hand out itself."""
MOST = 64 * 1024
"""Bytes that are taken at once, and from which on more is taken from the connection only when these are read."""


def drained(content: StreamReader) -> bytes:
    """What has arrived and was not read, or a good part of it; nothing if nothing has."""
    inside = cast("Any", content)
    if not _is_known(content) or content.exception() is not None:
        return content.read_nowait(MOST)
    if inside._size > MOST:
        return _part(content)
    if len(inside._buffer) < FEW or inside._buffer_offset:
        return content.read_nowait()
    data = b"".join(inside._buffer)
    inside._buffer.clear()
    if inside._http_chunk_splits is not None:
        inside._http_chunk_splits.clear()
    inside._size = 0
    inside._cursor += len(data)
    inside._protocol.resume_reading()
    return data


def _part(content: StreamReader) -> bytes:
    """The first chunks of many."""
    inside = cast("Any", content)
    buffer = inside._buffer
    if inside._buffer_offset or len(buffer[0]) >= MOST:
        return content.read_nowait(MOST)
    chunks: list[bytes] = []
    size = 0
    while buffer and size + len(buffer[0]) <= MOST:
        chunks.append(buffer.popleft())
        size += len(chunks[-1])
    inside._size -= size
    inside._cursor += size
    splits = inside._http_chunk_splits
    while splits and splits[0] <= inside._cursor:
        splits.popleft()
    if inside._size < inside._low_water:
        inside._protocol.resume_reading()
    return b"".join(chunks)


async def arrived(content: StreamReader) -> bytes:
    """What has arrived, as soon as something has; nothing at the end."""
    inside = cast("Any", content)
    if not _is_known(content) or content.exception() is not None:
        return await content.readany()
    while not inside._buffer and not inside._eof:
        await inside._wait("readany")
    return drained(content)


def _is_known(content: StreamReader) -> bool:
    return KNOWN and type(content) is StreamReader
