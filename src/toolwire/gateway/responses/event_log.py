"""The events of one stream, for readers who may come late, leave and come back."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from toolwire.memory.store import EventChunk, Store

AT_ONCE = 64 * 1024
"""Most bytes of events in one write and in one chunk of the store, unless a single event has more."""


class EventLog:
    """Events in order: the number of an event is its index."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.size = 0
        """Bytes of the frames."""
        self.comment = b""
        """The telemetry that closes the stream."""
        self.closed = False
        self._more = asyncio.Event()

    def add(self, pieces: Sequence[bytes]) -> None:
        """Note events; what else is in a stream (comments, its end) has no number and is left out."""
        for piece in _events(pieces):
            self.size += len(piece)
            self.frames += _frames(piece)
        self.comment = next((piece for piece in pieces if piece.startswith(b": ")), self.comment)
        self._wake()

    async def since(self, number: int) -> Sequence[bytes]:
        """The events from this number on, as many as are sent at once."""
        return next(_batches(self.frames, number), ())

    def chunks(self, last: Sequence[bytes]) -> Iterator[EventChunk]:
        """All events and these last ones as they are stored; each chunk is made when it is asked for."""
        frames = [*self.frames, *(frame for piece in _events(last) for frame in _frames(piece))]
        first = 0
        for batch in _batches(frames, 0):
            yield EventChunk(first, b"".join(batch))
            first += len(batch)

    def close(self) -> None:
        self.closed = True
        self._wake()

    async def more(self) -> None:
        """Wait for the next events, or the end."""
        await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class StoredEventLog:
    """The log of a stream that is over, read from the store chunk by chunk."""

    closed: ClassVar = True
    comment: ClassVar = b""

    def __init__(self, store: Store, owner: str, id: str) -> None:
        self._store = store
        self._owner = owner
        self._id = id

    async def since(self, number: int) -> Sequence[bytes]:
        chunk = await self._store.events(self._owner, self._id, number)
        return _frames(chunk.frames)[number - chunk.first :] if chunk is not None else ()

    async def more(self) -> None:
        """There is no more."""


def _events(pieces: Iterable[bytes]) -> Iterator[bytes]:
    return (piece for piece in pieces if piece.startswith(b"event: "))


def _frames(piece: bytes) -> list[bytes]:
    """The events of a piece, which may be many; one that is alone may be large and is not copied."""
    if piece.count(b"\n\n") == 1:
        return [piece]
    return [event + b"\n\n" for event in piece.split(b"\n\n") if event]


def _batches(frames: Sequence[bytes], number: int) -> Iterator[list[bytes]]:
    """The events from this number on in batches that are not large; a large event is a batch of its own."""
    batch: list[bytes] = []
    size = 0
    for index in range(number, len(frames)):
        if batch and size + len(frames[index]) > AT_ONCE:
            yield batch
            batch, size = [], 0
        batch.append(frames[index])
        size += len(frames[index])
    if batch:
        yield batch
