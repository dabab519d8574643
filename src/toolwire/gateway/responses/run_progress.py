"""The progress of an unfinished run, rebuilt from its committed events: complete items and items cut off."""

from typing import Any

import msgspec

from toolwire.core.cache import TenantCache
from toolwire.gateway.responses.run_log import cut_chunk
from toolwire.memory.sql.store import Store
from toolwire.memory.store import Follow, Record

MAX_READ_BYTES = 1024 * 1024
"""Maximum bytes of events that one query returns."""
CACHE_BYTES = 16 * 1024 * 1024
"""Maximum bytes of events whose items are cached between polls."""

_LISTS = {"content_index": "content", "summary_index": "summary"}
_DELTA_FIELDS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "text",
    "response.reasoning_summary_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
"""The field that the deltas of each type extend, in a part of the item or in the item itself."""

_NOTHING = msgspec.Raw(b"")


class _Event(msgspec.Struct):
    type: str
    output_index: int = -1
    item: msgspec.Raw = _NOTHING
    part: msgspec.Raw = _NOTHING
    delta: Any = None
    content_index: int | None = None
    summary_index: int | None = None

    @property
    def part_key(self) -> tuple[str, int]:
        """The item's list that holds the part, and the part's index there; the item itself has neither."""
        for name, parts in _LISTS.items():
            index = getattr(self, name)
            if index is not None:
                return parts, index
        return "", 0


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _OpenItem:
    """An item that was added and is not done."""

    def __init__(self, item: msgspec.Raw) -> None:
        self._item = _decode_object(item)
        self._parts: dict[tuple[str, int], dict[str, Any]] = {}
        self._texts: dict[tuple[tuple[str, int], str], list[str]] = {}

    def feed(self, event: _Event) -> None:
        if event.part:
            self._parts[event.part_key] = _decode_object(event.part)
        elif event.type in _DELTA_FIELDS and isinstance(event.delta, str):
            self._texts.setdefault((event.part_key, _DELTA_FIELDS[event.type]), []).append(event.delta)

    def cut_off(self) -> msgspec.Raw:
        """The item as it is now, marked as incomplete."""
        item: dict[str, Any] = {**self._item, "status": "incomplete"}
        for (key, field), texts in self._texts.items():
            holder = self._parts.get(key) if key[0] else item
            if holder is not None:
                holder[field] = "".join(texts)
        for name in _LISTS.values():
            parts = [self._parts[key] for key in sorted(self._parts) if key[0] == name]
            if parts:
                item[name] = parts
        return msgspec.Raw(msgspec.json.encode(item))


class LoggedItems:
    """The output items of a response, from the events of its log in order."""

    def __init__(self) -> None:
        self._complete: dict[int, msgspec.Raw] = {}
        self._open: dict[int, _OpenItem] = {}

    def feed(self, frames: bytes) -> None:
        """Process the next events, in the form that clients receive."""
        for line in frames.split(b"\n"):
            if not line.startswith(b"data: {"):
                continue
            event = _decode_event(line[6:])
            if event.type == "response.output_item.added" and event.item:
                self._open[event.output_index] = _OpenItem(event.item)
            elif event.type == "response.output_item.done" and event.item:
                self._open.pop(event.output_index, None)
                self._complete[event.output_index] = event.item.copy()
            elif event.output_index in self._open:
                self._open[event.output_index].feed(event)

    @property
    def is_empty(self) -> bool:
        return not (self._complete or self._open)

    @property
    def complete_items(self) -> list[msgspec.Raw]:
        return [self._complete[index] for index in sorted(self._complete)]

    @property
    def all_items(self) -> list[msgspec.Raw]:
        """All items; the open ones are cut off."""
        items = {**self._complete, **{index: item.cut_off() for index, item in self._open.items()}}
        return [items[index] for index in sorted(items)]


class Progress(msgspec.Struct, frozen=True):
    """The progress of a run, according to its committed events."""

    events: int = 0
    items: LoggedItems = msgspec.field(default_factory=LoggedItems)
    size: int = 0
    """Bytes of these events."""


async def read_progress(store: Store, owner: str, id: str, known: Progress | None = None) -> Progress:
    """Read the progress of a run. The events of `known` are not read again, and its items are updated in place."""
    known = known or Progress()
    items, number, size = known.items, known.events, known.size
    while True:
        [followed] = await store.follow([Follow(owner, id, number)], MAX_READ_BYTES)
        if not followed.chunks:
            return Progress(number, items, size)
        for chunk in followed.chunks:
            frames = cut_chunk(chunk, number).frames
            number = chunk.first + chunk.count
            size += len(frames)
            items.feed(frames)


class ProgressCache:
    """The progress of runs that clients poll: each poll reads only what is new."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: TenantCache[tuple[str, str], Progress] = TenantCache(CACHE_BYTES)

    async def read(self, owner: str, id: str) -> Progress:
        known = self._known.get((owner, id))
        self._known.pop((owner, id))  # its items are about to change: a concurrent poll starts from the beginning
        progress = await read_progress(self._store, owner, id, known)
        self._known.put(owner, (owner, id), progress, progress.size)
        return progress


def encode_unfinished(record: Record, progress: Progress) -> bytes:
    """An unfinished response as it is now."""
    status = "in_progress" if progress.events else record.status
    fields = _decode_fields(record.response)
    return msgspec.json.encode({**fields, "status": status, "output": progress.items.complete_items})
