"""The events of one stream: those of a run that this process produces, and those of a stream that is over.

Nobody sees an event of a run before it is committed in the store. What is committed can be read there by everybody, so
only what is not, and a little of what was, is held here.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from toolwire.memory.store import EventChunk, Fence

CHUNK = 256 * 1024
"""Most bytes of events that one chunk of the store has, unless a single piece has more."""
TAIL = 256 * 1024
"""Bytes of committed events that are held for readers who are close behind."""


class RunLog:
    """The events of a run. The number of an event is its place in the log."""

    def __init__(self, owner: str, fence: Fence, committed: int = 0) -> None:
        self.owner = owner
        self.fence = fence
        self.committed = committed
        """How many events are committed: those of smaller numbers."""
        self.size = 0
        """Bytes of all events that were added here."""
        self.comment = b""
        """The telemetry that closes the stream."""
        self._shown_from: int | None = None  # the number of the first event that shows something of the turn
        self.is_over = False
        """No event comes after those that are committed."""
        self.is_lost = False
        """Another process has the run: whoever reads goes on with the store."""
        self.sent_since = 0.0
        """Since when the oldest event has waited of those that were sent to the store."""
        self._waits_since = 0.0  # the same of those that were not
        self._waiting: deque[tuple[int, bytes]] = deque()  # how many events, and these
        self._waiting_size = 0
        self._sent: EventChunk | None = None  # to the store, which has not said what became of it
        self._is_ending = False
        self._tail: deque[EventChunk] = deque()
        self._tail_size = 0
        self._changed = asyncio.Event()

    @property
    def next(self) -> int:
        """The number that the next event gets."""
        sent = self._sent.count if self._sent is not None else 0
        return self.committed + sent + sum(count for count, _ in self._waiting)

    @property
    def uncommitted(self) -> int:
        """Bytes of events that nobody may see yet."""
        return self._waiting_size + (len(self._sent.frames) if self._sent is not None else 0)

    @property
    def is_seen(self) -> bool:
        """Whether something of the turn is committed: more than its beginning and signs of life."""
        return self._shown_from is not None and self.committed > self._shown_from

    def add(self, pieces: Sequence[bytes], *, shows: bool = True) -> None:
        """Note events; what else is in a stream (comments, its end) has no number and is left out.

        `shows` says whether they show something of the turn.
        """
        if not self._waiting:
            self._waits_since = time.monotonic()
        events = event_bytes(pieces)
        if events:
            if shows and self._shown_from is None:
                self._shown_from = self.next
            self.size += len(events)
            self._waiting_size += len(events)
            self._waiting.append((count_events(events), events))

    def to_send(self) -> EventChunk | None:
        """What is to be committed next: the same as before, until it is known what became of it."""
        if self._sent is None and self._waiting and not self._is_ending:
            self._sent, self.sent_since = self._chunk(CHUNK), self._waits_since
        return self._sent

    def take_commit(self) -> None:
        """What was sent is committed: show it."""
        sent, self._sent = self._sent, None
        if sent is not None and not self.is_over:
            self._show(sent)

    def close(self) -> None:
        """Send nothing more: the rest is committed together with the end of the run."""
        self._is_ending = True
        self._wake()

    @property
    def is_settled(self) -> bool:
        """Whether it is known what became of everything that was sent."""
        return self._sent is None

    def rest(self, last: Sequence[bytes]) -> EventChunk:
        """The events that were not sent, and these last ones."""
        events = event_bytes(last)
        first = self.committed if self._sent is None else self._sent.first + self._sent.count
        return _chunk(first, [*self._waiting, (count_events(events), events)])

    def end(self, rest: EventChunk, last: Sequence[bytes]) -> None:
        """Show the rest and the end: they are committed, or say themselves that they are not."""
        if self._sent is not None:
            self._show(self._sent)
        self._waiting.clear()
        self._waiting_size = 0
        self._take_comment(last)
        self.is_over = True
        self._show(rest)

    def lose(self) -> None:
        """Another process has the run: what was not committed is forgotten."""
        self.is_lost = True
        self._waiting.clear()
        self._waiting_size = 0
        self._sent = None
        self._wake()

    def after(self, number: int) -> Sequence[EventChunk] | None:
        """The committed events from this number on that are at hand; None if earlier ones must be read first."""
        if number < self.committed and (not self._tail or number < self._tail[0].first):
            return None
        return [chunk for chunk in self._tail if chunk.first + chunk.count > number]

    async def changed(self) -> None:
        """Wait until more is committed, or nothing more will be."""
        await self._changed.wait()

    def _chunk(self, most: int) -> EventChunk:
        some = [self._waiting.popleft()]
        size = len(some[0][1])
        while self._waiting and size + len(self._waiting[0][1]) <= most:
            some.append(self._waiting.popleft())
            size += len(some[-1][1])
        self._waiting_size -= size
        return _chunk(self.committed, some)

    def _show(self, chunk: EventChunk) -> None:
        self.committed = chunk.first + chunk.count
        if chunk.count:
            self._tail.append(chunk)
            self._tail_size += len(chunk.frames)
        while len(self._tail) > 1 and self._tail_size > TAIL:
            self._tail_size -= len(self._tail.popleft().frames)
        self._wake()

    def _take_comment(self, pieces: Sequence[bytes]) -> None:
        self.comment = next((piece for piece in pieces if piece.startswith(b": ")), self.comment)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _chunk(first: int, some: Sequence[tuple[int, bytes]]) -> EventChunk:
    return EventChunk(first, sum(count for count, _ in some), b"".join(events for _, events in some))


def event_bytes(pieces: Sequence[bytes]) -> bytes:
    """The events among the pieces of a stream."""
    return b"".join([piece for piece in pieces if piece.startswith(b"event: ")])


def count_events(events: bytes) -> int:
    return events.count(b"\n\n")


def cut(chunk: EventChunk, number: int) -> EventChunk:
    """The events of a chunk from this number on."""
    if number <= chunk.first:
        return chunk
    events = chunk.frames.split(b"\n\n", number - chunk.first)
    return EventChunk(number, chunk.first + chunk.count - number, events[-1])
