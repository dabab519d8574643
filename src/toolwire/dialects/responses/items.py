"""The items of a response while they grow, and the events that open and close them and their parts.

An item has the backend's `name` for it, our `id` and a `place` in the output. `told` gives what a frame of the backend
says about it; that is laid under our own fields, so that what we have no word for survives.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.core.events import CallStarted, ReasoningKind, RefusalDelta, TextDelta

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode

Fields: TypeAlias = dict[str, Any]
Told: TypeAlias = Callable[[str, str], dict[str, msgspec.Raw]]
"""The fields of the backend's frame of this type about this item, or none."""
Steps: TypeAlias = Iterator[tuple[str, Fields]]
"""Events to write: type and fields."""

_NULL = msgspec.Raw(b"null")

ADDED = "response.output_item.added"
DONE = "response.output_item.done"


class OutputItem:
    """What all items have in common."""

    delta_type: bytes = b""
    delta_extra: bytes = b""
    """The fields of a delta that follow its text."""

    def __init__(self, name: str, id: str, place: int) -> None:
        self.name = name
        self.id = id
        self.place = place
        self.status = "in_progress"
        self.pieces: list[str] = []
        self.encoded = msgspec.Raw(b"null")
        self._told: msgspec.Raw | None = None

    def open(self, told: Told) -> Steps:
        under = told(ADDED, self.name)
        yield ADDED, {**under, "output_index": self.place, "item": self._written(_said(under.get("item")))}

    def close_part(self, told: Told) -> Steps:
        """Close the open part, if there is one."""
        return iter(())

    def close(self, told: Told, status: str) -> Steps:
        yield from self.close_part(told)
        under = told(DONE, self.name)
        self._told = under.get("item")
        said = _said(self._told)
        self.status = self._ended(status, said)
        self.encoded = self._written(said)
        yield DONE, {**under, "output_index": self.place, "item": self.encoded}

    def _ended(self, status: str, said: dict[str, msgspec.Raw]) -> str:
        """How the item ended: incomplete if either side says so."""
        return "incomplete" if said.get("status") == msgspec.Raw(b'"incomplete"') else status

    @property
    def as_told(self) -> msgspec.Raw:
        """The item as the backend wrote it, if it means the same as ours, which may have more fields."""
        if self._told is None or not _agrees(msgspec.json.decode(self._told), msgspec.json.decode(self.encoded)):
            return self.encoded
        return self._told

    def delta_place(self) -> bytes:
        """The fields of a delta that say where in the item it belongs."""
        return b""

    def _own(self) -> Fields:
        raise NotImplementedError

    def _written(self, said: dict[str, msgspec.Raw]) -> msgspec.Raw:
        """The item: our own fields over those that the backend has for it."""
        return msgspec.Raw(_json({**said, "id": self.id, **self._own(), "status": self.status}))

    def _here(self) -> Fields:
        return {"item_id": self.id, "output_index": self.place}

    def _text(self) -> str:
        return "".join(self.pieces)


def _said(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """The fields of an object that say something: clients take a null for a value."""
    return {name: value for name, value in _fields(raw).items() if value != _NULL} if raw is not None else {}


def _agrees(theirs: Any, ours: Any) -> bool:
    """Whether everything that is said there is said here too, but for the names of items."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        said, here = cast("Fields", theirs), cast("Fields", ours)
        return all(said[name] is None or name == "id" or _agrees(said[name], here.get(name)) for name in said)
    if isinstance(theirs, list) and isinstance(ours, list):
        pairs = zip_longest(cast("list[Any]", theirs), cast("list[Any]", ours))
        return all(_agrees(there, here) for there, here in pairs)
    return theirs == ours


class MessageItem(OutputItem):
    """A message: parts of text or refusal."""

    def __init__(self, name: str, id: str, place: int) -> None:
        super().__init__(name, id, place)
        self.kind: type[TextDelta] | type[RefusalDelta] | None = None
        self.part = 0
        self._parts: list[msgspec.Raw] = []

    def begin_part(self, kind: type[TextDelta] | type[RefusalDelta], part: int, told: Told) -> Steps:
        self.kind = kind
        self.part = part
        self.pieces = []
        talks = kind is TextDelta
        self.delta_type = b"response.output_text.delta" if talks else b"response.refusal.delta"
        self.delta_extra = b',"logprobs":[]' if talks else b""
        type = "response.content_part.added"
        under = told(type, self.name)
        empty: Fields = {**_said(under.get("part")), **self._part("")}
        yield type, {**under, **self._here_in_part(), "part": empty}

    def close_part(self, told: Told) -> Steps:
        if self.kind is None:
            return
        text, here = self._text(), self._here_in_part()
        if self.kind is TextDelta:
            type = "response.output_text.done"
            yield type, {"logprobs": [], **told(type, self.name), **here, "text": text}
        else:
            type = "response.refusal.done"
            yield type, {**told(type, self.name), **here, "refusal": text}
        done = "response.content_part.done"
        under = told(done, self.name)
        part = msgspec.Raw(_json({**self._part(text), **self._told_part(under.get("part"), text, told)}))
        self.kind = None
        yield done, {**under, **here, "part": part}
        self._parts.append(part)

    def delta_place(self) -> bytes:
        return b',"content_index":%d' % len(self._parts)

    @property
    def parts(self) -> int:
        return len(self._parts)

    def _told_part(self, part: msgspec.Raw | None, text: str, told: Told) -> dict[str, msgspec.Raw]:
        """The backend's own part, if it says the same as ours."""
        if part is None:
            item = told(DONE, self.name).get("item")
            parts = _list(_fields(item).get("content", b"[]")) if item is not None else []
            part = parts[len(self._parts)] if len(self._parts) < len(parts) else None
        fields = _said(part)
        said = fields.get("text" if self.kind is TextDelta else "refusal")
        return fields if said is not None and msgspec.json.decode(said) == text else {}

    def _here_in_part(self) -> Fields:
        return {**self._here(), "content_index": len(self._parts)}

    def _part(self, text: str) -> Fields:
        if self.kind is RefusalDelta:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _own(self) -> Fields:
        return {"type": "message", "role": "assistant", "content": self._parts}


class ReasoningItem(OutputItem):
    """Reasoning: parts of summary, parts of raw text, and a seal."""

    def __init__(self, name: str, id: str, place: int) -> None:
        super().__init__(name, id, place)
        self.seal = ""
        self.kind: ReasoningKind | None = None
        self.part = 0
        self._parts: dict[ReasoningKind, list[Fields]] = {"summary": [], "content": []}

    @property
    def texts(self) -> tuple[str, ...]:
        """What was thought, part by part; the last one may be open."""
        told = [part["text"] for parts in self._parts.values() for part in parts]
        return tuple([*told, self._text()] if self.kind is not None else told)

    def is_in(self, kind: ReasoningKind, part: int) -> bool:
        return self.kind == kind and self.part == part

    def begin_part(self, kind: ReasoningKind, part: int, told: Told) -> Steps:
        self.kind = kind
        self.part = part
        self.pieces = []
        summary = kind == "summary"
        self.delta_type = b"response.reasoning_summary_text.delta" if summary else b"response.reasoning_text.delta"
        type = "response.reasoning_summary_part.added" if summary else "response.content_part.added"
        under = told(type, self.name)
        empty: Fields = {**_said(under.get("part")), **_thought(kind, "")}
        yield type, {**under, **self._here_in_part(kind), "part": empty}

    def close_part(self, told: Told) -> Steps:
        kind = self.kind
        if kind is None:
            return
        text, here = self._text(), self._here_in_part(kind)
        summary = kind == "summary"
        type = "response.reasoning_summary_text.done" if summary else "response.reasoning_text.done"
        yield type, {**told(type, self.name), **here, "text": text}
        type = "response.reasoning_summary_part.done" if summary else "response.content_part.done"
        under = told(type, self.name)
        raw = under.get("part") or self._listed(told, kind)
        part: Fields = {**_said(raw), **_thought(kind, text)}
        yield type, {**under, **here, "part": part}
        self._parts[kind].append(part)
        self.kind = None

    def _listed(self, told: Told, kind: ReasoningKind) -> msgspec.Raw | None:
        """The part as the finished item has it, where no frame of its own tells it."""
        listed = _list(_said(told(DONE, self.name).get("item")).get(kind, b"[]"))
        place = len(self._parts[kind])
        return listed[place] if place < len(listed) else None

    def delta_place(self) -> bytes:
        assert self.kind is not None
        return b',"%b":%d' % (_INDEX[self.kind].encode(), len(self._parts[self.kind]))

    def _here_in_part(self, kind: ReasoningKind) -> Fields:
        return {**self._here(), _INDEX[kind]: len(self._parts[kind])}

    def _own(self) -> Fields:
        own: Fields = {"type": "reasoning", "summary": self._parts["summary"]}
        if self._parts["content"]:
            own["content"] = self._parts["content"]
        if self.seal:
            own["encrypted_content"] = self.seal
        return own


_INDEX: dict[ReasoningKind, str] = {"summary": "summary_index", "content": "content_index"}


def _thought(kind: ReasoningKind, text: str) -> Fields:
    return {"type": "summary_text" if kind == "summary" else "reasoning_text", "text": text}


class CallItem(OutputItem):
    """A call: of a function, with arguments, or of a custom tool, with an input."""

    def __init__(self, call: CallStarted, id: str, place: int) -> None:
        super().__init__(call.item, id, place)
        self.call = call
        custom = call.kind == "custom"
        self._noun = "input" if custom else "arguments"
        self._events = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
        self.delta_type = self._events.encode() + b".delta"

    def close_part(self, told: Told) -> Steps:
        type = f"{self._events}.done"
        said = {self._noun: self._text()}
        if self.call.kind == "function":
            said["name"] = self.call.name
        yield type, {**told(type, self.name), **self._here(), **said}

    def _ended(self, status: str, said: dict[str, msgspec.Raw]) -> str:
        return status  # which its arguments decide

    def as_tool_call(self) -> Fields:
        """The call as `required_action` lists it."""
        call, kind = self.call, self.call.kind
        named = {"namespace": call.namespace} if call.namespace else {}
        return {"id": call.id, "type": kind, kind: {"name": call.name, **named, self._noun: self._text()}}

    def _own(self) -> Fields:
        call = self.call
        type = "custom_tool_call" if call.kind == "custom" else "function_call"
        own: Fields = {"type": type, "call_id": call.id, "name": call.name, self._noun: self._text()}
        return {**own, "namespace": call.namespace} if call.namespace else own


class OtherItem(OutputItem):
    """An item we have no word for, as the backend wrote it."""

    def __init__(self, name: str, id: str, place: int) -> None:
        super().__init__(name, id, place)
        self.fields: dict[str, msgspec.Raw] = {}

    @property
    def is_closed(self) -> bool:
        return self.status != "in_progress"

    def _written(self, said: dict[str, msgspec.Raw]) -> msgspec.Raw:
        fields: Fields = {**self.fields, "id": self.id}
        if self.status == "in_progress" or fields.get("status") == msgspec.Raw(b'"in_progress"'):
            fields["status"] = self.status
        fields.setdefault("status", self.status)
        return msgspec.Raw(_json(fields))

    def close(self, told: Told, status: str) -> Steps:
        self.status = status
        under = told(DONE, self.name)
        self._told = under.get("item")
        self.encoded = self._written({})
        yield DONE, {**under, "output_index": self.place, "item": self.encoded}
