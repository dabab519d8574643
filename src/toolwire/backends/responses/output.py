"""Which item of the output is a frame about? Calls have a table of their own; this is about all that can be shown.

Servers name an item by its id, by its place, by both, or by a new id in every event. Some count every item as 0, and
some give several items one id. So an id decides while its item is open; a place decides where the id is new.
"""


class OutputItem:
    """One item: what it is called here, which of its parts were passed on, and how far it has come."""

    __slots__ = ("ended", "heard", "id", "is_announced", "is_listed", "is_told", "name", "place", "type", "whole")

    def __init__(self, id: str, place: int | None) -> None:
        self.id = id
        self.place = place
        self.name = id or place_name(place)
        self.type = ""
        self.heard: set[int] = set()
        self.whole: set[int] = set()  # those of which the end was told
        self.ended = False
        self.is_announced = False
        self.is_listed = False  # it has its entry in the final list
        self.is_told = False  # its end was passed on as it came


def place_name(place: int | None) -> str:
    """What an item is called that has no id: by its place, as no id of a server's can be."""
    return f"@{place}" if place is not None else ""


class Output:
    """The items of one turn."""

    def __init__(self) -> None:
        self._items: list[OutputItem] = []
        self._by_id: dict[str, list[OutputItem]] = {}
        self._by_place: dict[int, OutputItem] = {}
        self._nameless = 0

    @property
    def is_begun(self) -> bool:
        return bool(self._items)

    @property
    def is_cut(self) -> bool:
        """Whether part of a message has begun and not ended."""
        return any(item.heard - item.whole for item in self._items if item.type != "reasoning" and not item.ended)

    def begin(self, type: str, id: str | None, place: int | None) -> OutputItem:
        """An item is announced."""
        item = self.find(id, place)
        if item.is_announced and (item.ended or (item.id, item.place) != (id or "", place)):
            item = self._add(id or "", place)
        item.is_announced = True
        item.type = type
        return item

    def find(self, id: str | None, place: int | None) -> OutputItem:
        """The item that something belongs to, which may be the first that is heard of it."""
        known = self._by_id.get(id or "") if id or place is None else None
        if known is not None and not _is_elsewhere(known[-1], place):
            return known[-1]
        there = self._by_place.get(place) if place is not None else None
        if there is None or (there.ended and id):
            return self._add(id or "", place)
        if id:
            self._by_id.setdefault(id, []).append(there)
        return there

    def end(self, type: str, id: str | None, place: int | None) -> OutputItem:
        """An item is whole."""
        if place is None and not id:
            place = self._nameless  # an item without a name of any kind counts by its turn
            self._nameless += 1
        item = self.find(id, place)
        item.type = type
        return item

    def list(self, type: str, id: str | None, place: int) -> OutputItem:
        """An entry of the final list. Each is an item of its own, whatever it is called."""
        same = self._by_id.get(id) if id else None
        if not same:
            there = self._by_place.get(place)
            same = [there] if there is not None and there.type in ("", type) else ()
        for item in same:
            if not item.is_listed:
                break
        else:
            item = self._add(id or "", place)
        item.is_listed = True
        return item

    def _add(self, id: str, place: int | None) -> OutputItem:
        item = OutputItem(id, place)
        self._items.append(item)
        self._by_id.setdefault(id, []).append(item)
        if place is not None:
            self._by_place[place] = item
        return item


def _is_elsewhere(item: OutputItem, place: int | None) -> bool:
    """Another item with an id that was used before."""
    return item.ended and place is not None and item.place not in (None, place)
