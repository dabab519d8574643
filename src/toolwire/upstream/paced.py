"""Connections to backends whose bytes are parsed a few milliseconds at a time.

aiohttp parses a whole read at once, however many responses and chunks it holds, and uvloop may read many times before
any other task runs. Here parsing stops when its time is over, and so does reading, until other tasks have run. This
uses private attributes of aiohttp, as `drain.py` does.
"""

import asyncio
from functools import partial
from time import perf_counter
from typing import Any, cast

from aiohttp import ServerDisconnectedError, StreamReader, TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage

from toolwire.upstream.fairness import STEP

SLICE = 16 * 1024
"""Bytes that are parsed before the clock is looked at."""
MAX_RESPONSES = 64
"""Responses to one request, of which all but the last are informational (100 Continue, 103 Early Hints)."""


def make_connector(**options: Any) -> TCPConnector:
    """A connector whose connections parse what comes at this pace."""
    connector = TCPConnector(**options)
    cast("Any", connector)._factory = partial(PacedHandler, loop=asyncio.get_running_loop())
    return connector


class PacedHandler(ResponseHandler):
    """The protocol of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._waiting = b""  # bytes that are not parsed yet
        self._is_resting = False  # until other tasks have run
        self._responses = 0

    @property
    def should_close(self) -> bool:
        return super().should_close or bool(self._waiting)

    def is_connected(self) -> bool:
        """Whether the connection may be used. One with bytes that belong to no request is closed, not used again."""
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
        """Parse what has come. aiohttp calls this without data when it can take more."""
        if self._is_resting:
            self._waiting += data
            return
        if self._waiting:
            data, self._waiting = self._waiting + data, b""
        if len(data) <= SLICE:
            super().data_received(data)
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        until = perf_counter() + STEP
        for end in range(SLICE, len(data) + SLICE, SLICE):
            super().data_received(data[end - SLICE : end])
            if self.transport is None or self.transport.is_closing():
                return
            is_over = perf_counter() > until
            if end < len(data) and (is_over or self._reading_paused):
                self._waiting = data[end:]
                if is_over:
                    self._is_resting = True
                    self._pause_reading_for_buffer()
                    self._loop.call_soon(self._go_on)
                return

    def _go_on(self) -> None:
        self._is_resting = False
        if self.transport is None:
            return
        if not self._reading_paused:
            self.data_received(b"")
        if not self._is_resting:
            self._resume_reading_for_buffer()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Parse what had come before the connection was lost."""
        self._is_resting = False
        data, self._waiting = self._waiting, b""
        if data:
            super().data_received(data)
        super().connection_lost(exc)
