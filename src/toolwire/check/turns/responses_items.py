"""Checks the items of a Responses stream, from `output_item.added` to `output_item.done`."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import Json, as_number, as_objects, as_text, quote
from toolwire.check.turns.rule import Finding

Faults: TypeAlias = Iterator[tuple[str, str]]
"""Broken rules of this API, each with the predicate of a sentence about the fault."""


class TextField(msgspec.Struct, frozen=True):
    """The field that text deltas fill: of the item itself, or of a part in one of its lists."""

    item: str
    field: str
    within: str = ""
    part: str = ""


TEXTS = {
    "response.output_text": TextField("message", "text", "content", "output_text"),
    "response.refusal": TextField("message", "refusal", "content", "refusal"),
    "response.reasoning_text": TextField("reasoning", "text", "content", "reasoning_text"),
    "response.reasoning_summary_text": TextField("reasoning", "text", "summary", "summary_text"),
    "response.function_call_arguments": TextField("function_call", "arguments"),
    "response.custom_tool_call_input": TextField("custom_tool_call", "input"),
}
PARTS = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
INDEXES = {"content": "content_index", "summary": "summary_index"}
ANNOTATION = "response.output_text.annotation"
CALLS = {text.item: text.field for text in TEXTS.values() if not text.within}
GROWING = {text.item for text in TEXTS.values()}
IDENTITY_FIELDS = ("type", "id", "call_id", "name", "role")
OPAQUE = "encrypted_content"
"""OpenAI encrypts reasoning anew whenever it sends it."""

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
"""Sent by OpenAI during long reasoning; not documented."""
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
"""Prefixes of the events of hosted tools."""
EXTRA = re.compile(r"ping|response\.required_action|[a-z0-9_-]+:[a-z0-9_.-]+")
"""Events that are sent only on request: two bare names, or any name with a vendor prefix."""


def report(rule: str, detail: str, *events: ReceivedFrame) -> Finding:
    """A finding that these events show."""
    return Finding(f"responses.{rule}", detail[:1].upper() + detail[1:], tuple(event.position for event in events))


def report_event(event: ReceivedFrame, rule: str, detail: str) -> Finding:
    """A finding about one event."""
    return report(rule, f"{event} {detail}", event)


def report_all(event: ReceivedFrame, faults: Faults) -> Iterator[Finding]:
    """The findings about one event."""
    return (report_event(event, rule, detail) for rule, detail in faults)


class OutputReader:
    """All items of one response, in the order in which they were added."""

    def __init__(self) -> None:
        self._items: list[OutputItem] = []
        self._indexes: dict[int, OutputItem] = {}
        """Items by the index they were added with."""
        self._ids: dict[str, OutputItem] = {}

    def read(self, events: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        """The findings about the items."""
        for event in events:
            if event.type == "response.output_item.added":
                yield from self._add(event)
            elif event.type in ITEM_EVENTS or event.type.startswith(HOSTED):
                yield from self._read(event)
        closing = next((event for event in reversed(events) if event.type in CLOSINGS), None)
        has_failed = closing is not None and closing.type == "response.failed"
        for item in self._items:
            if item.closed is None and not has_failed:
                detail = f"the item at index {item.index} has no output_item.done."
                yield report("item-closed", detail, item.added, *events[-1:])
        if closing is not None:
            yield from self._check_output(closing)

    def _add(self, event: ReceivedFrame) -> Iterator[Finding]:
        """Add an item. One with a wrong index is read as the next, so that only the index is reported."""
        index, id = as_number(event.fields.get("output_index")), as_text(event.inner("item").get("id"))
        if index != len(self._items):
            written = quote(event.fields.get("output_index"))
            yield report_event(event, "output-index", f"announces index {written} where {len(self._items)} is next.")
            if id in self._ids or (not id and index in self._indexes):
                return
        item = OutputItem(event, len(self._items))
        self._items.append(item)
        if index is not None:
            self._indexes.setdefault(index, item)
        yield from report_all(event, item.begin())
        if id in self._ids:
            yield report_event(event, "item-id", f"repeats the id {id!r} of another item.")
        if id:
            self._ids.setdefault(id, item)

    def _read(self, event: ReceivedFrame) -> Iterator[Finding]:
        """Pass an event to its item, found by its index or position, or by its id if the index must be wrong."""
        named = self._ids.get(as_text(event.fields.get("item_id")) or as_text(event.inner("item").get("id")))
        index = as_number(event.fields.get("output_index"))
        item = self._indexes.get(index) if index is not None else None
        if item is None and index is not None and 0 <= index < len(self._items):
            item = self._items[index]
        if named is not None and item is not named and (item is None or not item.takes(event)):
            detail = f"is about index {quote(event.fields.get('output_index'))}, its item is at {named.index}."
            yield report_event(event, "output-index", detail)
            item = named
        if item is None:
            detail = f"is about index {quote(event.fields.get('output_index'))}, which was not announced."
            yield report_event(event, "item-added", detail)
        else:
            yield from report_all(event, item.read(event))

    def _check_output(self, closing: ReceivedFrame) -> Iterator[Finding]:
        """Compare the items with the output of the closing event; in a failed response open items are incomplete."""
        output = as_objects(closing.inner("response").get("output"))
        has_failed = closing.type == "response.failed"
        if has_failed and len(output) > len(self._items):
            yield report_event(closing, "failed-output", f"has {len(output)} items, {len(self._items)} were announced.")
        elif not has_failed and len(output) != len(self._items):
            detail = f"{len(self._items)} items were announced, {closing} has {len(output)}."
            yield report("final-output", detail, closing)
        for index, item in enumerate(self._items):
            final = output[index] if index < len(output) else {}
            closed = item.closed.inner("item") if item.closed is not None else {}
            if item.closed is not None and closed.get("status") == "incomplete":
                if item is not self._items[-1]:
                    detail = f"the item at index {index} is incomplete and not the last."
                    yield report("incomplete-item", detail, item.closed)
                if closing.type == "response.completed":
                    detail = f"the item at index {index} is incomplete, the response is not."
                    yield report("incomplete-item", detail, item.closed, closing)
            is_cut = item.closed is None and final.get("status") in ("incomplete", "failed")
            if has_failed and not is_cut and (item.closed is None or not item.matches(final)):
                detail = f"item {index} is not in {closing} as it was sent."
                yield report("failed-output", detail, item.added, closing)
            elif not has_failed and item.closed is not None and not item.matches(final):
                detail = f"item {index} of {closing} differs from its output_item.done."
                names = [name for name in {**closed, **final} if closed.get(name) != final.get(name) and name != OPAQUE]
                parts = tuple(f"{where}.{name}" for name in names for where in ("item", "output"))
                found = report("final-output", detail, item.closed, closing)
                yield msgspec.structs.replace(found, parts=parts)


def find_item_faults(item: Json) -> Faults:
    """The faults of an item in any state, streamed or not."""
    kind = as_text(item.get("type"))
    needed = ["id", "type", *(["call_id", "name"] if kind in CALLS else []), *(["role"] if kind == "message" else [])]
    for key in needed:
        if not as_text(item.get(key)):
            yield "item-keys", f"has the {key} {quote(item.get(key))}."
    if kind in CALLS and as_text(item.get("id")) and item.get("id") == item.get("call_id"):
        yield "call-id", f"has {quote(item.get('id'))} as its id and its call_id."
    if kind in CALLS and not isinstance(item.get(CALLS[kind]), str):
        yield "arguments-string", f"has the {CALLS[kind]} {quote(item.get(CALLS[kind]))}."


def find_part_faults(item: Json) -> Faults:
    """The faults of the parts of a finished message."""
    for part in as_objects(item.get("content")) if item.get("type") == "message" else ():
        if part.get("type") == "output_text" and not isinstance(part.get("annotations"), list):
            yield "part-keys", f"has the annotations {quote(part.get('annotations'))}."


class GrowingText:
    """Text assembled from deltas; its state is `open`, `done` after the done event, then `closed` with its part."""

    def __init__(self, part: Json) -> None:
        self.type = part.get("type")
        self.state = "open"
        self.deltas: list[str] = []

    @property
    def text(self) -> str:
        """The text of all deltas."""
        return "".join(self.deltas)

    def matches(self, part: Json) -> bool:
        """Whether a part has the type and the text of this one."""
        fields = [text.field for text in TEXTS.values() if text.part == self.type]
        return part.get("type") == self.type and any(part.get(field) == self.text for field in fields)


class OutputItem:
    """One item, from `output_item.added` to `output_item.done`."""

    def __init__(self, added: ReceivedFrame, index: int) -> None:
        self.added = added
        self.index = index
        self.closed: ReceivedFrame | None = None
        self._added = added.inner("item")
        self._type = as_text(self._added.get("type"))
        self._call = GrowingText({})
        self._parts: dict[str, list[GrowingText]] = {within: [] for within in INDEXES}
        self._open = 0
        """The number of open parts."""

    def begin(self) -> Faults:
        """The faults of `output_item.added`."""
        yield from find_item_faults(self._added)
        yield from self._check_status(self.added)
        filled = [key for key in ("content", "summary", *CALLS.values()) if self._added.get(key)]
        if filled and self._type in GROWING:
            yield "item-begins-empty", f"has {', '.join(filled)} before any delta."

    def takes(self, event: ReceivedFrame) -> bool:
        """Whether an event can belong to this item: the item is open and of the right type."""
        kind = TEXTS[event.stem].item if event.stem in TEXTS else as_text(event.inner("item").get("type"))
        return self.closed is None and kind in ("", self._type)

    def read(self, event: ReceivedFrame) -> Faults:
        """The faults of a further event of this item."""
        if self.closed is not None:
            yield "closed-item", "comes after output_item.done of its item."
            return
        if event.type == "response.output_item.done":
            yield from self._close(event)
            return
        id = event.fields.get("item_id")
        if id != self._added.get("id") and ("item_id" in event.fields or event.type in ITEM_EVENTS):
            yield "item-id", f"has {quote(id)}, its item has {quote(self._added.get('id'))}."
        if event.stem in PARTS:
            yield from self._read_part(event)
        elif event.stem in TEXTS:
            yield from self._read_text(event, TEXTS[event.stem])
        elif event.stem == ANNOTATION:
            piece = self._find_text(event, "content")
            if piece is None or piece.type != "output_text" or piece.state == "closed":
                yield "part-order", "is not inside a part with text."

    def _read_part(self, event: ReceivedFrame) -> Faults:
        """Open or close a part."""
        within, part = PARTS[event.stem], event.inner("part")
        kind, parts = part.get("type"), self._parts[within]
        if event.verb == "added":
            index = event.fields.get(INDEXES[within])
            texts = [text for text in TEXTS.values() if text.part == kind]
            if (self._type, within) not in [(text.item, text.within) for text in texts]:
                yield "part-order", f"puts a part of type {quote(kind)} into a {self._type}."
            if self._open:
                yield "part-order", "comes before the part before it is closed."
            if as_number(index) != len(parts):
                yield "part-order", f"has index {quote(index)} where {len(parts)} is next."
            if any(part.get(text.field) for text in texts):
                yield "part-begins-empty", "has text before any delta."
            parts.append(GrowingText(part))
            self._open += 1
            return
        piece = self._find_text(event, within)
        if piece is None or piece.state != "done":
            yield "part-order", "does not close a part whose text is done."
            return
        piece.state = "closed"
        self._open -= 1
        if kind != piece.type:
            yield "part-order", f"closes a part of type {quote(piece.type)} as {quote(kind)}."
        elif not piece.matches(part):
            yield "text-agrees", f"differs from the text of its deltas, {quote(piece.text)}."

    def _read_text(self, event: ReceivedFrame, text: TextField) -> Faults:
        rule = "part-order" if text.within else "call-order"
        piece = self._find_text(event, text.within) if text.within else self._call
        if text.item != self._type or (piece and text.part != (piece.type or "")):
            yield rule, f"does not belong in a {self._type}, or not in this part of it."
        elif piece is None or piece.state != "open":
            yield rule, "comes before its text was begun or after it was done."
        elif event.verb == "delta":
            delta = event.fields.get("delta")
            piece.deltas.append(as_text(delta))
            if not isinstance(delta, str):
                yield "text-agrees", "has a delta that is no string."
        else:
            piece.state = "done"
            value, is_call = event.fields.get(text.field), self._type in CALLS
            if is_call and not isinstance(value, str):
                yield "arguments-string", f"has no string as its {text.field}."
            elif is_call and value and not piece.deltas:
                yield "call-order", "comes without a delta before it."
            elif value != piece.text:
                yield "text-agrees", f"says {quote(value)}, its deltas {quote(piece.text)}."
            if is_call and event.fields.get("name", self._added.get("name")) != self._added.get("name"):
                yield "item-identity", f"has the name {quote(event.fields['name'])}."

    def _close(self, event: ReceivedFrame) -> Faults:
        self.closed, item = event, event.inner("item")
        yield from find_item_faults(item)
        for key in IDENTITY_FIELDS:
            if item.get(key) != self._added.get(key):
                yield "item-identity", f"has the {key} {quote(item.get(key))} after {quote(self._added.get(key))}."
        yield from self._check_status(event)
        yield from find_part_faults(item)
        if self._type not in CALLS:
            yield from self._check_parts(item)
            return
        text, field = self._call.text, CALLS[self._type]
        if self._call.state != "done" and item.get("status") != "incomplete":  # then it may be missing
            yield "call-order", f"comes before the {field} are done."
        if item.get(field) != text:
            yield "text-agrees", f"has the {field} {quote(item.get(field))}, its deltas {quote(text)}."

    def _check_status(self, event: ReceivedFrame) -> Faults:
        """Check the status when the item is added or done; the statuses of hosted tools are not specified."""
        status, is_begun = event.inner("item").get("status"), event is self.added
        if self._type in GROWING:
            is_sound = status in (("in_progress",) if is_begun else ("completed", "incomplete"))
        else:
            is_sound = status not in (ENDED if is_begun else ("in_progress",))
        if not is_sound and not (status is None and self._type == "reasoning"):  # OpenAI's has no status
            yield "item-status", f"has the status {quote(status)}."

    def _check_parts(self, item: Json) -> Faults:
        if self._open:
            yield "part-order", "comes while a part is open."
        if self._type not in GROWING:
            return
        for within, pieces in self._parts.items():
            parts = as_objects(item.get(within))
            if len(parts) != len(pieces):
                yield "text-agrees", f"has {len(parts)} parts in {within}, the stream had {len(pieces)}."
            for piece, part in zip(pieces, parts, strict=False):
                if piece.state == "closed" and not piece.matches(part):
                    yield "text-agrees", f"has a part in {within} that differs from the one that was closed."

    def _find_text(self, event: ReceivedFrame, within: str) -> GrowingText | None:
        index, pieces = as_number(event.fields.get(INDEXES[within])), self._parts[within]
        return pieces[index] if index is not None and 0 <= index < len(pieces) else None

    def matches(self, final: Json) -> bool:
        """Whether an item of the final response equals this one; for hosted tools id and type suffice."""
        closed = self.closed.inner("item") if self.closed is not None else {}
        if self._type not in GROWING:
            return (closed.get("type"), closed.get("id")) == (final.get("type"), final.get("id"))
        return _drop_encrypted(closed) == _drop_encrypted(final)


def _drop_encrypted(item: Json) -> Json:
    return {key: value for key, value in item.items() if key != OPAQUE}
