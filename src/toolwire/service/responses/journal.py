"""The events of one stream, for readers who may come late, leave and come back."""

import asyncio
from collections.abc import Sequence

AT_ONCE = 64 * 1024
"""Bytes from which on further events wait for the next write."""


class Journal:
    """Events in order: the number of an event is its place."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.size = 0
        """Bytes of the frames."""
        self.comment = b""
        """The telemetry that closes the stream."""
        self.closed = False
        self._more = asyncio.Event()

    @classmethod
    def of(cls, frames: bytes) -> "Journal":
        """A journal that is complete."""
        journal = cls()
        journal.frames = [frame + b"\n\n" for frame in frames.split(b"\n\n") if frame]
        journal.size = len(frames)
        journal.closed = True
        return journal

    def add(self, pieces: Sequence[bytes]) -> None:
        """Note events; what else is in a stream (comments, its end) has no number and is left out."""
        events = b"".join(piece for piece in pieces if piece.startswith(b"event: "))
        self.size += len(events)
        self.frames += [event + b"\n\n" for event in events.split(b"\n\n") if event]
        self.comment = next((piece for piece in pieces if piece.startswith(b": ")), self.comment)
        self._wake()

    def since(self, number: int) -> list[bytes]:
        """The events from this number on, as many as are sent at once."""
        size = 0
        frames: list[bytes] = []
        for place in range(number, len(self.frames)):
            frames.append(self.frames[place])
            size += len(frames[-1])
            if size >= AT_ONCE:
                break
        return frames

    def close(self) -> None:
        self.closed = True
        self._wake()

    async def more(self) -> None:
        """Wait for the next events, or the end."""
        await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
