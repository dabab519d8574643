"""What the console keeps: rows and whole turns in memory, bounded in bytes, the oldest leaving first.

A turn that somebody pinned stays, as long as pinned turns take no more than half of the room. Changes are numbered by
time and not by a counter, from which a key could infer how many turns others make.
"""

import sys
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from time import time_ns

import msgspec

from toolwire.gateway.console.rows import Row


class Kept(msgspec.Struct, gc=False):
    """A row, and the whole turn behind it as `keep.py` packs it; empty if only metadata is kept."""

    row: Row
    owner: str
    """Whose turn it was; what is stored for it belongs to that owner."""
    packed: bytes = b""
    size: int = 0
    """Bytes that it counts for, once it is in the ring."""
    pinned_by: str = ""
    """The key of whoever pinned it."""

    def measure(self) -> int:
        self.size = self.row.size + len(self.packed)
        return self.size


class Ring:
    """Turns in the order in which they ended."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[str, Kept] = OrderedDict()
        self._pinned: OrderedDict[str, Kept] = OrderedDict()
        self._changes: list[tuple[int, str]] = []
        self.seq = 0
        self.size = 0
        self.sizes: Counter[str] = Counter()
        """Bytes by key."""
        self.pinned_sizes: Counter[str] = Counter()
        """Bytes by the key of whoever pinned them."""

    def __len__(self) -> int:
        return len(self._turns) + len(self._pinned)

    def __iter__(self) -> Iterator[Kept]:
        yield from self._pinned.values()
        yield from self._turns.values()

    def get(self, id: str) -> Kept | None:
        return self._turns.get(id) or self._pinned.get(id)

    def add(self, turns: Iterable[Kept]) -> None:
        """Keep turns, whose whole may follow."""
        for kept in turns:
            self._turns[kept.row.id] = kept
            self._grow(kept.row.key, kept.measure())
            self._changed(kept.row)
        self._shrink()

    def fill(self, kept: Kept, packed: bytes, *, is_cut: bool = False) -> None:
        """The content of a turn whose row is here already; empty if it could not be prepared."""
        row = kept.row
        if not packed:
            row.kept = "failed"
        elif len(packed) > self._limit // 4:
            row.kept = "large"
        else:
            row.kept = "cut" if is_cut else "whole"
        if self.get(row.id) is not kept:
            return
        if row.kept in ("cut", "whole"):
            before, kept.packed = kept.size, packed
            grown = kept.measure() - before
            self._grow(row.key, grown)
            if row.pinned:
                self.pinned_sizes[kept.pinned_by] += grown
        self._changed(row)
        self._shrink()

    def pin(self, id: str, by: str = "", share: float = 1.0) -> bool:
        """Keep a turn longer than others; False if there is no room for more of those, or if who asks has used up their
        share of it."""
        kept = self._turns.get(id)
        if kept is None:
            return id in self._pinned
        room = self._limit // 2
        if self.pinned_sizes.total() + kept.size > room or self.pinned_sizes[by] + kept.size > room * share:
            return False
        self._pinned[id] = self._turns.pop(id)
        self.pinned_sizes[by] += kept.size
        kept.row.pinned, kept.pinned_by = True, by
        self._changed(kept.row)
        return True

    def unpin(self, id: str) -> None:
        kept = self._pinned.pop(id, None)
        if kept is not None:
            self._turns[id] = kept
            self._turns.move_to_end(id, last=False)
            self.pinned_sizes[kept.pinned_by] -= kept.size
            kept.row.pinned = False
            self._changed(kept.row)

    def since(self, seq: int, most: int, size: int = sys.maxsize) -> list[Row]:
        """The rows that changed after this number, the earliest changes first: at most so many, with so many bytes."""
        found: list[Row] = []
        for index in range(bisect_left(self._changes, (seq + 1, "")), len(self._changes)):
            number, id = self._changes[index]
            kept = self.get(id)
            if kept is not None and kept.row.seq == number:
                found.append(kept.row)
                size -= kept.row.size
                if len(found) == most or size < 0:
                    break
        return found

    def now(self) -> int:
        """A number between all changes so far and those that come: the clock's microseconds."""
        self.seq = max(self.seq + 1, time_ns() // 1000)
        return self.seq

    def _changed(self, row: Row) -> None:
        row.seq = self.now()
        self._changes.append((self.seq, row.id))
        if len(self._changes) > 4 * len(self) + 100:
            self._changes = [(number, id) for number, id in self._changes if self._is_current(number, id)]

    def _is_current(self, number: int, id: str) -> bool:
        kept = self.get(id)
        return kept is not None and kept.row.seq == number

    def _shrink(self) -> None:
        while self.size > self._limit and self._turns:
            _, kept = self._turns.popitem(last=False)
            self._drop(kept)

    def _drop(self, kept: Kept | None) -> None:
        if kept is not None:
            self._grow(kept.row.key, -kept.size)

    def _grow(self, key: str, size: int) -> None:
        self.size += size
        self.sizes[key] += size
