"""The items of a response while they grow, and the events that open and close them and their parts.

An item has the backend's id as its `name`, our `id` and an `index` in the output. `original` gives the fields of the
backend's frame about it; the unknown ones are written with ours, so that they survive.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.core.events import CallStarted, ReasoningKind, RefusalDelta, TextDelta
from toolwire.core.raw import NULL, fields_of, list_of, to_raw, without_nulls

Fields: TypeAlias = dict[str, Any]
OriginalFields: TypeAlias = Callable[[str, str], dict[str, msgspec.Raw]]
"""Gives the fields of the backend's frame of this type about this item, or none."""
PendingEvents: TypeAlias = Iterator[tuple[str, Fields]]
"""Events to write: type and fields."""

ADDED = "response.output_item.added"
DONE = "response.output_item.done"


class OutputItem:
    """The base of all items."""

    delta_type: bytes = b""
    delta_extra: bytes = b""
    """The fields of a delta that follow its text."""

    def __init__(self, name: str, id: str, index: int) -> None:
        self.name = name
        self.id = id
        self.index = index
        self.status = "in_progress"
        self.pieces: list[str] = []
        self.encoded = NULL
        self._original: msgspec.Raw | None = None

    def open(self, original: OriginalFields) -> PendingEvents:
        """Open the item."""
        frame = original(ADDED, self.name)
        yield ADDED, {**frame, "output_index": self.index, "item": self._encode(_non_null(frame.get("item")))}

    def close_part(self, original: OriginalFields) -> PendingEvents:
        """Close the open part, if there is one."""
        return iter(())

    def close(self, original: OriginalFields, status: str) -> PendingEvents:
        """Close the open part and the item."""
        yield from self.close_part(original)
        frame = original(DONE, self.name)
        self._original = frame.get("item")
        received = _non_null(self._original)
        self.status = self._ended(status, received)
        self.encoded = self._encode(received)
        yield DONE, {**frame, "output_index": self.index, "item": self.encoded}

    def _ended(self, status: str, received: dict[str, msgspec.Raw]) -> str:
        """The final status: incomplete if either the turn or the backend's item is."""
        return "incomplete" if received.get("status") == msgspec.Raw(b'"incomplete"') else status

    @property
    def as_received(self) -> msgspec.Raw:
        """The item as the backend sent it, if ours contains all of it."""
        if self._original is None or not _contains(
            msgspec.json.decode(self._original), msgspec.json.decode(self.encoded)
        ):
            return self.encoded
        return self._original

    def delta_position(self) -> bytes:
        """The fields of a delta that say which part of the item it belongs to."""
        return b""

    def _our_fields(self) -> Fields:
        raise NotImplementedError

    def _encode(self, received: dict[str, msgspec.Raw]) -> msgspec.Raw:
        """The item as JSON: the backend's fields of it, replaced by ours where we have them."""
        return to_raw({**received, "id": self.id, **self._our_fields(), "status": self.status})

    def _position(self) -> Fields:
        return {"item_id": self.id, "output_index": self.index}

    def _text(self) -> str:
        return "".join(self.pieces)


def _non_null(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """The fields of an object that are not null, because clients take a null for a value."""
    return without_nulls(fields_of(raw)) if raw is not None else {}


def _contains(theirs: Any, ours: Any) -> bool:
    """Whether our value contains all of theirs, except for nulls and ids."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        first, second = cast("Fields", theirs), cast("Fields", ours)
        return all(first[name] is None or name == "id" or _contains(first[name], second.get(name)) for name in first)
    if isinstance(theirs, list) and isinstance(ours, list):
        pairs = zip_longest(cast("list[Any]", theirs), cast("list[Any]", ours))
        return all(_contains(one, other) for one, other in pairs)
    return theirs == ours


class MessageItem(OutputItem):
    """A message, made of text and refusal parts."""

    def __init__(self, name: str, id: str, index: int) -> None:
        super().__init__(name, id, index)
        self.kind: type[TextDelta] | type[RefusalDelta] | None = None
        self.part = 0
        self._parts: list[msgspec.Raw] = []

    def begin_part(
        self, kind: type[TextDelta] | type[RefusalDelta], part: int, original: OriginalFields
    ) -> PendingEvents:
        """Open a part of text or refusal."""
        self.kind = kind
        self.part = part
        self.pieces = []
        is_text = kind is TextDelta
        self.delta_type = b"response.output_text.delta" if is_text else b"response.refusal.delta"
        self.delta_extra = b',"logprobs":[]' if is_text else b""
        type = "response.content_part.added"
        frame = original(type, self.name)
        empty: Fields = {**_non_null(frame.get("part")), **self._part("")}
        yield type, {**frame, **self._part_position(), "part": empty}

    def close_part(self, original: OriginalFields) -> PendingEvents:
        if self.kind is None:
            return
        text, position = self._text(), self._part_position()
        self.pieces.clear()  # a text may be large, and here it begins to be copied
        if self.kind is TextDelta:
            type = "response.output_text.done"
            yield type, {"logprobs": [], **original(type, self.name), **position, "text": text}
        else:
            type = "response.refusal.done"
            yield type, {**original(type, self.name), **position, "refusal": text}
        done = "response.content_part.done"
        frame = original(done, self.name)
        part = to_raw({**self._part(text), **self._original_part(frame.get("part"), text, original)})
        self.kind = None
        yield done, {**frame, **position, "part": part}
        self._parts.append(part)

    def close(self, original: OriginalFields, status: str) -> PendingEvents:
        yield from super().close(original, status)
        self._parts.clear()  # they are in the item as it was written

    def delta_position(self) -> bytes:
        return b',"content_index":%d' % len(self._parts)

    @property
    def parts(self) -> int:
        """How many parts are closed."""
        return len(self._parts)

    def _original_part(self, part: msgspec.Raw | None, text: str, original: OriginalFields) -> dict[str, msgspec.Raw]:
        """The backend's part, if its text is the same as ours."""
        if part is None:
            item = original(DONE, self.name).get("item")
            parts = list_of(fields_of(item).get("content", b"[]")) if item is not None else []
            part = parts[len(self._parts)] if len(self._parts) < len(parts) else None
        fields = _non_null(part)
        received = fields.get("text" if self.kind is TextDelta else "refusal")
        return fields if received is not None and msgspec.json.decode(received) == text else {}

    def _part_position(self) -> Fields:
        return {**self._position(), "content_index": len(self._parts)}

    def _part(self, text: str) -> Fields:
        if self.kind is RefusalDelta:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _our_fields(self) -> Fields:
        return {"type": "message", "role": "assistant", "content": self._parts}


class ReasoningItem(OutputItem):
    """Reasoning, made of summary parts, raw text parts and a signature."""

    def __init__(self, name: str, id: str, index: int) -> None:
        super().__init__(name, id, index)
        self.signature = ""
        self.kind: ReasoningKind | None = None
        self.part = 0
        self._parts: dict[ReasoningKind, list[Fields]] = {"summary": [], "content": []}

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each part; the last one may be open."""
        texts = [part["text"] for parts in self._parts.values() for part in parts]
        return tuple([*texts, self._text()] if self.kind is not None else texts)

    def is_in(self, kind: ReasoningKind, part: int) -> bool:
        """Whether this part is open."""
        return self.kind == kind and self.part == part

    def begin_part(self, kind: ReasoningKind, part: int, original: OriginalFields) -> PendingEvents:
        """Open a part of summary or raw text."""
        self.kind = kind
        self.part = part
        self.pieces = []
        summary = kind == "summary"
        self.delta_type = b"response.reasoning_summary_text.delta" if summary else b"response.reasoning_text.delta"
        type = "response.reasoning_summary_part.added" if summary else "response.content_part.added"
        frame = original(type, self.name)
        empty: Fields = {**_non_null(frame.get("part")), **_reasoning_part(kind, "")}
        yield type, {**frame, **self._part_position(kind), "part": empty}

    def close_part(self, original: OriginalFields) -> PendingEvents:
        kind = self.kind
        if kind is None:
            return
        text, position = self._text(), self._part_position(kind)
        summary = kind == "summary"
        type = "response.reasoning_summary_text.done" if summary else "response.reasoning_text.done"
        yield type, {**original(type, self.name), **position, "text": text}
        type = "response.reasoning_summary_part.done" if summary else "response.content_part.done"
        frame = original(type, self.name)
        raw = frame.get("part") or self._part_of_item(original, kind)
        part: Fields = {**_non_null(raw), **_reasoning_part(kind, text)}
        yield type, {**frame, **position, "part": part}
        self._parts[kind].append(part)
        self.kind = None

    def _part_of_item(self, original: OriginalFields, kind: ReasoningKind) -> msgspec.Raw | None:
        """The part as it stands in the backend's finished item, for want of a frame about it."""
        listed = list_of(_non_null(original(DONE, self.name).get("item")).get(kind, b"[]"))
        index = len(self._parts[kind])
        return listed[index] if index < len(listed) else None

    def delta_position(self) -> bytes:
        assert self.kind is not None
        return b',"%b":%d' % (_INDEX[self.kind].encode(), len(self._parts[self.kind]))

    def _part_position(self, kind: ReasoningKind) -> Fields:
        return {**self._position(), _INDEX[kind]: len(self._parts[kind])}

    def _our_fields(self) -> Fields:
        fields: Fields = {"type": "reasoning", "summary": self._parts["summary"]}
        if self._parts["content"]:
            fields["content"] = self._parts["content"]
        if self.signature:
            fields["encrypted_content"] = self.signature
        return fields


_INDEX: dict[ReasoningKind, str] = {"summary": "summary_index", "content": "content_index"}


def _reasoning_part(kind: ReasoningKind, text: str) -> Fields:
    return {"type": "summary_text" if kind == "summary" else "reasoning_text", "text": text}


class CallItem(OutputItem):
    """A call of a function, with arguments, or of a custom tool, with an input."""

    def __init__(self, call: CallStarted, id: str, index: int) -> None:
        super().__init__(call.item, id, index)
        self.call = call
        custom = call.kind == "custom"
        self._arguments_field = "input" if custom else "arguments"
        self._events = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
        self.delta_type = self._events.encode() + b".delta"

    def close_part(self, original: OriginalFields) -> PendingEvents:
        type = f"{self._events}.done"
        fields = {self._arguments_field: self._text()}
        if self.call.kind == "function":
            fields["name"] = self.call.name
        yield type, {**original(type, self.name), **self._position(), **fields}

    def _ended(self, status: str, received: dict[str, msgspec.Raw]) -> str:
        return status  # decided by its arguments alone

    def as_tool_call(self) -> Fields:
        """The call in the form that `required_action` lists."""
        call, kind = self.call, self.call.kind
        named = {"namespace": call.namespace} if call.namespace else {}
        return {"id": call.id, "type": kind, kind: {"name": call.name, **named, self._arguments_field: self._text()}}

    def _our_fields(self) -> Fields:
        call = self.call
        type = "custom_tool_call" if call.kind == "custom" else "function_call"
        fields: Fields = {"type": type, "call_id": call.id, "name": call.name, self._arguments_field: self._text()}
        return {**fields, "namespace": call.namespace} if call.namespace else fields


class OtherItem(OutputItem):
    """An item that no turn event represents, as the backend sent it."""

    def __init__(self, name: str, id: str, index: int) -> None:
        super().__init__(name, id, index)
        self.fields: dict[str, msgspec.Raw] = {}

    @property
    def is_closed(self) -> bool:
        """Whether the item has ended."""
        return self.status != "in_progress"

    def _encode(self, received: dict[str, msgspec.Raw]) -> msgspec.Raw:
        fields: Fields = {**self.fields, "id": self.id}
        if self.status == "in_progress" or fields.get("status") == msgspec.Raw(b'"in_progress"'):
            fields["status"] = self.status
        fields.setdefault("status", self.status)
        return to_raw(fields)

    def close(self, original: OriginalFields, status: str) -> PendingEvents:
        self.status = status
        frame = original(DONE, self.name)
        self._original = frame.get("item")
        self.encoded = self._encode({})
        yield DONE, {**frame, "output_index": self.index, "item": self.encoded}
