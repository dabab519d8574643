"""A worker's end of the channel to its supervisor: heartbeats out, orders in.

The transport buffers unsent bytes, so that a supervisor that was suspended reads whole lines.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import msgspec

from toolwire.gateway.workers.messages import (
    MAX_LINE,
    Beat,
    FromSupervisor,
    FromWorker,
    decode_from_supervisor,
    encode_line,
)

BEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""
SEND_TIMEOUT = 5.0
"""Timeout for sending the last message of a worker, in seconds."""


class Channel:
    """The connection to the supervisor."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refresh: Callable[[], None]) -> None:
        """`refresh` is called before each heartbeat and at the end."""
        self._reader = reader
        self._writer = writer
        self._refresh = refresh

    @classmethod
    async def open(cls, sock: socket.socket, refresh: Callable[[], None]) -> Self:
        """Open a channel on a duplicate of the socket; the original outlives the event loop."""
        reader, writer = await asyncio.open_unix_connection(sock=sock.dup(), limit=MAX_LINE)
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until the system has every byte
        return cls(reader, writer, refresh)

    async def run(self, obey: Callable[[FromSupervisor | None], None]) -> None:
        """Send heartbeats until cancelled. `obey` gets each message of the supervisor, and None when it is gone."""
        beating = asyncio.create_task(self._beat())
        try:
            with suppress(OSError, ValueError, msgspec.DecodeError):  # the line is too long, or was cut off
                while line := await self._reader.readline():
                    obey(decode_from_supervisor(line))
            obey(None)
            await beating
        finally:
            beating.cancel()
            self._refresh()
            self._writer.close()

    async def _beat(self) -> None:
        with suppress(OSError):  # the supervisor is gone, which `run` reports
            while True:
                self._refresh()
                await self.send(Beat())
                await asyncio.sleep(BEAT_INTERVAL)

    async def send(self, message: FromWorker) -> None:
        """Send a message; returns when the system has it. Raises `OSError` if the supervisor is gone."""
        if self._writer.is_closing():  # uvloop raises a RuntimeError for a write
            raise ConnectionResetError("the supervisor is gone")
        self._writer.write(encode_line(message))
        await self._writer.drain()
