"""Forwards the unknown fields of a chat server's chunks to chat clients.

A delta that no policy touched is written as its original chunk, with our id, time and model. Unknown fields of other
chunks are repeated in every chunk that follows, those of a choice are written in a separate chunk or with the finish
reason, unknown counts go into the usage, and choices after the first are forwarded unchanged.
"""

from typing import Any, TypeAlias

import msgspec

from toolwire.core.batch import BatchWriter
from toolwire.core.raw import NULL, Fields, fields_of, object_in, objects_of, to_json
from toolwire.core.sse import Frame

Opening: TypeAlias = bytes | tuple[bytes, ...]

_CHUNK_FIELDS = frozenset(("id", "object", "created", "model", "choices", "usage"))
_CHOICE_FIELDS = frozenset(("index", "delta", "message", "finish_reason"))
REASONING = ("reasoning_content", "reasoning")
"""The fields in which servers write reasoning as text."""
_CALLS = ("tool_calls", "toolCalls", "function_call", "functionCall")
_DELTA_FIELDS = frozenset(("role", "content", "refusal", *_CALLS, *REASONING))
_NO_USAGE = b',"usage":null}'


class Chunk:
    """The parts of a server's chunk, or of its whole completion, that are passed on."""

    def __init__(self, data: bytes) -> None:
        fields = fields_of(data)
        choices = objects_of(fields.get("choices", b"[]")) if fields.get("choices") != NULL else []
        first = next((choice for choice in choices if _index_of(choice) == 0), Fields())
        self.extra = {name: value for name, value in fields.items() if name not in _CHUNK_FIELDS}
        self.usage = object_in(fields, "usage")
        self.choice_extra = _drop(first, _CHOICE_FIELDS)
        message = object_in(first, "delta" if "delta" in first else "message")
        self.delta_extra = _drop(message, _DELTA_FIELDS)
        self.reasoning = {name: message[name] for name in REASONING if message.get(name, NULL) != NULL}
        self.other_choices = [choice for choice in choices if _index_of(choice) != 0]
        self.finishes = first.get("finish_reason", NULL) not in (NULL, msgspec.Raw(b'""'))


class DeltaForwarder:
    """Writes deltas as the chunks they came in. `chunk_fields` are the id, time and model of our answer."""

    def __init__(self, chunk_fields: dict[str, Any], *, usage: bool) -> None:
        self._chunk_fields = chunk_fields
        self._usage = usage
        self._lead = b"\n"  # the bytes before the choices in the server's chunks; `_our_lead` replaces them
        self._our_lead = b""
        self._batch_writer = BatchWriter()

    def write(self, frame: Frame, opening: Opening, call: int | None = None) -> bytes:
        """Write a frame or a batch. `opening`: how its choices begin if they need no change."""
        if frame.batch is None:
            return self._chunk(frame.data, opening, call)
        return self._batch_writer.write(frame.batch, lambda data: self._chunk(data, opening, call), call)

    def _chunk(self, data: bytes, opening: Opening, call: int | None) -> bytes:
        if not data.startswith(self._lead):
            self._learn_lead(data)
        lead = self._lead
        if not data.startswith(lead) or not data.startswith(opening, len(lead)):
            return self._rewrite(data, call)
        rest = data[len(lead) :]
        counts = b'"usage":' in rest
        if counts and not self._usage:
            if not rest.endswith(_NO_USAGE):
                return self._rewrite(data, call)
            rest = rest[: -len(_NO_USAGE)] + b"}"
        elif self._usage and not counts:
            rest = rest.rstrip()[:-1] + _NO_USAGE
        return b"data: " + self._our_lead + rest + b"\n\n"

    def _learn_lead(self, data: bytes) -> None:
        """Remember the bytes before the choices, if they contain all fields that we replace."""
        lead, found, _ = data.partition(b'"choices":')
        names = list(fields_of(data))
        before = names[: names.index("choices")]
        try:
            leading = fields_of(lead.rstrip(b", ") + b"}")
        except msgspec.DecodeError:  # the first `choices` is nested in another field
            return
        if found and list(leading) == before and set(before) >= set(self._chunk_fields):
            self._lead = lead
            fields: dict[str, Any] = {**leading, **self._chunk_fields}
            if not self._usage:
                fields.pop("usage", None)
            self._our_lead = to_json(fields)[:-1] + b","

    def _rewrite(self, data: bytes, call: int | None) -> bytes:
        """A chunk of another layout, decoded and encoded with our fields."""
        fields: dict[str, Any] = {**fields_of(data), **self._chunk_fields}
        if self._usage:
            fields.setdefault("usage", None)
        else:
            fields.pop("usage", None)
        choice: dict[str, Any] = {**objects_of(fields["choices"])[0], "index": 0}
        if call is not None:
            delta = fields_of(choice["delta"])
            choice["delta"] = {**delta, "tool_calls": [{**objects_of(delta["tool_calls"])[0], "index": call}]}
        elif b'"role"' in bytes(choice["delta"]):  # the role was already sent
            choice["delta"] = {name: value for name, value in fields_of(choice["delta"]).items() if name != "role"}
        fields["choices"] = [choice]
        return b"data: " + to_json(fields) + b"\n\n"


def merge_usage(ours: dict[str, Any], theirs: Fields) -> dict[str, Any]:
    """Merge the server's usage object with our counts, which win."""
    merged: dict[str, Any] = {**theirs, **ours}
    for name, value in ours.items():
        if isinstance(value, dict) and theirs.get(name, NULL) != NULL:
            merged[name] = {**fields_of(theirs[name]), **value}
    return merged


def _drop(fields: Fields, names: frozenset[str]) -> Fields:
    return {name: value for name, value in fields.items() if name not in names and value != NULL}


def _index_of(choice: Fields) -> int:
    number = bytes(choice.get("index", b"0"))
    return int(number) if number.isdigit() else 0
