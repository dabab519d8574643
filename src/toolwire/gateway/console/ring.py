"""Recorded turns in memory, bounded in bytes; the oldest are dropped first.

A pinned turn stays, as long as pinned turns take no more than half of the room. Changes are numbered by the clock and
not by a counter, from which a key could infer how many turns others make.
"""

import sys
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from time import time_ns

import msgspec

from toolwire.core.events import Note
from toolwire.gateway.console.rows import Row
from toolwire.turns.trace import ENTRY, TurnTrace


class RecordedTurn(msgspec.Struct):
    """A row with the content of its turn: raw until it is first viewed, then packed and without secrets."""

    row: Row
    owner: str
    """Owner of the turn, and of what is stored for it."""
    trace: TurnTrace | None = None
    """The raw content. It may hold secrets: only `Recorder` reads it."""
    notes: Sequence[Note] = ()
    packed: bytes = b""
    """The content as `stored_trace.pack` writes it."""
    size: int = 0
    """Bytes that it counts for, once it is in the ring."""
    pinned_by: str = ""
    """The key that pinned it."""

    @property
    def has_content(self) -> bool:
        return self.trace is not None or bool(self.packed)

    def measure(self) -> int:
        """Set and return the size."""
        self.size = self.row.size + len(self.packed)
        if self.trace is not None:
            headers = (*self.trace.request_headers.items(), *self.trace.answer_headers)
            self.size += self.trace.size + sum([len(name) + len(value) + ENTRY for name, value in headers])
            self.size += ENTRY * len(self.notes)
        return self.size

    def drop_content(self) -> None:
        """Forget the raw content."""
        if self.trace is not None:
            self.trace.release()
            self.trace, self.notes = None, ()


class Ring:
    """Turns in the order in which they ended."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[str, RecordedTurn] = OrderedDict()
        self._pinned: OrderedDict[str, RecordedTurn] = OrderedDict()
        self._changes: list[tuple[int, str]] = []
        self.seq = 0
        self.size = 0
        self.sizes: Counter[str] = Counter()
        """Bytes by key."""
        self.pinned_sizes: Counter[str] = Counter()
        """Bytes of pinned turns by the key that pinned them."""

    def __len__(self) -> int:
        return len(self._turns) + len(self._pinned)

    def __iter__(self) -> Iterator[RecordedTurn]:
        yield from self._pinned.values()
        yield from self._turns.values()

    def get(self, id: str) -> RecordedTurn | None:
        return self._turns.get(id) or self._pinned.get(id)

    def add(self, turns: Iterable[RecordedTurn]) -> None:
        """Add turns. Of one that would take more than a quarter of the room only the row is kept."""
        for turn in turns:
            if turn.measure() > self._limit // 4 and turn.trace is not None:
                turn.drop_content()
                turn.row.kept = "large"
                turn.measure()
            self._turns[turn.row.id] = turn
            self._grow(turn.row.key, turn.size)
            self._number(turn.row)
        self._shrink()

    def fill(self, turn: RecordedTurn, packed: bytes) -> None:
        """Replace the raw content of a turn by its packed form; an empty one means that it could not be packed."""
        before = turn.size
        turn.drop_content()
        turn.packed = packed
        if not packed:
            turn.row.kept = "failed"
        grown = turn.measure() - before
        if self.get(turn.row.id) is turn:
            self._grow(turn.row.key, grown)
            if turn.row.pinned:
                self.pinned_sizes[turn.pinned_by] += grown
            if not packed:
                self._number(turn.row)
            self._shrink()

    def pin(self, id: str, by: str = "", share: float = 1.0) -> bool:
        """Protect a turn from being dropped; False if all pins, or those of this key, would take too much room.

        Args:
            id: The turn.
            by: The key that pins it.
            share: How much of the room for pinned turns this key may take.
        """
        turn = self._turns.get(id)
        if turn is None:
            return id in self._pinned
        room = self._limit // 2
        if self.pinned_sizes.total() + turn.size > room or self.pinned_sizes[by] + turn.size > room * share:
            return False
        self._pinned[id] = self._turns.pop(id)
        self.pinned_sizes[by] += turn.size
        turn.row.pinned, turn.pinned_by = True, by
        self._number(turn.row)
        return True

    def unpin(self, id: str) -> None:
        """Let a turn be dropped again, as the next one."""
        turn = self._pinned.pop(id, None)
        if turn is not None:
            self._turns[id] = turn
            self._turns.move_to_end(id, last=False)
            self.pinned_sizes[turn.pinned_by] -= turn.size
            turn.row.pinned = False
            self._number(turn.row)

    def since(self, seq: int, limit: int, size: int = sys.maxsize) -> list[Row]:
        """At most `limit` rows, of about `size` bytes, that changed after this number, the earliest changes first."""
        found: list[Row] = []
        for index in range(bisect_left(self._changes, (seq + 1, "")), len(self._changes)):
            number, id = self._changes[index]
            turn = self.get(id)
            if turn is not None and turn.row.seq == number:
                found.append(turn.row)
                size -= turn.row.size
                if len(found) == limit or size < 0:
                    break
        return found

    def now(self) -> int:
        """A number after all changes so far and before all later ones: the clock's microseconds."""
        self.seq = max(self.seq + 1, time_ns() // 1000)
        return self.seq

    def _number(self, row: Row) -> None:
        """Number a change of a row."""
        row.seq = self.now()
        self._changes.append((self.seq, row.id))
        if len(self._changes) > 4 * len(self) + 100:
            self._changes = sorted((turn.row.seq, turn.row.id) for turn in self)

    def _shrink(self) -> None:
        while self.size > self._limit and self._turns:
            _, turn = self._turns.popitem(last=False)
            self._grow(turn.row.key, -turn.size)
            turn.drop_content()

    def _grow(self, key: str, size: int) -> None:
        self.size += size
        self.sizes[key] += size
