"""The items of a Responses stream, from their announcement to their end."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, shown
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
OPAQUE = "encrypted_content"
"""OpenAI seals a thought anew each time that it tells it."""

ENDED = ("completed", "incomplete", "failed")

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
KEEPALIVE = "keepalive"
"""OpenAI sends it while a model thinks for long, and describes it nowhere."""
AUDIO = {f"response.audio.{each}" for each in ("delta", "done", "transcript.delta", "transcript.done")}
CORE = {*STATUSES, *ITEM_EVENTS, *AUDIO, "error", KEEPALIVE}

HOSTED = tuple(
    f"response.{name}."
    for name in (
        "apply_patch_call_operation_diff",
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
        return as_text(self.data.get("type"))

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
    """All items of one response, in the order of their announcement."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._indexes: dict[int, Item] = {}
        """By the index that they were announced with."""
        self._ids: dict[str, Item] = {}

    def read(self, events: Sequence[Event]) -> Iterator[Finding]:
        for event in events:
            if event.type == "response.output_item.added":
                yield from self._add(event)
            elif event.type in ITEM_EVENTS or event.type.startswith(HOSTED):
                yield from self._see(event)
        closing = next((event for event in reversed(events) if event.is_closing), None)
        if closing is not None:
            yield from self._incomplete_only_at_the_end(closing)
        if closing is not None and closing.type == "response.failed":
            yield from self._failed_output(closing)
            return
        yield from self._all_closed(events[-1:])
        if closing is not None:
            yield from self._final_output(closing)

    def _add(self, event: Event) -> Iterator[Finding]:
        """An item with a wrong index is read like any other, as the next one: the index alone is wrong then."""
        index, id = as_number(event.data.get("output_index")), as_text(event.inner("item").get("id"))
        if index != len(self._items):
            told = shown(event.data.get("output_index"))
            yield event.breaks("output-index", f"announces index {told} where {len(self._items)} is next.")
            if id in self._ids or (not id and index in self._indexes):
                return
        item = Item(event, len(self._items))
        self._items.append(item)
        if index is not None:
            self._indexes.setdefault(index, item)
        yield from item.begin(event)
        if id in self._ids:
            yield event.breaks("item-id", f"repeats the id {id!r} of another item.")
        if id:
            self._ids.setdefault(id, item)

    def _see(self, event: Event) -> Iterator[Finding]:
        """Items are found by their index. One that has the id of the event is meant where the index cannot be right."""
        named = self._ids.get(as_text(event.data.get("item_id")) or as_text(event.inner("item").get("id")))
        item = self._at(as_number(event.data.get("output_index")))
        if named is not None and item is not named and (item is None or not item.takes(event)):
            says = f"is about index {shown(event.data.get('output_index'))}, its item is at {named.index}."
            yield event.breaks("output-index", says)
            item = named
        if item is None:
            says = f"is about index {shown(event.data.get('output_index'))}, which was not announced."
            yield event.breaks("item-added", says)
        else:
            yield from item.see(event)

    def _at(self, index: int | None) -> "Item | None":
        """The item with this index, announced so or counted so."""
        if index is None or index in self._indexes:
            return self._indexes.get(index) if index is not None else None
        return self._items[index] if 0 <= index < len(self._items) else None

    def _all_closed(self, last: Sequence[Event]) -> Iterator[Finding]:
        for index, item in enumerate(self._items):
            if item.closed is None:
                says = f"the item at index {index} has no output_item.done."
                yield broken("item-closed", says, item.added, *last)

    def _incomplete_only_at_the_end(self, closing: Event) -> Iterator[Finding]:
        last = len(self._items) - 1
        for index, item in enumerate(self._items):
            if item.closed is None or item.closed.inner("item").get("status") != "incomplete":
                continue
            if index != last:
                says = f"the item at index {index} is incomplete and not the last."
                yield broken("incomplete-item", says, item.closed)
            if closing.type == "response.completed":
                says = f"the item at index {index} is incomplete, the response is not."
                yield broken("incomplete-item", says, item.closed, closing)

    def _final_output(self, closing: Event) -> Iterator[Finding]:
        output = as_objects(closing.inner("response").get("output"))
        if len(output) != len(self._items):
            says = f"{len(self._items)} items were announced, {closing} has {len(output)}."
            yield broken("final-output", says, closing)
        for index, item in enumerate(self._items):
            final = output[index] if 0 <= index < len(output) else {}
            if item.closed is not None and not item.is_told_by(final):
                says = f"item {index} of {closing} differs from its output_item.done."
                yield broken("final-output", says, item.closed, closing)

    def _failed_output(self, closing: Event) -> Iterator[Finding]:
        """A failure may leave an item open: it is told as incomplete."""
        output = as_objects(closing.inner("response").get("output"))
        if len(output) > len(self._items):
            yield closing.breaks("failed-output", f"has {len(output)} items, {len(self._items)} were announced.")
        for index, item in enumerate(self._items):
            final = output[index] if 0 <= index < len(output) else {}
            half = item.closed is None and final.get("status") in ("incomplete", "failed")
            if not half and (item.closed is None or not item.is_told_by(final)):
                says = f"item {index} is not in {closing} as it was told."
                yield broken("failed-output", says, item.added, closing)


def item_faults(item: Json) -> Iterator[tuple[str, str]]:
    """What is wrong with an item in whichever state, streamed or not."""
    kind = as_text(item.get("type"))
    needed = ["id", "type", *(["call_id", "name"] if kind in CALLS else []), *(["role"] if kind == "message" else [])]
    for key in needed:
        if not as_text(item.get(key)):
            yield "item-keys", f"has the {key} {shown(item.get(key))}."
    if kind in CALLS and as_text(item.get("id")) and item.get("id") == item.get("call_id"):
        yield "call-id", f"has {shown(item.get('id'))} as its id and its call_id."
    if kind in CALLS and not isinstance(item.get(CALLS[kind]), str):
        yield "arguments-string", f"has the {CALLS[kind]} {shown(item.get(CALLS[kind]))}."


def part_faults(item: Json) -> Iterator[tuple[str, str]]:
    """What is wrong with the text of a message that is done."""
    for part in as_objects(item.get("content")) if item.get("type") == "message" else ():
        if part.get("type") == "output_text" and not isinstance(part.get("annotations"), list):
            yield "part-keys", f"has the annotations {shown(part.get('annotations'))}."


class Piece:
    """Text that grows: it takes deltas while open, is said once, and then its part, if it has one, is closed."""

    def __init__(self, part: Json) -> None:
        self.type = part.get("type")
        self.state = "open"
        self.deltas: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    def is_told_by(self, part: Json) -> bool:
        """Whether a part has the type and the text of this one."""
        fields = [text.field for text in TEXTS.values() if text.part == self.type]
        return part.get("type") == self.type and any(part.get(field) == self.text for field in fields)


class Item:
    """One item, from its announcement to its end."""

    def __init__(self, added: Event, index: int) -> None:
        self.added = added
        self.index = index
        self.closed: Event | None = None
        self._added = added.inner("item")
        self._type = as_text(self._added.get("type"))
        self._call = Piece({})
        self._parts: dict[str, list[Piece]] = {within: [] for within in INDEXES}
        self._open = 0
        """How many parts are open."""

    def begin(self, event: Event) -> Iterator[Finding]:
        yield from self._keys(event)
        yield from self._begin_status(event)
        filled = [key for key in ("content", "summary", *CALLS.values()) if self._added.get(key)]
        if filled and self._type in GROWING:
            yield event.breaks("item-begins-empty", f"has {', '.join(filled)} before any delta.")

    def takes(self, event: Event) -> bool:
        """Whether an event can be about this item: it is open, and of the kind."""
        kind = TEXTS[event.stem].item if event.stem in TEXTS else as_text(event.inner("item").get("type"))
        return self.closed is None and kind in ("", self._type)

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
            says = f"has {shown(event.data.get('item_id'))}, its item has {shown(self._added.get('id'))}."
            yield event.breaks("item-id", says)

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
            yield event.breaks("part-order", f"puts a part of type {shown(part.get('type'))} into a {self._type}.")
        if self._open:
            yield event.breaks("part-order", "comes before the part before it is closed.")
        if as_number(index) != len(parts):
            yield event.breaks("part-order", f"has index {shown(index)} where {len(parts)} is next.")
        if any(part.get(text.field) for text in texts):
            yield event.breaks("part-begins-empty", "has text before any delta.")
        parts.append(Piece(part))
        self._open += 1

    def _end_part(self, event: Event) -> Iterator[Finding]:
        piece, part = self._piece(event, PARTS[event.stem]), event.inner("part")
        if piece is None or piece.state != "said":
            yield event.breaks("part-order", "does not close a part whose text is done.")
            return
        piece.state = "closed"
        self._open -= 1
        if part.get("type") != piece.type:
            yield event.breaks("part-order", f"closes a part of type {shown(piece.type)} as {shown(part.get('type'))}.")
        elif not piece.is_told_by(part):
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
            yield event.breaks("item-identity", f"has the name {shown(event.data['name'])}.")

    def _annotation(self, event: Event) -> Iterator[Finding]:
        piece = self._piece(event, "content")
        if piece is None or piece.type != "output_text" or piece.state == "closed":
            yield event.breaks("part-order", "is not inside a part with text.")

    def _close(self, event: Event) -> Iterator[Finding]:
        self.closed = event
        yield from self._keys(event)
        yield from self._same_identity(event)
        yield from self._end_status(event)
        for rule, says in part_faults(event.inner("item")):
            yield event.breaks(rule, says)
        yield from self._call_agrees(event) if self._type in CALLS else self._parts_agree(event)

    def _same_identity(self, event: Event) -> Iterator[Finding]:
        item = event.inner("item")
        for key in KEPT:
            if item.get(key) != self._added.get(key):
                says = f"has the {key} {shown(item.get(key))} after {shown(self._added.get(key))}."
                yield event.breaks("item-identity", says)

    def _begin_status(self, event: Event) -> Iterator[Finding]:
        status = event.inner("item").get("status")
        sound = status == "in_progress" if self._type in GROWING else status not in ENDED
        if not sound and not self._needs_no(status):
            yield event.breaks("item-status", f"says {shown(status)}.")

    def _end_status(self, event: Event) -> Iterator[Finding]:
        """Hosted tools may fail by themselves, or say `generating` to the end: no specification describes them."""
        status = event.inner("item").get("status")
        sound = status in ("completed", "incomplete") if self._type in GROWING else status != "in_progress"
        if not sound and not self._needs_no(status):
            yield event.breaks("item-status", f"says {shown(status)}.")

    def _needs_no(self, status: Any) -> bool:
        """OpenAI's reasoning has no status."""
        return status is None and self._type == "reasoning"

    def _call_agrees(self, event: Event) -> Iterator[Finding]:
        item, field = event.inner("item"), CALLS[self._type]
        # Nobody has to declare half a call done: an incomplete one may lack the event.
        if self._call.state != "said" and item.get("status") != "incomplete":
            yield event.breaks("call-order", f"comes before the {field} are done.")
        if item.get(field) != self._call.text:
            says = f"has the {field} {shown(item.get(field))}, its deltas {shown(self._call.text)}."
            yield event.breaks("text-agrees", says)

    def _parts_agree(self, event: Event) -> Iterator[Finding]:
        if self._open:
            yield event.breaks("part-order", "comes while a part is open.")
        if self._type not in GROWING:
            return
        for within, pieces in self._parts.items():
            parts = as_objects(event.inner("item").get(within))
            if len(parts) != len(pieces):
                says = f"has {len(parts)} parts in {within}, the stream told of {len(pieces)}."
                yield event.breaks("text-agrees", says)
            for piece, part in zip(pieces, parts, strict=False):
                if piece.state == "closed" and not piece.is_told_by(part):
                    yield event.breaks("text-agrees", f"has another part in {within} than the one that was closed.")

    def _piece(self, event: Event, within: str) -> Piece | None:
        index, pieces = as_number(event.data.get(INDEXES[within])), self._parts[within]
        return pieces[index] if index is not None and 0 <= index < len(pieces) else None

    def is_told_by(self, final: Json) -> bool:
        """Whether an item in the response is this one as it was closed; of hosted tools it is enough to be there."""
        closed = self.closed.inner("item") if self.closed is not None else {}
        if self._type not in GROWING:
            return (closed.get("type"), closed.get("id")) == (final.get("type"), final.get("id"))
        return _unsealed(closed) == _unsealed(final)


def _unsealed(item: Json) -> Json:
    return {key: value for key, value in item.items() if key != OPAQUE}
