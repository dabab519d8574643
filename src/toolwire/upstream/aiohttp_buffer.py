"""Reads from aiohttp's connections: received bytes are parsed in short steps, and buffered chunks are read at once.

aiohttp parses a whole read in one step, however many responses and chunks it holds, and uvloop may read many times
before any other task runs. `PacedHandler` pauses parsing and reading when a step has lasted long enough.

aiohttp returns a body chunk by chunk, with a flow control check after each. A streaming server sends each event as a
chunk, so in a burst that is most of the cost of reading. `drain` joins all chunks that have arrived, with one check, up
to a size that can be processed in a few milliseconds.

Both use private attributes of aiohttp. Where those of `StreamReader` differ, its public methods are used.
"""

import asyncio
from functools import partial
from time import perf_counter
from typing import Any, cast

from aiohttp import ServerDisconnectedError, StreamReader, TCPConnector
from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage

from toolwire.upstream.scheduling import STEP

_INTERNALS = (
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
HAS_KNOWN_INTERNALS = all(hasattr(StreamReader, name) for name in _INTERNALS) and hasattr(
    BaseProtocol, "_reading_paused"
)
BUFFER_SIZE = 64 * 1024
"""Size of aiohttp's buffer, in bytes; aiohttp pauses reading at twice this size."""
MAX_READ = 2 * BUFFER_SIZE
"""Maximum bytes of one read."""


def drain(content: StreamReader) -> bytes:
    """The bytes that have arrived, up to the limit; empty if none have."""
    if not (HAS_KNOWN_INTERNALS and type(content) is StreamReader):
        return content.read_nowait(MAX_READ)
    inside = cast("Any", content)
    buffer = inside._buffer
    if inside._exception is not None or inside._buffer_offset:
        return content.read_nowait(MAX_READ)
    if not buffer:
        return b""
    if inside._size <= MAX_READ:
        data = b"".join(buffer)
        buffer.clear()
    elif len(buffer[0]) < MAX_READ:
        chunks, left = list[bytes](), MAX_READ
        while buffer and len(buffer[0]) <= left:
            left -= len(buffer[0])
            chunks.append(buffer.popleft())
        data = b"".join(chunks)
    else:
        return content.read_nowait(MAX_READ)
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


async def wait_and_drain(content: StreamReader) -> bytes:
    """Wait for bytes and return them; empty at the end."""
    inside = cast("Any", content)
    if not (HAS_KNOWN_INTERNALS and type(content) is StreamReader) or inside._exception is not None:
        return await content.readany()
    while not inside._buffer and not inside._eof:
        await inside._wait("readany")
    return drain(content)


PARSED_SLICE = 16 * 1024
"""Bytes that are parsed before the clock is read."""
MAX_RESPONSES = 64
"""Maximum responses to one request, of which all but the last are informational (100 Continue, 103 Early Hints)."""


def make_connector(**options: Any) -> TCPConnector:
    """A connector whose connections use `PacedHandler`."""
    connector = TCPConnector(**options)
    cast("Any", connector)._factory = partial(PacedHandler, loop=asyncio.get_running_loop())
    return connector


class PacedHandler(ResponseHandler):
    """The protocol of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._waiting = b""  # bytes to parse
        self._is_resting = False  # until other tasks have run
        self._responses = 0

    @property
    def should_close(self) -> bool:
        return super().should_close or bool(self._waiting)

    def is_connected(self) -> bool:
        """Whether the connection may be reused. One with bytes that belong to no request is closed."""
        return super().is_connected() and not (self._waiting or self._buffer or self._tail)

    def set_response_params(self, **params: Any) -> None:
        self._responses = 0
        super().set_response_params(**params)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        self._responses += 1
        if self._responses <= MAX_RESPONSES:
            super().feed_data(data, size)
        elif self.transport is not None:
            self._waiting = b""
            self.set_exception(ServerDisconnectedError("too many responses"))
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. aiohttp calls this without data when it can take more."""
        if self._is_resting:
            self._waiting += data
            return
        if self._waiting:
            data, self._waiting = self._waiting + data, b""
        if len(data) <= PARSED_SLICE:
            super().data_received(data)
            return
        until = perf_counter() + STEP
        for end in range(PARSED_SLICE, len(data) + PARSED_SLICE, PARSED_SLICE):
            super().data_received(data[end - PARSED_SLICE : end])
            if self.transport is None or self.transport.is_closing():
                return
            is_over = perf_counter() > until
            if end < len(data) and (is_over or self._reading_paused):
                self._waiting = data[end:]
                if is_over:
                    self._is_resting = True
                    self._pause_reading_for_buffer()
                    self._loop.call_soon(self._resume)
                return

    def _resume(self) -> None:
        self._is_resting = False
        if self.transport is None:
            return
        if not self._reading_paused:
            self.data_received(b"")
        if not self._is_resting:
            self._resume_reading_for_buffer()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Parse the bytes that had arrived, and close."""
        self._is_resting = False
        data, self._waiting = self._waiting, b""
        if data:
            super().data_received(data)
        super().connection_lost(exc)
