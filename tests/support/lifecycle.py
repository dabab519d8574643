"""A strict reader of one finished Responses stream: it says which rules of the protocol the stream broke.

Every complaint reads `rule: sentence`. The rules are those of Open Responses and the habits of the original service on
which clients rely. The reader trusts nothing: a missing or misshapen field is a complaint, never an exception.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import dropwhile
from typing import Any

import msgspec
from openai.types.responses import ResponseStreamEvent

from tests.support.schemas import models, type_names

Json = dict[str, Any]


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
ITEM_EVENTS = {"response.output_item.added", "response.output_item.done", f"{ANNOTATION}.added"}
ITEM_EVENTS |= {f"{stem}.{verb}" for stem in PARTS for verb in ("added", "done")}
ITEM_EVENTS |= {f"{stem}.{verb}" for stem in TEXTS for verb in ("delta", "done")}
CORE = {*STATUSES, *ITEM_EVENTS, "error"}

# Hosted tools tell about an item too, in events of their own.
HOSTED = tuple(
    {
        f"{name.rpartition('.')[0]}."
        for event in models(ResponseStreamEvent)
        for name in type_names(event)
        if name not in CORE and "output_index" in event.model_fields
    }
)
EXTRA = re.compile(r"ping|response\.required_action|[a-z0-9_-]+:[a-z0-9_.-]+")
"""The events that a stream has only on request: two bare names, or any name behind its maker's prefix."""


class Event(msgspec.Struct, frozen=True):
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

    def inner(self, key: str) -> Json:
        """An object in the event, empty if it is not one."""
        value = self.data.get(key)
        return value if isinstance(value, dict) else {}

    def __str__(self) -> str:
        return f"event {self.place} ({self.type})"


def violations(frames: Iterable[tuple[str | None, Json]], *, done: bool | None, extended: bool = False) -> list[str]:
    """Every rule that one finished stream broke.

    A frame is the SSE event name (None over WebSocket) and the data. `done` says whether `[DONE]` came last; None
    stands for a transport that has none. `extended` allows the events that are sent only on request, and a completed
    response with status `incomplete` while calls wait.
    """
    events = [Event(place, name, data) for place, (name, data) in enumerate(frames)]
    return [
        *_names(events, done),
        *_numbers(events),
        *_kinds(events, extended),
        *_opening(events),
        *_closing(events, done),
        *_errors(events),
        *_response_ids(events),
        *_statuses(events, extended),
        *Output().read(events),
    ]


def _names(events: list[Event], done: bool | None) -> Iterator[str]:
    for event in events:
        nameless = event.name is None and done is None
        if not nameless and event.name != event.data.get("type"):
            yield f"event-name: {event} is sent under the name {event.name!r}."


def _numbers(events: list[Event]) -> Iterator[str]:
    expected = 0
    for event in events:
        number = event.data.get("sequence_number")
        if type(number) is not int:
            yield f"sequence: {event} has the number {number!r}, which is not an integer."
            number = expected
        elif number != expected:
            yield f"sequence: {event} has the number {number} where {expected} is next."
        expected = number + 1


def _kinds(events: list[Event], extended: bool) -> Iterator[str]:
    for event in events:
        known = event.type in CORE or event.type.startswith(HOSTED)
        if not known and not (extended and EXTRA.fullmatch(event.type)):
            yield f"unknown-event: {event} is no event of the protocol."


def _opening(events: list[Event]) -> Iterator[str]:
    types = [event.type for event in events if event.type != "response.queued"]
    if types[:1] != ["response.created"]:
        yield "opening: the stream does not begin with response.created."
    if types.count("response.created") > 1:
        yield "opening: response.created comes more than once."
    if [type for type in types if not EXTRA.fullmatch(type)][1:2] != ["response.in_progress"]:
        yield "opening: response.in_progress does not follow response.created."
    begun = dropwhile(lambda event: event.type != "response.in_progress", events)
    if any(event.type == "response.queued" for event in begun):
        yield "opening: response.queued comes after response.in_progress."


def _closing(events: list[Event], done: bool | None) -> Iterator[str]:
    closings = [event for event in events if event.type in CLOSINGS]
    if len(closings) != 1:
        yield f"closing: the stream has {len(closings)} closing events instead of one."
    if closings and events[-1].type not in CLOSINGS:
        yield f"closing: {events[-1]} comes after the closing event."
    if done is False:
        yield "done-marker: [DONE] is not the last thing in the stream."


def _errors(events: list[Event]) -> Iterator[str]:
    following = [event.type for event in events[1:]] + ["nothing"]
    for event, next in zip(events, following, strict=False):
        if event.type == "error" and next != "response.failed":
            yield f"error-event: {event} is followed by {next}, not by response.failed."


def _response_ids(events: list[Event]) -> Iterator[str]:
    first = None
    for event in events:
        if event.type not in STATUSES and "response" not in event.data:
            continue
        id = event.inner("response").get("id")
        if not isinstance(id, str) or not id:
            yield f"response-id: {event} has the response id {id!r}."
        first = first or id
        if id != first:
            yield f"response-id: {event} has the response id {id!r} after {first!r}."


def _statuses(events: list[Event], extended: bool) -> Iterator[str]:
    queued = any(event.type == "response.queued" for event in events)
    for event in events:
        if event.type not in STATUSES:
            continue
        allowed = [STATUSES[event.type]]
        if event.type == "response.created" and queued:
            allowed.append("queued")
        if event.type == "response.completed" and extended and _has_calls(event):
            allowed.append("incomplete")
        status = event.inner("response").get("status")
        if status not in allowed:
            yield f"response-status: {event} says {status!r}."


def _has_calls(event: Event) -> bool:
    return any(str(item.get("type")) in CALLS for item in _objects(event.inner("response").get("output")))


def _objects(value: Any) -> list[Json]:
    """A list of objects; what is none of these counts as empty."""
    return [part if isinstance(part, dict) else {} for part in value] if isinstance(value, list) else []


class Output:
    """All items of one response, by output index."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self._ids: list[Any] = []
        self._call_ids: list[Any] = []

    def read(self, events: list[Event]) -> Iterator[str]:
        for event in events:
            if event.type == "response.output_item.added":
                yield from self._add(event)
            elif event.type in ITEM_EVENTS or event.type.startswith(HOSTED):
                yield from self._see(event)
        closing = next((event for event in reversed(events) if event.type in CLOSINGS), None)
        yield from self._all_closed(closing)
        if closing is not None:
            yield from self._incomplete_only_at_the_end(closing)
            yield from self._final_output(closing)

    def _add(self, event: Event) -> Iterator[str]:
        index, item = event.data.get("output_index"), Item(event)
        if type(index) is not int or index in self._items:
            yield f"output-index: {event} announces index {index!r}, which is taken or no number."
            return
        if index != len(self._items):
            yield f"output-index: {event} announces index {index} where {len(self._items)} is next."
        self._items[index] = item
        yield from item.begin(event)
        yield from self._unique(event)

    def _unique(self, event: Event) -> Iterator[str]:
        item = event.inner("item")
        if item.get("id") in self._ids:
            yield f"item-id: {event} repeats the id {item.get('id')!r} of another item."
        self._ids.append(item.get("id"))
        if str(item.get("type")) in CALLS:
            if item.get("call_id") in self._call_ids:
                yield f"call-id: {event} repeats the call id {item.get('call_id')!r} of another call."
            self._call_ids.append(item.get("call_id"))

    def _see(self, event: Event) -> Iterator[str]:
        index = event.data.get("output_index")
        item = self._items.get(index) if type(index) is int else None
        if item is None:
            yield f"item-added: {event} is about index {index!r}, which was not announced."
        else:
            yield from item.see(event)

    def _all_closed(self, closing: Event | None) -> Iterator[str]:
        """Every item is closed. Only a failure leaves one open: it is in the final output, as incomplete."""
        failed = closing is not None and closing.type == "response.failed"
        output = _objects(closing.inner("response").get("output")) if closing is not None else []
        for index, item in self._items.items():
            if item.closed is None:
                final = output[index] if 0 <= index < len(output) else {}
                if failed and final.get("status") in ("incomplete", "failed"):
                    continue
                yield f"item-closed: the item at index {index} has no output_item.done."

    def _incomplete_only_at_the_end(self, closing: Event) -> Iterator[str]:
        for index, item in self._items.items():
            if item.closed is None or item.closed.get("status") != "incomplete":
                continue
            if index != max(self._items):
                yield f"incomplete-item: the item at index {index} is incomplete and not the last."
            if closing.type == "response.completed":
                yield f"incomplete-item: the item at index {index} is incomplete, the response is not."

    def _final_output(self, closing: Event) -> Iterator[str]:
        output = _objects(closing.inner("response").get("output"))
        if len(output) != len(self._items):
            yield f"final-output: {len(self._items)} items were announced, {closing} has {len(output)}."
        for index, item in self._items.items():
            final = output[index] if 0 <= index < len(output) else None
            if item.closed is not None and item.closed != final:
                yield f"final-output: item {index} of {closing} differs from its output_item.done."


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

    def begin(self, event: Event) -> Iterator[str]:
        yield from self._keys(event)
        if self._added.get("status") != "in_progress":
            yield f"item-status: {event} says {self._added.get('status')!r}."
        filled = [key for key in ("content", "summary", *CALLS.values()) if self._added.get(key)]
        if filled and self._type in GROWING:
            yield f"item-begins-empty: {event} has {', '.join(filled)} before any delta."

    def see(self, event: Event) -> Iterator[str]:
        if self.closed is not None:
            yield f"closed-item: {event} comes after output_item.done of its item."
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

    def _same_item(self, event: Event) -> Iterator[str]:
        if event.type == "response.output_item.done" or ("item_id" not in event.data and event.type not in ITEM_EVENTS):
            return
        if event.data.get("item_id") != self._added.get("id"):
            yield f"item-id: {event} has {event.data.get('item_id')!r}, its item has {self._added.get('id')!r}."

    def _keys(self, event: Event) -> Iterator[str]:
        """What every item has, in whichever state."""
        item = event.inner("item")
        needed = ["id", "type", "status", *(["call_id", "name"] if self._type in CALLS else [])]
        needed += ["role"] if self._type == "message" else []
        for key in needed:
            if not isinstance(item.get(key), str) or not item[key]:
                yield f"item-keys: {event} has the {key} {item.get(key)!r}."
        if self._type in CALLS and item.get("id") == item.get("call_id"):
            yield f"call-id: {event} has the same id and call_id."
        if self._type in CALLS and not isinstance(item.get(CALLS[self._type]), str):
            yield f"arguments-string: {event} has no string as its {CALLS[self._type]}."

    def _begin_part(self, event: Event) -> Iterator[str]:
        within, part = PARTS[event.stem], event.inner("part")
        parts, index = self._parts[within], event.data.get(INDEXES[within])
        texts = [text for text in TEXTS.values() if text.part == part.get("type")]
        if (self._type, within) not in [(text.item, text.within) for text in texts]:
            yield f"part-order: {event} puts a part of type {part.get('type')!r} into a {self._type}."
        if self._open_part() is not None:
            yield f"part-order: {event} comes before the part before it is closed."
        if index != len(parts):
            yield f"part-order: {event} has index {index!r} where {len(parts)} is next."
        if any(part.get(text.field) for text in texts):
            yield f"part-begins-empty: {event} has text before any delta."
        parts.append(Piece(part))

    def _end_part(self, event: Event) -> Iterator[str]:
        piece, part = self._piece(event, PARTS[event.stem]), event.inner("part")
        if piece is None or piece.state != "said":
            yield f"part-order: {event} does not close a part whose text is done."
            return
        piece.state, piece.closed = "closed", part
        if part.get("type") != piece.type:
            yield f"part-order: {event} closes a part of type {piece.type!r} as {part.get('type')!r}."
        elif not any(part.get(text.field) == piece.text for text in TEXTS.values() if text.part == piece.type):
            yield f"text-agrees: {event} has another text than its deltas, {piece.text!r}."

    def _text(self, event: Event, text: Text) -> Iterator[str]:
        rule = "part-order" if text.within else "call-order"
        piece = self._piece(event, text.within) if text.within else self._call
        if text.item != self._type or (piece and text.part != (piece.type or "")):
            yield f"{rule}: {event} does not belong into a {self._type}, or not into this part of it."
        elif piece is None or piece.state != "open":
            yield f"{rule}: {event} comes before its text was begun or after it was done."
        elif event.verb == "delta":
            yield from self._delta(event, piece)
        else:
            yield from self._said(event, piece, event.data.get(text.field))

    def _delta(self, event: Event, piece: Piece) -> Iterator[str]:
        delta = event.data.get("delta")
        piece.deltas.append(delta if isinstance(delta, str) else "")
        if not isinstance(delta, str):
            yield f"text-agrees: {event} has a delta that is no string."

    def _said(self, event: Event, piece: Piece, value: Any) -> Iterator[str]:
        piece.state = "said"
        if self._type in CALLS and not isinstance(value, str):
            yield f"arguments-string: {event} has no string as its {CALLS[self._type]}."
        elif self._type in CALLS and value and not piece.deltas:
            yield f"call-order: {event} comes without a delta before it."
        elif value != piece.text:
            yield f"text-agrees: {event} says {value!r}, its deltas {piece.text!r}."
        if self._type in CALLS and event.data.get("name", self._added.get("name")) != self._added.get("name"):
            yield f"item-identity: {event} has the name {event.data['name']!r}."

    def _annotation(self, event: Event) -> Iterator[str]:
        piece = self._piece(event, "content")
        if piece is None or piece.type != "output_text" or piece.state == "closed":
            yield f"part-order: {event} is not inside a part with text."

    def _close(self, event: Event) -> Iterator[str]:
        self.closed = event.inner("item")
        yield from self._keys(event)
        yield from self._same_identity(event)
        yield from self._end_status(event)
        yield from self._call_agrees(event) if self._type in CALLS else self._parts_agree(event)

    def _same_identity(self, event: Event) -> Iterator[str]:
        item = event.inner("item")
        for key in KEPT:
            if item.get(key) != self._added.get(key):
                yield f"item-identity: {event} has the {key} {item.get(key)!r} after {self._added.get(key)!r}."

    def _end_status(self, event: Event) -> Iterator[str]:
        status = event.inner("item").get("status")
        # Hosted tools may fail by themselves; Open Responses does not describe them.
        ends = ("completed", "incomplete") if self._type in GROWING else ("completed", "incomplete", "failed")
        if status not in ends:
            yield f"item-status: {event} says {status!r}."

    def _call_agrees(self, event: Event) -> Iterator[str]:
        item, field = event.inner("item"), CALLS[self._type]
        # Nobody has to declare half a call done: an incomplete one may lack the event.
        if self._call.state != "said" and item.get("status") != "incomplete":
            yield f"call-order: {event} comes before the {field} are done."
        if item.get(field) != self._call.text:
            yield f"text-agrees: {event} has the {field} {item.get(field)!r}, its deltas {self._call.text!r}."

    def _parts_agree(self, event: Event) -> Iterator[str]:
        if self._open_part() is not None:
            yield f"part-order: {event} comes while a part is open."
        if self._type not in GROWING:
            return
        for within, pieces in self._parts.items():
            parts = _objects(event.inner("item").get(within))
            if len(parts) != len(pieces):
                yield f"text-agrees: {event} has {len(parts)} parts in {within}, the stream told of {len(pieces)}."
            for piece, part in zip(pieces, parts, strict=False):
                if piece.closed is not None and piece.closed != part:
                    yield f"text-agrees: {event} has another part in {within} than the one that was closed."

    def _open_part(self) -> Piece | None:
        return next((piece for pieces in self._parts.values() for piece in pieces if piece.state != "closed"), None)

    def _piece(self, event: Event, within: str) -> Piece | None:
        index, pieces = event.data.get(INDEXES[within]), self._parts[within]
        return pieces[index] if type(index) is int and 0 <= index < len(pieces) else None
