"""A worker's end of the channel to its supervisor: heartbeats out, orders in.

One task writes, and finishes a line that it has begun, so that a supervisor that was suspended finds whole lines.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.peers import Peers, PeerServer
from toolwire.gateway.workers.messages import (
    Beat,
    Fleet,
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
    """The supervisor and the other workers, as this worker knows them."""

    def __init__(
        self, sock: socket.socket, slot: int, peers: Peers, server: PeerServer, fleet: Fleet, metrics: Metrics
    ) -> None:
        sock.setblocking(False)
        self.slot = slot
        self.peers = peers
        self.server = server
        self._sock = sock
        self._fleet = fleet
        self._metrics = metrics
        self._unsent: asyncio.Queue[_Unsent] = asyncio.Queue(MAX_UNSENT)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        return self._fleet.workers

    @property
    def ready(self) -> int:
        return self._fleet.ready

    @property
    def has_started(self) -> bool:
        """Whether all workers have been ready once."""
        return self._fleet.started

    async def open(self, obey: Callable[[FromSupervisor | None], None]) -> None:
        """Start heartbeats. `obey` gets each message of the supervisor, and None when it is gone."""
        await self.server.start()
        self._tasks = [asyncio.create_task(work) for work in (self._write(), self._beat(), self._read(obey))]

    async def close(self) -> None:
        self._metrics.refresh()
        await self.server.stop()
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
            self._metrics.refresh()
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
                    if isinstance(message, Fleet):
                        self._fleet = message
                    obey(message)
        obey(None)
