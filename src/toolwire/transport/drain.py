"""Takes all that has arrived out of aiohttp's buffer at once.

aiohttp hands a body out chunk by chunk, and after each looks whether it may read on. A server that streams sends each
event as a chunk of its own, so in a burst that is most of the cost of reading. Here the chunks are joined, and it looks
once. That takes knowledge of what is inside aiohttp's `StreamReader`; a version that is otherwise is read as it wants.
"""

from typing import Any, cast

from aiohttp import StreamReader

_INSIDE = ("_buffer", "_buffer_offset", "_size", "_cursor", "_http_chunk_splits", "_protocol", "_timer")
_FEW = 4


def drained(content: StreamReader) -> bytes:
    """What has arrived and was not read; nothing if nothing has."""
    inside = cast("Any", content)
    if not _is_known(inside) or len(inside._buffer) < _FEW or inside._buffer_offset or content.exception() is not None:
        return content.read_nowait()
    data = b"".join(inside._buffer)
    inside._buffer.clear()
    if inside._http_chunk_splits is not None:
        inside._http_chunk_splits.clear()
    inside._size = 0
    inside._cursor += len(data)
    inside._protocol.resume_reading()
    return data


def _is_known(inside: Any) -> bool:
    return all(hasattr(inside, name) for name in _INSIDE)
