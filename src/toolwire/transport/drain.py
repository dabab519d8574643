"""Takes all that has arrived out of aiohttp's buffer at once.

aiohttp hands a body out chunk by chunk, and after each looks whether it may read on. A server that streams sends each
event as a chunk of its own, so in a burst that is most of the cost of reading. Here the chunks are joined, and it looks
once. That takes knowledge of what is inside aiohttp's `StreamReader`; a version that is otherwise is read as it wants.
"""

from typing import Any, cast

from aiohttp import StreamReader

INSIDE = ("_buffer", "_buffer_offset", "_size", "_cursor", "_http_chunk_splits", "_protocol", "_eof", "_wait")
KNOWN = all(hasattr(StreamReader, name) for name in INSIDE)
FEW = 4
"""Up to so many chunks aiohttp may hand out itself."""


def drained(content: StreamReader) -> bytes:
    """What has arrived and was not read; nothing if nothing has."""
    inside = cast("Any", content)
    if not _is_known(content) or len(inside._buffer) < FEW or inside._buffer_offset or content.exception() is not None:
        return content.read_nowait()
    data = b"".join(inside._buffer)
    inside._buffer.clear()
    if inside._http_chunk_splits is not None:
        inside._http_chunk_splits.clear()
    inside._size = 0
    inside._cursor += len(data)
    inside._protocol.resume_reading()
    return data


async def arrived(content: StreamReader) -> bytes:
    """What has arrived, as soon as something has; nothing at the end."""
    inside = cast("Any", content)
    if not _is_known(content) or inside._buffer or content.exception() is not None:
        return await content.readany()
    while not inside._buffer and not inside._eof:
        await inside._wait("readany")
    return drained(content)


def _is_known(content: StreamReader) -> bool:
    return KNOWN and type(content) is StreamReader
