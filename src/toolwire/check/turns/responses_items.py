"""The items of a Responses stream, from their announcement to their end."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolwire.check.turns.loose import Json, as_object, as_objects, as_text, shown
from toolwire.check.turns.rule import Finding


class Text(msgspec.Struct, frozen=True):
    """Where text that arrives in deltas belongs: a field of the item, or of a part that lives within a list of it."""

    item: str
    field: str
    within: str = ""
    part: str = ""


TEXTS = {
    "response.output_text": Text("message", "text", "content", "output_text"),
    "response.refusal": Text("message", "refusal", "content", "refusal"),
    "response.reasoning_text": Text("reasoning", "text", "content", "reasoning_text"),
    "response.reasoning_summary_text": Text("reasoning", "text", "summary", "summary_text"),
    "response.function_call_arguments": Text("function_call", "arguments"),
    "response.custom_tool_call_input": Text("custom_tool_call", "input"),
}
PARTS = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
INDEXES = {"content": "content_index", "summary": "summary_index"}
ANNOTATION = "response.output_text.annotation"
CALLS = {text.item: text.field for text in TEXTS.values() if not text.within}
GROWING = {text.item for text in TEXTS.values()}
KEPT = ("type", "id", "call_id", "name", "role")

CLOSINGS = ("response.completed", "response.failed", "response.incomplete")
STATUSES = {
    "response.created": "in_progress",
    "response.queued": "queued",
    "response.in_progress": "in_progress",
    "response.completed": "completed",
    "response.failed": "failed",
    "response.incomplete": "incomplete",
}
ITEM_EVENTS = {
    "response.output_item.added",
    "response.output_item.done",
    f"{ANNOTATION}.added",
    *{f"{stem}.{verb}" for stem in PARTS for verb in ("added", "done")},
    *{f"{stem}.{verb}" for stem in TEXTS for verb in ("delta", "done")},
}
CORE = {*STATUSES, *ITEM_EVENTS, "error"}

HOSTED = tuple(
    f"response.{name}."
    for name in (
        "code_interpreter_call",
        "code_interpreter_call_code",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_call_arguments",
        "mcp_list_tools",
        "shell_call_command",
        "shell_call_output_content",
        "web_search_call",
    )
)
"""Hosted tools tell about an item too, in events of their own."""
EXTRA = re.compile(r"ping|response\.required_action|[a-z0-9_-]+:[a-z0-9_.-]+")
"""The events that a stream has only on request: two bare names, or any name behind its maker's prefix."""


class Event(msgspec.Struct, frozen=True):
    """One event of the stream."""

    place: int
    name: str | None
    data: Json

    @property
    def type(self) -> str:
        return str(self.data.get("type"))

    @property
    def stem(self) -> str:
        return self.type.rpartition(".")[0]

    @property
    def verb(self) -> str:
        return self.type.rpartition(".")[2]

    @property
    def is_closing(self) -> bool:
        return self.type in CLOSINGS

    def inner(self, key: str) -> Json:
        """An object in the event, empty if it is not one."""
        return as_object(self.data.get(key))

    def breaks(self, rule: str, says: str) -> Finding:
        return broken(rule, f"{self} {says}", self)

    def __str__(self) -> str:
        return f"event {self.place} ({self.type})"


def broken(rule: str, says: str, *events: Event) -> Finding:
    return Finding(f"responses.{rule}", says[:1].upper() + says[1:], tuple(event.place for event in events))


class Output:
    """All items of one response, by output index."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self._ids: list[Any] = []
        self._call_ids: list[Any] = []

    def read(self, events: Sequence[Event]) -> Iterator[Finding]:
        for event in events:
            if event.type == "response.output_item.added":
                yield from self._add(event)
            elif event.type in ITEM_EVENTS or event.type.startswith(HOSTED):
                yield from self._see(event)
        closing = next((event for event in reversed(events) if event.is_closing), None)
        yield from self._all_closed(closing)
        if closing is not None:
            yield from self._incomplete_only_at_the_end(closing)
            yield from self._final_output(closing)

    def _add(self, event: Event) -> Iterator[Finding]:
        index, item = event.data.get("output_index"), Item(event)
        if type(index) is not int or index in self._items:
            yield event.breaks("output-index", f"announces index {index!r}, which is taken or no number.")
            return
        if index != len(self._items):
            yield event.breaks("output-index", f"announces index {index} where {len(self._items)} is next.")
        self._items[index] = item
        yield from item.begin(event)
        yield from self._unique(event)

    def _unique(self, event: Event) -> Iterator[Finding]:
        item = event.inner("item")
        if item.get("id") in self._ids:
            yield event.breaks("item-id", f"repeats the id {item.get('id')!r} of another item.")
        self._ids.append(item.get("id"))
        if str(item.get("type")) in CALLS:
            if item.get("call_id") in self._call_ids:
                yield event.breaks("call-id", f"repeats the call id {item.get('call_id')!r} of another call.")
            self._call_ids.append(item.get("call_id"))

    def _see(self, event: Event) -> Iterator[Finding]:
        index = event.data.get("output_index")
        item = self._items.get(index) if type(index) is int else None
        if item is None:
            yield event.breaks("item-added", f"is about index {index!r}, which was not announced.")
        else:
            yield from item.see(event)

    def _all_closed(self, closing: Event | None) -> Iterator[Finding]:
        """Every item is closed. Only a failure leaves one open: it is in the final output, as incomplete."""
        failed = closing is not None and closing.type == "response.failed"
        output = as_objects(closing.inner("response").get("output")) if closing is not None else []
        for index, item in self._items.items():
            if item.closed is None:
                final = output[index] if 0 <= index < len(output) else {}
                if failed and final.get("status") in ("incomplete", "failed"):
                    continue
                yield broken("item-closed", f"the item at index {index} has no output_item.done.")

    def _incomplete_only_at_the_end(self, closing: Event) -> Iterator[Finding]:
        for index, item in self._items.items():
            if item.closed is None or item.closed.get("status") != "incomplete":
                continue
            if index != max(self._items):
                yield broken("incomplete-item", f"the item at index {index} is incomplete and not the last.")
            if closing.type == "response.completed":
                yield broken("incomplete-item", f"the item at index {index} is incomplete, the response is not.")

    def _final_output(self, closing: Event) -> Iterator[Finding]:
        output = as_objects(closing.inner("response").get("output"))
        if len(output) != len(self._items):
            yield broken(
                "final-output", f"{len(self._items)} items were announced, {closing} has {len(output)}.", closing
            )
        for index, item in self._items.items():
            final = output[index] if 0 <= index < len(output) else None
            if item.closed is not None and item.closed != final:
                yield broken("final-output", f"item {index} of {closing} differs from its output_item.done.", closing)


def item_faults(item: Json) -> Iterator[tuple[str, str]]:
    """What is wrong with an item in whichever state, streamed or not."""
    kind = str(item.get("type"))
    needed = ["id", "type", *(["call_id", "name"] if kind in CALLS else []), *(["role"] if kind == "message" else [])]
    for key in needed:
        if not as_text(item.get(key)):
            yield "item-keys", f"has the {key} {shown(item.get(key))}."
    if kind in CALLS and item.get("id") == item.get("call_id"):
        yield "call-id", "has the same id and call_id."
    if kind in CALLS and not isinstance(item.get(CALLS[kind]), str):
        yield "arguments-string", f"has the {CALLS[kind]} {shown(item.get(CALLS[kind]))}."


class Piece:
    """Text that grows: it takes deltas while open, is said once, and then its part, if it has one, is closed."""

    def __init__(self, part: Json) -> None:
        self.type = part.get("type")
        self.state = "open"
        self.deltas: list[str] = []
        self.closed: Json | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)


class Item:
    """One item, from its announcement to its end."""

    def __init__(self, added: Event) -> None:
        self.closed: Json | None = None
        self._added = added.inner("item")
        self._type = str(self._added.get("type"))
        self._call = Piece({})
        self._parts: dict[str, list[Piece]] = {within: [] for within in INDEXES}

    def begin(self, event: Event) -> Iterator[Finding]:
        yield from self._keys(event)
        if self._added.get("status") != "in_progress":
            yield event.breaks("item-status", f"says {self._added.get('status')!r}.")
        filled = [key for key in ("content", "summary", *CALLS.values()) if self._added.get(key)]
        if filled and self._type in GROWING:
            yield event.breaks("item-begins-empty", f"has {', '.join(filled)} before any delta.")

    def see(self, event: Event) -> Iterator[Finding]:
        if self.closed is not None:
            yield event.breaks("closed-item", "comes after output_item.done of its item.")
            return
        yield from self._same_item(event)
        if event.type == "response.output_item.done":
            yield from self._close(event)
        elif event.stem in PARTS:
            yield from self._begin_part(event) if event.verb == "added" else self._end_part(event)
        elif event.stem in TEXTS:
            yield from self._text(event, TEXTS[event.stem])
        elif event.stem == ANNOTATION:
            yield from self._annotation(event)

    def _same_item(self, event: Event) -> Iterator[Finding]:
        if event.type == "response.output_item.done" or ("item_id" not in event.data and event.type not in ITEM_EVENTS):
            return
        if event.data.get("item_id") != self._added.get("id"):
            yield event.breaks("item-id", f"has {event.data.get('item_id')!r}, its item has {self._added.get('id')!r}.")

    def _keys(self, event: Event) -> Iterator[Finding]:
        """What every item has, in whichever state."""
        item = event.inner("item")
        for rule, says in item_faults(item):
            yield event.breaks(rule, says)

    def _begin_part(self, event: Event) -> Iterator[Finding]:
        within, part = PARTS[event.stem], event.inner("part")
        parts, index = self._parts[within], event.data.get(INDEXES[within])
        texts = [text for text in TEXTS.values() if text.part == part.get("type")]
        if (self._type, within) not in [(text.item, text.within) for text in texts]:
            yield event.breaks("part-order", f"puts a part of type {part.get('type')!r} into a {self._type}.")
        if self._open_part() is not None:
            yield event.breaks("part-order", "comes before the part before it is closed.")
        if index != len(parts):
            yield event.breaks("part-order", f"has index {index!r} where {len(parts)} is next.")
        if any(part.get(text.field) for text in texts):
            yield event.breaks("part-begins-empty", "has text before any delta.")
        parts.append(Piece(part))

    def _end_part(self, event: Event) -> Iterator[Finding]:
        piece, part = self._piece(event, PARTS[event.stem]), event.inner("part")
        if piece is None or piece.state != "said":
            yield event.breaks("part-order", "does not close a part whose text is done.")
            return
        piece.state, piece.closed = "closed", part
        if part.get("type") != piece.type:
            yield event.breaks("part-order", f"closes a part of type {piece.type!r} as {part.get('type')!r}.")
        elif not any(part.get(text.field) == piece.text for text in TEXTS.values() if text.part == piece.type):
            yield event.breaks("text-agrees", f"has another text than its deltas, {shown(piece.text)}.")

    def _text(self, event: Event, text: Text) -> Iterator[Finding]:
        rule = "part-order" if text.within else "call-order"
        piece = self._piece(event, text.within) if text.within else self._call
        if text.item != self._type or (piece and text.part != (piece.type or "")):
            yield event.breaks(rule, f"does not belong into a {self._type}, or not into this part of it.")
        elif piece is None or piece.state != "open":
            yield event.breaks(rule, "comes before its text was begun or after it was done.")
        elif event.verb == "delta":
            yield from self._delta(event, piece)
        else:
            yield from self._said(event, piece, event.data.get(text.field))

    def _delta(self, event: Event, piece: Piece) -> Iterator[Finding]:
        delta = event.data.get("delta")
        piece.deltas.append(delta if isinstance(delta, str) else "")
        if not isinstance(delta, str):
            yield event.breaks("text-agrees", "has a delta that is no string.")

    def _said(self, event: Event, piece: Piece, value: Any) -> Iterator[Finding]:
        piece.state = "said"
        if self._type in CALLS and not isinstance(value, str):
            yield event.breaks("arguments-string", f"has no string as its {CALLS[self._type]}.")
        elif self._type in CALLS and value and not piece.deltas:
            yield event.breaks("call-order", "comes without a delta before it.")
        elif value != piece.text:
            yield event.breaks("text-agrees", f"says {shown(value)}, its deltas {shown(piece.text)}.")
        if self._type in CALLS and event.data.get("name", self._added.get("name")) != self._added.get("name"):
            yield event.breaks("item-identity", f"has the name {event.data['name']!r}.")

    def _annotation(self, event: Event) -> Iterator[Finding]:
        piece = self._piece(event, "content")
        if piece is None or piece.type != "output_text" or piece.state == "closed":
            yield event.breaks("part-order", "is not inside a part with text.")

    def _close(self, event: Event) -> Iterator[Finding]:
        self.closed = event.inner("item")
        yield from self._keys(event)
        yield from self._same_identity(event)
        yield from self._end_status(event)
        yield from self._call_agrees(event) if self._type in CALLS else self._parts_agree(event)

    def _same_identity(self, event: Event) -> Iterator[Finding]:
        item = event.inner("item")
        for key in KEPT:
            if item.get(key) != self._added.get(key):
                yield broken(
                    "item-identity",
                    f"{event} has the {key} {shown(item.get(key))} after {self._added.get(key)!r}.",
                    event,
                )

    def _end_status(self, event: Event) -> Iterator[Finding]:
        status = event.inner("item").get("status")
        # Hosted tools may fail by themselves; Open Responses does not describe them.
        ends = ("completed", "incomplete") if self._type in GROWING else ("completed", "incomplete", "failed")
        if status not in ends:
            yield event.breaks("item-status", f"says {status!r}.")

    def _call_agrees(self, event: Event) -> Iterator[Finding]:
        item, field = event.inner("item"), CALLS[self._type]
        # Nobody has to declare half a call done: an incomplete one may lack the event.
        if self._call.state != "said" and item.get("status") != "incomplete":
            yield event.breaks("call-order", f"comes before the {field} are done.")
        if item.get(field) != self._call.text:
            yield broken(
                "text-agrees",
                f"{event} has the {field} {shown(item.get(field))}, its deltas {shown(self._call.text)}.",
                event,
            )

    def _parts_agree(self, event: Event) -> Iterator[Finding]:
        if self._open_part() is not None:
            yield event.breaks("part-order", "comes while a part is open.")
        if self._type not in GROWING:
            return
        for within, pieces in self._parts.items():
            parts = as_objects(event.inner("item").get(within))
            if len(parts) != len(pieces):
                yield broken(
                    "text-agrees",
                    f"{event} has {len(parts)} parts in {within}, the stream told of {len(pieces)}.",
                    event,
                )
            for piece, part in zip(pieces, parts, strict=False):
                if piece.closed is not None and piece.closed != part:
                    yield event.breaks("text-agrees", f"has another part in {within} than the one that was closed.")

    def _open_part(self) -> Piece | None:
        return next((piece for pieces in self._parts.values() for piece in pieces if piece.state != "closed"), None)

    def _piece(self, event: Event, within: str) -> Piece | None:
        index, pieces = event.data.get(INDEXES[within]), self._parts[within]
        return pieces[index] if type(index) is int and 0 <= index < len(pieces) else None
