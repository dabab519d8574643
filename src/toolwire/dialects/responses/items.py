"""The items of a response while they grow, and the events that open and close them and their parts.

An item has the backend's id as its `name`, our `id` and its `index` in the output. `original` returns the fields of
the backend's frame about the item; the unknown ones are written with ours.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, ClassVar, TypeAlias, cast

import msgspec

from toolwire.core.events import CallKind, CallStarted, ReasoningKind
from toolwire.core.raw import (
    NULL,
    Fields,
    Json,
    as_object,
    fields_of,
    list_of,
    text_of,
    to_raw,
    without_nulls,
    wrap_arguments,
)

OriginalFields: TypeAlias = Callable[[str, str], Fields]
"""Returns the fields of the backend's frame of this type about this item, or none."""
PendingEvents: TypeAlias = Iterator[tuple[str, Json]]
"""Events to write: type and fields."""

_INCOMPLETE = msgspec.Raw(b'"incomplete"')
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"


class OutputItem:
    """The base of all items."""

    delta_type: bytes = b""
    delta_extra: bytes = b""
    """The fields of a delta that follow its text."""
    keeps_incomplete: ClassVar[bool] = False
    """Whether an item that the backend calls incomplete stays so."""

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
        frame = original(ITEM_ADDED, self.name)
        yield ITEM_ADDED, {**frame, "output_index": self.index, "item": self._encode(_drop_nulls(frame.get("item")))}

    def close_part(self, original: OriginalFields) -> PendingEvents:
        """Close the open part, if there is one."""
        return iter(())

    def close(self, original: OriginalFields, status: str) -> PendingEvents:
        """Close the open part and the item."""
        yield from self.close_part(original)
        frame = original(ITEM_DONE, self.name)
        self._original = frame.get("item")
        received = _drop_nulls(self._original)
        self.status = "incomplete" if self.keeps_incomplete and received.get("status") == _INCOMPLETE else status
        self.encoded = self._encode(received)
        yield ITEM_DONE, {**frame, "output_index": self.index, "item": self.encoded}

    @property
    def as_received(self) -> msgspec.Raw:
        """The item as the backend sent it, if ours contains all of it."""
        original = self._original
        if original is not None and _contains(msgspec.json.decode(original), msgspec.json.decode(self.encoded)):
            return original
        return self.encoded

    def encode_delta_position(self) -> bytes:
        """The fields of a delta that identify its part."""
        return b""

    def _make_fields(self) -> Json:
        raise NotImplementedError

    def _encode(self, received: Fields) -> msgspec.Raw:
        """The item as JSON: the backend's fields, overridden by ours."""
        return to_raw({**received, "id": self.id, **self._make_fields(), "status": self.status})

    def _make_position(self) -> Json:
        return {"item_id": self.id, "output_index": self.index}

    def _join_text(self) -> str:
        return "".join(self.pieces)


def _drop_nulls(raw: msgspec.Raw | None) -> Fields:
    """The fields of an object that are not null, because clients mistake null for a value."""
    return without_nulls(fields_of(raw)) if raw is not None and raw != NULL else {}


def _contains(theirs: Any, ours: Any) -> bool:
    """Whether our value contains all of theirs, except for nulls and ids."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        first, second = cast("Json", theirs), cast("Json", ours)
        return all(first[name] is None or name == "id" or _contains(first[name], second.get(name)) for name in first)
    if isinstance(theirs, list) and isinstance(ours, list):
        pairs = zip_longest(cast("list[Any]", theirs), cast("list[Any]", ours))
        return all(_contains(one, other) for one, other in pairs)
    return theirs == ours


class PartKind:
    """The wire form of one kind of part.

    `events` is the prefix of the event types about its text, `part_events` that of those about the part. `text_field`
    holds the text, in the part and in the event that ends it; `list` is the field of the item that lists such parts.
    """

    def __init__(
        self,
        type: str,
        events: str,
        part_events: str = "response.content_part",
        text_field: str = "text",
        list: str = "content",
        **more: Any,
    ) -> None:
        self.delta, self.done = f"{events}.delta".encode(), f"{events}.done"
        self.part_added, self.part_done = f"{part_events}.added", f"{part_events}.done"
        self.text_field = text_field
        self.list, self.index = list, f"{list}_index"
        self._fields = {"type": type, text_field: "", **more}

    def make_part(self, text: str) -> Json:
        """A part with this text."""
        return {**self._fields, self.text_field: text}


TEXT = PartKind("output_text", "response.output_text", annotations=[], logprobs=[])
REFUSAL = PartKind("refusal", "response.refusal", text_field="refusal")
REASONING: dict[ReasoningKind, PartKind] = {
    "summary": PartKind(
        "summary_text", "response.reasoning_summary_text", "response.reasoning_summary_part", list="summary"
    ),
    "content": PartKind("reasoning_text", "response.reasoning_text"),
}


class PartedItem(OutputItem):
    """An item that is made of parts, one after the other."""

    keeps_incomplete = True

    prefix: ClassVar[str]
    """The prefix of our ids of such items."""

    def __init__(self, name: str, id: str, index: int) -> None:
        super().__init__(name, id, index)
        self.kind: PartKind | None = None
        """The kind of the part that is open."""
        self.part = 0
        """The backend's index of that part."""
        self._parts: dict[str, list[msgspec.Raw]] = {"summary": [], "content": []}

    def begin_part(self, kind: PartKind, part: int, original: OriginalFields) -> PendingEvents:
        """Open a part."""
        self.kind = kind
        self.part = part
        self.pieces = []
        self.delta_type = kind.delta
        self.delta_extra = b',"logprobs":[]' if kind is TEXT else b""
        frame = original(kind.part_added, self.name)
        empty: Json = {**_drop_nulls(frame.get("part")), **kind.make_part("")}
        yield kind.part_added, {**frame, **self._make_part_position(kind), "part": empty}

    def close_part(self, original: OriginalFields) -> PendingEvents:
        kind, self.kind = self.kind, None
        if kind is None:
            return
        text, position = self._join_text(), self._make_part_position(kind)
        self.pieces.clear()  # frees memory: from here on copies of the text are made
        extra: Json = {"logprobs": []} if kind is TEXT else {}
        yield kind.done, {**extra, **original(kind.done, self.name), **position, kind.text_field: text}
        frame = original(kind.part_done, self.name)
        received = frame.get("part")
        if received is None:  # no frame about the part: take it from the backend's finished item
            listed = list_of(_drop_nulls(original(ITEM_DONE, self.name).get("item")).get(kind.list, b"[]"))
            index = len(self._parts[kind.list])
            received = listed[index] if index < len(listed) else None
        part = to_raw(self._finish_part(kind, text, _drop_nulls(received)))
        yield kind.part_done, {**frame, **position, "part": part}
        self._parts[kind.list].append(part)

    def close(self, original: OriginalFields, status: str) -> PendingEvents:
        yield from super().close(original, status)
        self._parts.clear()  # frees memory: `encoded` contains them

    def encode_delta_position(self) -> bytes:
        assert self.kind is not None
        return b',"%b":%d' % (self.kind.index.encode(), len(self._parts[self.kind.list]))

    def _make_part_position(self, kind: PartKind) -> Json:
        return {**self._make_position(), kind.index: len(self._parts[kind.list])}

    def _finish_part(self, kind: PartKind, text: str, received: Fields) -> Json:
        """A part with this text and the unknown fields of the backend's part."""
        raise NotImplementedError


class MessageItem(PartedItem):
    """A message, made of text and refusal parts."""

    prefix = "msg"

    @property
    def parts(self) -> int:
        """Number of closed parts."""
        return len(self._parts["content"])

    def _finish_part(self, kind: PartKind, text: str, received: Fields) -> Json:
        said = received.get(kind.text_field)
        # The annotations of the backend's part belong to its text.
        is_same = said is not None and msgspec.json.decode(said) == text
        return {**kind.make_part(text), **(received if is_same else {})}

    def _make_fields(self) -> Json:
        return {"type": "message", "role": "assistant", "content": self._parts["content"]}


class ReasoningItem(PartedItem):
    """Reasoning, made of summary parts, raw text parts and a signature."""

    prefix = "rs"
    signature = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each part; the last one may be open."""
        texts = [text_of(fields_of(part)["text"]) for parts in self._parts.values() for part in parts]
        return tuple([*texts, self._join_text()] if self.kind is not None else texts)

    def _finish_part(self, kind: PartKind, text: str, received: Fields) -> Json:
        return {**received, **kind.make_part(text)}

    def _make_fields(self) -> Json:
        fields: Json = {"type": "reasoning", "summary": self._parts["summary"]}
        if self._parts["content"]:
            fields["content"] = self._parts["content"]
        if self.signature:
            fields["encrypted_content"] = self.signature
        return fields


class CallForm(msgspec.Struct, frozen=True):
    """The wire form of one kind of call. `events`: the prefix of its argument event types; empty if it has none."""

    type: str
    prefix: str
    events: str
    field: str = "arguments"


CALL_FORMS: dict[CallKind, CallForm] = {
    "function": CallForm("function_call", "fc", "response.function_call_arguments"),
    "custom": CallForm("custom_tool_call", "ctc", "response.custom_tool_call_input", "input"),
    "search": CallForm("tool_search_call", "tsc", ""),
}


class CallItem(OutputItem):
    """A call of a function, of a custom tool, or of the client's search for tools."""

    def __init__(self, call: CallStarted, id: str, index: int) -> None:
        super().__init__(call.item, id, index)
        self.call = call
        self._form = CALL_FORMS[call.kind]
        self.delta_type = f"{self._form.events}.delta".encode() if self._form.events else b""

    def close_part(self, original: OriginalFields) -> PendingEvents:
        if not self._form.events:
            return
        type = f"{self._form.events}.done"
        fields = {self._form.field: self._join_text()}
        if self.call.kind == "function":
            fields["name"] = self.call.name
        yield type, {**original(type, self.name), **self._make_position(), **fields}

    def _encode(self, received: Fields) -> msgspec.Raw:
        # The backend's item of a search is a function call.
        return super()._encode(received if self.call.kind != "search" else {})

    def as_tool_call(self) -> Json:
        """The call in the form that `required_action` lists."""
        call, kind = self.call, self.call.kind
        named = {"namespace": call.namespace} if call.namespace else {}
        return {"id": call.id, "type": kind, kind: {"name": call.name, **named, self._form.field: self._join_text()}}

    @property
    def as_received(self) -> msgspec.Raw:
        """The item as the backend sent it, if its call id is the one that the client got."""
        received = super().as_received
        call_id = fields_of(received).get("call_id", NULL)
        return received if msgspec.json.decode(call_id) == self.call.id else self.encoded

    def _make_fields(self) -> Json:
        call, type = self.call, self._form.type
        if call.kind == "search":
            arguments = as_object(self._join_text()) or wrap_arguments(self._join_text())
            return {"type": type, "call_id": call.id, "execution": "client", "arguments": arguments}
        fields: Json = {"type": type, "call_id": call.id, "name": call.name, self._form.field: self._join_text()}
        return {**fields, "namespace": call.namespace} if call.namespace else fields


class OtherItem(OutputItem):
    """An item that no turn event represents, as the backend sent it."""

    def __init__(self, name: str, id: str, index: int, fields: Fields) -> None:
        super().__init__(name, id, index)
        self.fields = fields

    @property
    def is_closed(self) -> bool:
        """Whether the item has ended."""
        return self.status != "in_progress"

    def _encode(self, received: Fields) -> msgspec.Raw:
        fields: Json = {**self.fields, "id": self.id}
        if self.status == "in_progress" or fields.get("status") == msgspec.Raw(b'"in_progress"'):
            fields["status"] = self.status
        fields.setdefault("status", self.status)
        return to_raw(fields)
