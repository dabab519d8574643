"""The trace of a turn: references to bytes that exist anyway, and the times at which they passed.

Nothing is copied, joined or inspected here, because every read and every write of a turn passes. A body that is too
large is not held; a stream is held up to the piece for which there is no room. In both cases the trace is marked as
cut.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from time import perf_counter, time

import msgspec

from toolwire.core.backend import Ask, Dialogue, Opening, Post
from toolwire.core.events import CallStarted, Event, ReasoningDelta, RefusalDelta, TextDelta
from toolwire.turns.observers import AttemptInfo

CONTENT = (TextDelta, ReasoningDelta, RefusalDelta, CallStarted)
MAX_TRACE_SIZE = 8 * 1024 * 1024
"""Maximum bytes that are held of one turn."""
ENTRY_SIZE = 160
"""Overhead of one piece in bytes."""


class HeldBytes(msgspec.Struct):
    """The bytes that all running turns hold together."""

    limit: int
    size: int = 0


class TurnTrace:
    """One turn, from the client's request to the last byte of the answer."""

    __slots__ = (
        "answer_headers", "attempts", "began", "first", "held", "is_cut", "is_full", "keeps", "path", "request",
        "request_headers", "results", "seed", "size", "wall", "written",
    )  # fmt: skip

    def __init__(self, seed: str, request_headers: Mapping[bytes, bytes], held: HeldBytes, path: str = "") -> None:
        self.seed = seed
        self.path = path
        self.began = perf_counter()
        """All times are of this clock; that of the event loop counts milliseconds."""
        self.wall = time()
        self.request_headers = request_headers
        self.held = held
        self.keeps = False
        """Whether bytes are held, or only metadata."""
        self.is_cut = False
        """Whether bytes were left out."""
        self.is_full = False
        """Whether no further piece of a stream is held."""
        self.size = 0
        self.request = b""
        self.results: tuple[str, ...] = ()
        """Calls whose results came with the request."""
        self.attempts: list[AttemptTrace] = []
        self.first = 0.0
        """When the first text, reasoning or call arrived; zero if none did."""
        self.answer_headers: Sequence[tuple[bytes, bytes]] = ()
        self.written: list[tuple[float, Sequence[bytes]]] = []

    def receive(self, body: bytes) -> None:
        """The client's request."""
        if self.keeps and self.reserve(len(body)):
            self.request = body

    def attempt(self, info: AttemptInfo) -> "AttemptTrace":
        """An attempt begins."""
        made = AttemptTrace(self, info)
        self.attempts.append(made)
        return made

    def look(self, events: Sequence[Event]) -> None:
        """Note the time of the first event with content."""
        if not self.first and any(isinstance(event, CONTENT) for event in events):
            self.first = perf_counter()

    def send_head(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The headers of the answer."""
        self.answer_headers = headers

    def write(self, pieces: Sequence[bytes]) -> None:
        """A part of the answer leaves."""
        if self.keeps and self.reserve_in_stream(sum(map(len, pieces)) + ENTRY_SIZE * len(pieces)):
            self.written.append((perf_counter(), pieces))

    def finish(self) -> None:
        """The turn is over: its bytes no longer count as held."""
        self.held.size -= self.size
        self.held = HeldBytes(0)

    def reserve_in_stream(self, size: int) -> bool:
        """Reserve room for another piece of a stream; after the first one without room no more are held."""
        if not self.keeps or self.is_full:
            return False
        self.is_full = not self.reserve(size)
        return not self.is_full

    def reserve(self, size: int) -> bool:
        """Reserve room for this many bytes; False if there is none."""
        if self.size + size > MAX_TRACE_SIZE or self.held.size + size > self.held.limit:
            self.is_cut = True
            return False
        self.size += size
        self.held.size += size
        return True

    def snapshot(self) -> "TurnTrace":
        """A copy that does not change any more."""
        made = copy(self)
        made.written = list(self.written)
        made.attempts = [each.snapshot(made) for each in self.attempts]
        return made

    def release(self) -> None:
        """Drop all content. This breaks the cycle between attempts and their turn, which only the collector would."""
        self.held.size -= self.size
        self.size = 0
        self.keeps = False
        self.request = b""
        self.written = []
        self.attempts = []


class AttemptTrace:
    """One attempt: what a backend was sent, and its reply."""

    __slots__ = (
        "asked_at", "backend", "headers", "kind", "model", "reads", "replied_at", "round", "sent", "sent_headers",
        "status", "turn",
    )  # fmt: skip

    def __init__(self, turn: TurnTrace, info: AttemptInfo) -> None:
        self.turn = turn
        self.round = info.round
        self.backend = info.backend
        self.kind = info.kind
        self.model = info.model
        self.asked_at = self.replied_at = 0.0
        self.sent: list[tuple[float, str, bytes]] = []
        """The body, or the messages of a dialogue, that the backend was sent, each with its path or method."""
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.sent_headers: Mapping[str, str] = {}
        self.reads: list[tuple[float, bytes]] = []

    def ask(self, opening: Opening, headers: Callable[[], Mapping[str, str]]) -> None:
        """The backend is asked."""
        self.asked_at = perf_counter()
        if not self.turn.keeps:
            return
        self.sent_headers = headers()
        if isinstance(opening, Post):
            self._send(opening.path, opening.body)
        elif isinstance(opening, Dialogue):
            self.send(opening.outbox)

    def send(self, messages: Sequence[Ask | bytes]) -> None:
        """Messages go to a worker."""
        if not self.turn.keeps:
            return
        for message in messages:
            if isinstance(message, bytes):
                self._send("", message)
            else:
                self._send(message.method, msgspec.json.encode(message.params))

    def _send(self, path: str, body: bytes) -> None:
        size = 0 if body is self.turn.request else len(body)
        if self.turn.reserve(size + ENTRY_SIZE):
            self.sent.append((perf_counter(), path, body))

    def snapshot(self, turn: TurnTrace) -> "AttemptTrace":
        made = copy(self)
        made.turn = turn
        made.sent, made.reads = list(self.sent), list(self.reads)
        return made

    def reply(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the reply is here."""
        self.replied_at = perf_counter()
        self.status = status
        self.headers = headers

    def read(self, data: bytes) -> None:
        """More bytes of the reply are here."""
        if self.turn.keeps and self.turn.reserve_in_stream(len(data) + ENTRY_SIZE):
            self.reads.append((perf_counter(), data))

    def end(self) -> None:
        """The reply is complete."""

    def close(self) -> None:
        """The attempt is over."""
