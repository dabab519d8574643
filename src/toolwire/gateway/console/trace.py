"""The trace of a turn: references to existing bytes, and the times at which they passed.

Nothing is copied, joined or inspected here, because every read and every write of a turn passes through. A body that is
too large is not held; a stream is held up to the first piece that does not fit. In both cases the trace is marked as
cut.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from time import perf_counter, time

import msgspec

from toolwire.core.backend import Ask, Dialogue, Opening, Post
from toolwire.core.events import CallStarted, Event, ReasoningDelta, RefusalDelta, TextDelta
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.turns.observers import AttemptInfo

CONTENT = (TextDelta, ReasoningDelta, RefusalDelta, CallStarted)
MAX_TRACE_SIZE = 8 * 1024 * 1024
"""Maximum bytes that are held of one turn."""
ENTRY_SIZE = 160
"""Overhead of one piece in bytes."""
_NO_BUDGET = MemoryBudget(0)
"""Replaces the budget when a turn is over."""


class TurnTrace(msgspec.Struct, eq=False):
    """One turn, from the client's request to the last byte of the answer."""

    seed: str
    request_headers: Mapping[bytes, bytes]
    held: MemoryBudget
    """The budget of the bytes that all running turns hold together."""
    path: str = ""
    began: float = msgspec.field(default_factory=perf_counter)
    """All times are of this clock; that of the event loop may count whole milliseconds."""
    wall: float = msgspec.field(default_factory=time)
    keeps: bool = False
    """Whether bytes are held, or only metadata."""
    is_cut: bool = False
    """Whether bytes were left out."""
    is_full: bool = False
    """Whether no further piece of a stream is held."""
    size: int = 0
    request: bytes = b""
    results: tuple[str, ...] = ()
    """Calls whose results came with the request."""
    attempts: "list[AttemptTrace]" = []
    first: float = 0.0
    """When the first text, reasoning or call arrived; zero if none did."""
    answer_headers: Sequence[tuple[bytes, bytes]] = ()
    written: list[tuple[float, Sequence[bytes]]] = []

    def receive(self, body: bytes) -> None:
        """The body of the client's request has arrived."""
        if self.keeps and self.reserve(len(body)):
            self.request = body

    def attempt(self, info: AttemptInfo) -> "AttemptTrace":
        """An attempt begins."""
        made = AttemptTrace(self, info.backend, info.kind, info.model, info.round)
        self.attempts.append(made)
        return made

    def look(self, events: Sequence[Event]) -> None:
        """Note the time of the first event with content."""
        if not self.first and any(isinstance(event, CONTENT) for event in events):
            self.first = perf_counter()

    def send_head(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The headers of the answer are sent."""
        self.answer_headers = headers

    def write(self, pieces: Sequence[bytes]) -> None:
        """A part of the answer is sent."""
        if self.keeps and self.reserve_in_stream(sum(map(len, pieces)) + ENTRY_SIZE * len(pieces)):
            self.written.append((perf_counter(), pieces))

    def finish(self) -> None:
        """The turn is over: the ring counts its bytes from now on."""
        self.held.reserved -= self.size
        self.held = _NO_BUDGET

    def reserve_in_stream(self, size: int) -> bool:
        """Reserve room for another piece of a stream. After the first one that does not fit, no more are held."""
        self.is_full = self.is_full or not self.reserve(size)
        return not self.is_full

    def reserve(self, size: int) -> bool:
        """Reserve room for this many bytes; False if there is none."""
        if self.size + size > MAX_TRACE_SIZE or self.held.reserved + size > self.held.limit:
            self.is_cut = True
            return False
        self.size += size
        self.held.reserved += size
        return True

    def snapshot(self) -> "TurnTrace":
        """A copy that does not grow or shrink with the turn."""
        made = copy(self)
        made.written = list(self.written)
        made.attempts = [
            msgspec.structs.replace(each, turn=made, sent=list(each.sent), reads=list(each.reads))
            for each in self.attempts
        ]
        return made

    def release(self) -> None:
        """Drop all content. This also breaks the reference cycle between the turn and its attempts."""
        self.held.reserved -= self.size
        self.size = 0
        self.keeps = False
        self.request = b""
        self.written = []
        self.attempts = []


class AttemptTrace(msgspec.Struct, eq=False):
    """One attempt: what a backend was sent, and its reply."""

    turn: TurnTrace
    backend: str
    kind: str
    model: str
    round: int
    asked_at: float = 0.0
    replied_at: float = 0.0
    sent: list[tuple[float, str, bytes]] = []
    """The body, or the messages of a dialogue, that the backend was sent, each with its path or method."""
    status: int = 0
    headers: Mapping[str, str] = {}
    sent_headers: Mapping[str, str] = {}
    reads: list[tuple[float, bytes]] = []

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
        """Messages of a dialogue are sent to the backend."""
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

    def reply(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the reply has arrived."""
        self.replied_at = perf_counter()
        self.status = status
        self.headers = headers

    def read(self, data: bytes) -> None:
        """More bytes of the reply have arrived."""
        if self.turn.keeps and self.turn.reserve_in_stream(len(data) + ENTRY_SIZE):
            self.reads.append((perf_counter(), data))

    def end(self) -> None:
        """The reply is complete."""

    def close(self) -> None:
        """The attempt is over."""
