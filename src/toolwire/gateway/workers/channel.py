"""A worker's end of the channel to its supervisor: heartbeats out, orders in.

One task writes, and finishes a line that it has begun, so that a supervisor that was suspended finds whole lines.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from toolwire.gateway.workers.messages import (
    Beat,
    FromSupervisor,
    FromWorker,
    LineSplitter,
    LineTooLong,
    decode_from_supervisor,
    encode_line,
)

BEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""
SEND_TIMEOUT = 5.0
"""Seconds that the last messages of a worker may take."""
MAX_UNSENT = 64
"""Messages that wait for a supervisor that does not read."""


class _Unsent(NamedTuple):
    line: bytes
    sent: "asyncio.Future[None]"


class Channel:
    """The socket to the supervisor. `refresh` is called before each heartbeat."""

    def __init__(self, sock: socket.socket, refresh: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._refresh = refresh
        self._unsent: asyncio.Queue[_Unsent] = asyncio.Queue(MAX_UNSENT)
        self._tasks: list[asyncio.Task[None]] = []

    def open(self, obey: Callable[[FromSupervisor | None], None]) -> None:
        """Start heartbeats. `obey` gets each message of the supervisor, and None when it is gone."""
        self._tasks = [asyncio.create_task(work) for work in (self._write(), self._beat(), self._read(obey))]

    async def close(self) -> None:
        self._refresh()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def send(self, message: FromWorker) -> None:
        """Send a message; returns when the system has it. Raises `OSError` if the supervisor is gone or suspended."""
        unsent = _Unsent(encode_line(message), asyncio.get_running_loop().create_future())
        try:
            self._unsent.put_nowait(unsent)
        except asyncio.QueueFull:
            raise TimeoutError("the supervisor does not read") from None
        await unsent.sent

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            line, sent = await self._unsent.get()
            error = None
            try:
                await loop.sock_sendall(self._sock, line)
            except OSError as failure:
                error = failure
            if sent.done():
                continue
            if error is None:
                sent.set_result(None)
            else:
                sent.set_exception(error)

    async def _beat(self) -> None:
        while True:
            self._refresh()
            try:
                await self.send(Beat())
            except TimeoutError:
                pass  # a suspended supervisor may go on
            except OSError:
                return  # it is gone, which `_read` reports
            await asyncio.sleep(BEAT_INTERVAL)

    async def _read(self, obey: Callable[[FromSupervisor | None], None]) -> None:
        loop, lines = asyncio.get_running_loop(), LineSplitter()
        with suppress(OSError, LineTooLong):
            while data := await loop.sock_recv(self._sock, 65536):
                for message in map(decode_from_supervisor, lines.feed(data)):
                    obey(message)
        obey(None)
