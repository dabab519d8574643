"""Finds the item of the output that a frame belongs to. (Calls have a table of their own.)

Servers identify an item by its id, by its index, by both, or by a new id in every event. Some give every item the
index 0, and some give several items one id. So an id counts while its item is open; for a new id the index counts.
"""

import msgspec


class TrackedItem(msgspec.Struct, eq=False):
    """One item: its name, which of its parts were delivered, and whether it has ended."""

    id: str
    index: int | None
    name: str = ""
    type: str = ""
    seen_parts: set[int] = set()
    ended_parts: set[int] = set()
    ended: bool = False
    is_announced: bool = False
    is_listed: bool = False
    """It is in the final list."""
    was_forwarded: bool = False
    """The frame that ends it was forwarded."""

    def __post_init__(self) -> None:
        """Name the item by its id, or by `@` and its index, which no server uses as an id."""
        self.name = self.id or (f"@{self.index}" if self.index is not None else "")


class ItemTracker:
    """The items of one turn."""

    def __init__(self) -> None:
        self._items: list[TrackedItem] = []
        self._by_id: dict[str, list[TrackedItem]] = {}
        self._by_index: dict[int, TrackedItem] = {}
        self._unidentified = 0

    @property
    def is_begun(self) -> bool:
        """Whether any item was seen."""
        return bool(self._items)

    @property
    def is_cut(self) -> bool:
        """Whether part of a message has begun and not ended."""
        return any(
            item.seen_parts - item.ended_parts for item in self._items if item.type != "reasoning" and not item.ended
        )

    def begin(self, type: str, id: str | None, index: int | None) -> TrackedItem:
        """The item of an `output_item.added` event."""
        item = self.find(id, index)
        if item.is_announced and (item.ended or (item.id, item.index) != (id or "", index)):
            item = self._add(id or "", index)
        item.is_announced = True
        item.type = type
        return item

    def find(self, id: str | None, index: int | None) -> TrackedItem:
        """The item with this id or index, which is added if it is new."""
        found = self._by_id.get(id or "") if id or index is None else None
        if found is not None:
            last = found[-1]
            is_reused = last.ended and index is not None and last.index not in (None, index)
            if not is_reused:
                return last
        there = self._by_index.get(index) if index is not None else None
        if there is None or (there.ended and id):
            return self._add(id or "", index)
        if id:
            self._by_id.setdefault(id, []).append(there)
        return there

    def end(self, type: str, id: str | None, index: int | None) -> TrackedItem:
        """The item of an `output_item.done` event."""
        if index is None and not id:
            index = self._unidentified  # items without id and index are numbered in order
            self._unidentified += 1
        item = self.find(id, index)
        item.type = type
        return item

    def find_listed(self, type: str, id: str | None, index: int) -> TrackedItem:
        """The item of an entry of the final list. Each entry is an item of its own, whatever its id."""
        same = self._by_id.get(id) if id else None
        if not same:
            there = self._by_index.get(index)
            same = [there] if there is not None and there.type in ("", type) else ()
        for item in same:
            if not item.is_listed:
                break
        else:
            item = self._add(id or "", index)
        item.is_listed = True
        return item

    def _add(self, id: str, index: int | None) -> TrackedItem:
        item = TrackedItem(id, index)
        self._items.append(item)
        self._by_id.setdefault(id, []).append(item)
        if index is not None:
            self._by_index[index] = item
        return item
