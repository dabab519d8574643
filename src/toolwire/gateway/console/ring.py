"""Recorded turns in memory, bounded in bytes; the oldest are dropped first.

Pinned turns are not dropped; they may take up to half of the room. Changes are numbered by the clock and not by a
counter, from which a key could infer how many turns others make.
"""

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from time import time_ns

import msgspec

from toolwire.core.events import Note
from toolwire.gateway.console.prompts import TurnPrompt
from toolwire.gateway.console.rows import CONTENT, TurnRow
from toolwire.gateway.console.trace import ENTRY_SIZE, TurnTrace


class RecordedTurn(msgspec.Struct):
    """A turn: its row, and its content, which is raw until it is first viewed, then packed and without secrets."""

    row: TurnRow
    owner: str
    """The owner of the turn and of what it stores."""
    trace: TurnTrace | None = None
    """The raw content, with secrets. Only `TurnRecorder` reads it."""
    notes: Sequence[Note] = ()
    packed: bytes = b""
    """The content, as `content.pack` encodes it."""
    is_stored: bool = False
    """Its content is in the store, and in memory only for a while."""
    prompt: TurnPrompt | None = None
    """Made when conversations are first viewed."""
    size: int = 0
    """Its bytes as counted in the ring."""
    pinned_by: str = ""
    """The key that pinned it."""

    @property
    def has_content(self) -> bool:
        return self.trace is not None or bool(self.packed) or (self.is_stored and self.row.kept in CONTENT)

    def measure(self) -> int:
        """Approximate bytes of memory."""
        size = (
            self.row.size
            + (0 if self.is_stored else len(self.packed))
            + (self.prompt.size if self.prompt is not None else 0)
        )
        if self.trace is not None:
            headers = (*self.trace.request_headers.items(), *self.trace.answer_headers)
            size += self.trace.size + sum([len(name) + len(value) for name, value in headers])
            size += ENTRY_SIZE * len(headers)
            size += ENTRY_SIZE * len(self.notes)
        return size

    def drop_raw(self) -> None:
        """Drop the raw content."""
        if self.trace is not None:
            self.trace.release()
            self.trace, self.notes = None, ()


class Ring:
    """Turns in the order in which they ended."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[str, RecordedTurn] = OrderedDict()  # a dict finds its first entry slowly
        self.seq = 0
        self.size = 0
        self.sizes: Counter[str] = Counter()
        """Bytes by key."""
        self.pinned_sizes: Counter[str] = Counter()
        """Bytes of pinned turns by the key that pinned them."""

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[RecordedTurn]:
        return iter(self._turns.values())

    def get(self, id: str) -> RecordedTurn | None:
        return self._turns.get(id)

    def add(self, turns: Iterable[RecordedTurn]) -> None:
        """Add turns. Only the row of a turn that is larger than a quarter of the room is kept."""
        for turn in turns:
            size = turn.measure()
            if turn.trace is not None and size > self._limit // 4:
                turn.drop_raw()
                turn.row.kept = "large"
                size = turn.measure()
            self._turns[turn.row.id] = turn
            self._grow(turn, size - turn.size)
            turn.row.seq = self.next_seq()
        self._shrink()

    def fill(self, turn: RecordedTurn, packed: bytes) -> None:
        """Replace the raw content of a turn by its packed form, which is empty if packing failed."""
        turn.drop_raw()
        turn.packed = packed
        if not packed:
            turn.row.kept, turn.row.seq = "failed", self.next_seq()
        self.resize(turn)

    def resize(self, turn: RecordedTurn) -> None:
        """Update the size of a turn that has changed, if it is still in the ring."""
        if self._turns.get(turn.row.id) is turn:
            self._grow(turn, turn.measure() - turn.size)
            self._shrink()

    def pin(self, id: str, by: str = "", share: float = 1.0) -> bool:
        """Protect a turn from being dropped. A key may use this share of the room for pinned turns.

        Returns False if there is not enough room.
        """
        turn, room = self._turns.get(id), self._limit // 2
        if turn is None or turn.row.pinned:
            return turn is not None
        if self.pinned_sizes.total() + turn.size > room or self.pinned_sizes[by] + turn.size > room * share:
            return False
        self.pinned_sizes[by] += turn.size
        turn.pinned_by = by
        turn.row.pinned, turn.row.seq = True, self.next_seq()
        return True

    def unpin(self, id: str) -> None:
        turn = self._turns.get(id)
        if turn is not None and turn.row.pinned:
            self.pinned_sizes[turn.pinned_by] -= turn.size
            turn.row.pinned, turn.row.seq = False, self.next_seq()

    def list_changes(self, seq: int, limit: int, size: int = sys.maxsize) -> list[TurnRow]:
        """The rows that changed after this number, in the order of changes: at most `limit`, of about `size` bytes."""
        changed = sorted((turn.row for turn in self if turn.row.seq > seq), key=lambda row: row.seq)
        found: list[TurnRow] = []
        for row in islice(changed, limit):
            found.append(row)
            size -= row.size
            if size < 0:
                break
        return found

    def next_seq(self) -> int:
        """The number of the next change: the clock's microseconds, and larger than all before it."""
        self.seq = max(self.seq + 1, time_ns() // 1000)
        return self.seq

    def _grow(self, turn: RecordedTurn, size: int) -> None:
        turn.size += size
        self.size += size
        self.sizes[turn.row.key] += size
        if turn.row.pinned:
            self.pinned_sizes[turn.pinned_by] += size

    def _shrink(self) -> None:
        excess = self.size - self._limit
        dropped: list[RecordedTurn] = []
        unpinned = (turn for turn in self if not turn.row.pinned)
        while excess > 0 and (turn := next(unpinned, None)) is not None:
            dropped.append(turn)
            excess -= turn.size
        for turn in dropped:
            del self._turns[turn.row.id]
            self._grow(turn, -turn.size)
            turn.drop_raw()
