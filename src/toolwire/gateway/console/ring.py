"""What the console keeps: rows and whole turns in memory, bounded in bytes, the oldest leaving first.

A turn that somebody pinned stays, as long as pinned turns take no more than half of the room.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

import msgspec

from toolwire.gateway.console.rows import Row


class Kept(msgspec.Struct, gc=False):
    """A row, and the whole turn behind it as `keep.py` packs it; empty if only the facts are kept."""

    row: Row
    owner: str
    """Whose turn it was; what is stored for it belongs to that owner."""
    packed: bytes = b""
    size: int = 0
    """Bytes that it counts for, once it is in the ring."""

    def measure(self) -> int:
        self.size = self.row.size + len(self.packed)
        return self.size


class Ring:
    """Turns in the order in which they ended."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[str, Kept] = OrderedDict()
        self._pinned: OrderedDict[str, Kept] = OrderedDict()
        self._changes: deque[tuple[int, str]] = deque()
        self.seq = 0
        self.size = 0
        self.pinned_size = 0

    def __len__(self) -> int:
        return len(self._turns) + len(self._pinned)

    def __iter__(self) -> Iterator[Kept]:
        yield from self._pinned.values()
        yield from self._turns.values()

    def get(self, id: str) -> Kept | None:
        return self._turns.get(id) or self._pinned.get(id)

    def add(self, kept: Kept) -> None:
        """Keep a turn, whose whole may follow."""
        self._turns[kept.row.id] = kept
        self.size += kept.measure()
        self._changed(kept.row)
        if self.size > self._limit:
            self._shrink()

    def fill(self, kept: Kept, packed: bytes) -> None:
        """The whole of a turn whose row is here already."""
        if self.get(kept.row.id) is not kept:
            return
        before = kept.size
        if len(packed) <= self._limit // 4:
            kept.packed = packed
            kept.row.kept = "whole"
        else:
            kept.row.kept = "facts"
        grown = kept.measure() - before
        self.size += grown
        if kept.row.pinned:
            self.pinned_size += grown
        self._changed(kept.row)
        self._shrink()

    def pin(self, id: str) -> bool:
        """Keep a turn longer than others; False if there is no room for more of those."""
        kept = self._turns.get(id)
        if kept is None:
            return id in self._pinned
        if self.pinned_size + kept.size > self._limit // 2:
            return False
        self._pinned[id] = self._turns.pop(id)
        self.pinned_size += kept.size
        kept.row.pinned = True
        self._changed(kept.row)
        return True

    def unpin(self, id: str) -> None:
        kept = self._pinned.pop(id, None)
        if kept is not None:
            self._turns[id] = kept
            self.pinned_size -= kept.size
            kept.row.pinned = False
            self._changed(kept.row)

    def since(self, seq: int, most: int) -> list[Row]:
        """The rows that changed after this number, the earliest changes first, at most so many."""
        found: list[Row] = []
        for number, id in reversed(self._changes):
            if number <= seq:
                break
            kept = self.get(id)
            if kept is not None and kept.row.seq == number:
                found.append(kept.row)
        return found[::-1][:most]

    def clear(self, ids: Iterable[str]) -> None:
        """Forget these turns."""
        for id in ids:
            self.unpin(id)
            self._drop(self._turns.pop(id, None))

    def _changed(self, row: Row) -> None:
        self.seq += 1
        row.seq = self.seq
        self._changes.append((self.seq, row.id))
        if len(self._changes) > 4 * len(self) + 100:
            current = [(number, id) for number, id in self._changes if self._is_current(number, id)]
            self._changes = deque(current)

    def _is_current(self, number: int, id: str) -> bool:
        kept = self.get(id)
        return kept is not None and kept.row.seq == number

    def _shrink(self) -> None:
        while self.size > self._limit and self._turns:
            _, kept = self._turns.popitem(last=False)
            self._drop(kept)

    def _drop(self, kept: Kept | None) -> None:
        if kept is not None:
            self.size -= kept.size
