"""The items of a response by the events that show them: those that are complete, and those that were cut off."""

from typing import Any

import msgspec

_LISTS = {"content_index": "content", "summary_index": "summary"}
_FIELDS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "text",
    "response.reasoning_summary_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
"""The field that grows by the deltas of each type, in a part of the item or in the item itself."""


_NOTHING = msgspec.Raw(b"")


class _Event(msgspec.Struct):
    type: str
    output_index: int = -1
    item: msgspec.Raw = _NOTHING
    part: msgspec.Raw = _NOTHING
    delta: Any = None
    content_index: int | None = None
    summary_index: int | None = None


_decode = msgspec.json.Decoder(_Event).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class _OpenItem:
    """An item that was begun, and grows."""

    def __init__(self, item: msgspec.Raw) -> None:
        self._item = _object(item)
        self._parts: dict[tuple[str, int], dict[str, Any]] = {}
        self._texts: dict[tuple[str, int, str], list[str]] = {}

    def add_part(self, place: tuple[str, int], part: msgspec.Raw) -> None:
        self._parts[place] = _object(part)

    def add_text(self, place: tuple[str, int], field: str, text: str) -> None:
        self._texts.setdefault((*place, field), []).append(text)

    def cut_off(self) -> msgspec.Raw:
        """The item as it is when nothing more comes."""
        item: dict[str, Any] = {**self._item, "status": "incomplete"}
        for (list, index, field), pieces in self._texts.items():
            holder = self._parts.get((list, index)) if list else item
            if holder is not None:
                holder[field] = "".join(pieces)
        for list in _LISTS.values():
            parts = [self._parts[place] for place in sorted(self._parts) if place[0] == list]
            if parts:
                item[list] = parts
        return msgspec.Raw(_encode(item))


class ShownItems:
    """Takes the events of a log in, in order."""

    def __init__(self) -> None:
        self._complete: dict[int, msgspec.Raw] = {}
        self._open: dict[int, _OpenItem] = {}

    def feed(self, frames: bytes) -> None:
        """Some events, as they are sent."""
        for line in frames.split(b"\n"):
            if line.startswith(b"data: {"):
                self._see(_decode(line[6:]))

    @property
    def is_empty(self) -> bool:
        """Whether no item was begun."""
        return not (self._complete or self._open)

    @property
    def complete(self) -> list[msgspec.Raw]:
        return [self._complete[index] for index in sorted(self._complete)]

    @property
    def all(self) -> list[msgspec.Raw]:
        """All items, of which the open ones are cut off."""
        items = {**self._complete, **{index: item.cut_off() for index, item in self._open.items()}}
        return [items[index] for index in sorted(items)]

    def _see(self, event: _Event) -> None:
        if event.type == "response.output_item.added" and event.item:
            self._open[event.output_index] = _OpenItem(event.item)
        elif event.type == "response.output_item.done" and event.item:
            self._open.pop(event.output_index, None)
            self._complete[event.output_index] = event.item.copy()
        elif (item := self._open.get(event.output_index)) is not None:
            if event.part:
                item.add_part(_place(event), event.part)
            elif event.type in _FIELDS and isinstance(event.delta, str):
                item.add_text(_place(event), _FIELDS[event.type], event.delta)


def _place(event: _Event) -> tuple[str, int]:
    """Which list of the item, and which part there; the item itself has neither."""
    for name, list in _LISTS.items():
        index = getattr(event, name)
        if index is not None:
            return list, index
    return "", 0
