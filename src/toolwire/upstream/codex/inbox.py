"""Unread lines of a thread, bounded in bytes."""

import asyncio

from toolwire.core.errors import BackendFault, Failure

MAX_INBOX_BYTES = 64 * 1024 * 1024
"""Maximum unread bytes; beyond that the turn fails, because its client reads too slowly."""


class Inbox:
    """Pieces of a reply in order, each followed by `end` when it is read, and the fault that ends the reply."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._pieces: list[bytes] = []
        self._size = 0
        self._reader: asyncio.Future[None] | None = None
        self.fault: BackendFault | None = None

    def put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > MAX_INBOX_BYTES:
            self.clear()
            self.fault = BackendFault(Failure(502, "client_too_slow", "The client reads too slowly."))
        self._wake()

    def put_back(self, data: bytes) -> None:
        """Put back bytes that were read, so that they are read again first."""
        if data:
            self._pieces.insert(0, data.removesuffix(self._end))
            self._size += len(data)

    def fail(self, fault: BackendFault) -> None:
        """End the reply with a fault after the unread pieces."""
        self.fault = fault
        self._wake()

    def clear(self) -> None:
        self._pieces, self._size = [], 0

    def read_nowait(self) -> bytes:
        """The pieces that have arrived. After the last one, raises the fault."""
        if not self._pieces:
            if self.fault is not None:
                raise self.fault
            return b""
        pieces = self._pieces
        self.clear()
        pieces.append(b"")
        return self._end.join(pieces)

    async def read(self) -> bytes:
        """Wait for the next pieces. After the last one, raises the fault."""
        while not self._pieces and self.fault is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self.read_nowait()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
