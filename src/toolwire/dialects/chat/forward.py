r"""What a server's own chunks say beyond our words, for clients of the same dialect.

A delta that no policy touched goes out in its own chunk, under our id, time and model. Of all other chunks what we
have no word for is kept: fields of the chunk for every chunk that follows, fields of its choice for one of its own or
for the finish, the counts beyond ours for the usage, and choices after the first as they are.
"""

from typing import Any, TypeAlias

import msgspec

from toolwire.core.pieces import Around
from toolwire.core.sse import Frame

Fields = dict[str, msgspec.Raw]
Opening: TypeAlias = bytes | tuple[bytes, ...]

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields).decode
_list = msgspec.json.Decoder(list[Fields]).decode

_OURS = frozenset(("id", "object", "created", "model", "choices", "usage"))
_CHOICE = frozenset(("index", "delta", "message", "finish_reason"))
REASONING = ("reasoning_content", "reasoning")
"""The fields in which servers write the text of their reasoning."""
_CALLS = ("tool_calls", "toolCalls", "function_call", "functionCall")
_SAID = frozenset(("role", "content", "refusal", *_CALLS, *REASONING))
_NULL = msgspec.Raw(b"null")
_NO_USAGE = b',"usage":null}'


class Chunk:
    """A server's chunk, or its whole completion, by what we make of it."""

    def __init__(self, data: bytes) -> None:
        fields = _fields(data)
        choices = _list(fields.get("choices", b"[]")) if fields.get("choices") != _NULL else []
        first = next((choice for choice in choices if _number(choice) == 0), Fields())
        said = first.get("delta", first.get("message", _NULL))
        self.top = {name: value for name, value in fields.items() if name not in _OURS}
        self.usage: Fields = _fields(fields["usage"]) if fields.get("usage", _NULL) != _NULL else {}
        self.choice = _beyond(first, _CHOICE)
        message = _fields(said) if said != _NULL else {}
        self.said = _beyond(message, _SAID)
        self.reasoning = {name: message[name] for name in REASONING if message.get(name, _NULL) != _NULL}
        self.others = [choice for choice in choices if _number(choice) != 0]
        self.finishes = first.get("finish_reason", _NULL) not in (_NULL, msgspec.Raw(b'""'))


class Forward:
    """Writes deltas in the chunks they came in. `ours` are the id, time and model of our answer."""

    def __init__(self, ours: dict[str, Any], *, usage: bool) -> None:
        self._ours = ours
        self._usage = usage
        self._lead = b"\n"  # how the server's chunks begin, and how ours do instead
        self._own_lead = b""
        self._around = Around()

    def written(self, frame: Frame, opening: Opening, call: int | None = None) -> bytes:
        """A frame, or a run of them. `opening` is how its choice begins if it needs no change."""
        if frame.pieces is None:
            return self._chunk(frame.data, opening, call)
        return self._around.spread(frame.pieces, lambda data: self._chunk(data, opening, call), call)

    def _chunk(self, data: bytes, opening: Opening, call: int | None) -> bytes:
        if not data.startswith(self._lead):
            self._learn(data)
        lead = self._lead
        if not data.startswith(lead) or not data.startswith(opening, len(lead)):
            return self._overlaid(data, call)
        rest = data[len(lead) :]
        counts = b'"usage":' in rest
        if counts and not self._usage:
            if not rest.endswith(_NO_USAGE):
                return self._overlaid(data, call)
            rest = rest[: -len(_NO_USAGE)] + b"}"
        elif self._usage and not counts:
            rest = rest.rstrip()[:-1] + _NO_USAGE
        return b"data: " + self._own_lead + rest + b"\n\n"

    def _learn(self, data: bytes) -> None:
        """How chunks begin, up to their choices, if our own fields are all in there."""
        lead, found, _ = data.partition(b'"choices":')
        names = list(_fields(data))
        before = names[: names.index("choices")]
        try:
            leading = _fields(lead.rstrip(b", ") + b"}")
        except msgspec.DecodeError:  # they are not the chunk's own
            return
        if found and list(leading) == before and set(before) >= set(self._ours):
            self._lead = lead
            fields: dict[str, Any] = {**leading, **self._ours}
            if not self._usage:
                fields.pop("usage", None)
            self._own_lead = _json(fields)[:-1] + b","

    def _overlaid(self, data: bytes, call: int | None) -> bytes:
        """A chunk that is written otherwise, with our own fields over it."""
        fields: dict[str, Any] = {**_fields(data), **self._ours}
        if self._usage:
            fields.setdefault("usage", None)
        else:
            fields.pop("usage", None)
        choice: dict[str, Any] = {**_list(fields["choices"])[0], "index": 0}
        if call is not None:
            delta = _fields(choice["delta"])
            choice["delta"] = {**delta, "tool_calls": [{**_list(delta["tool_calls"])[0], "index": call}]}
        elif b'"role"' in bytes(choice["delta"]):  # which the client knows
            choice["delta"] = {name: value for name, value in _fields(choice["delta"]).items() if name != "role"}
        fields["choices"] = [choice]
        return b"data: " + _json(fields) + b"\n\n"


def merged_usage(ours: dict[str, Any], theirs: Fields) -> dict[str, Any]:
    """Our counts over all that the server counts."""
    merged: dict[str, Any] = {**theirs, **ours}
    for name, value in ours.items():
        if isinstance(value, dict) and theirs.get(name, _NULL) != _NULL:
            merged[name] = {**_fields(theirs[name]), **value}
    return merged


def _beyond(fields: Fields, known: frozenset[str]) -> Fields:
    return {name: value for name, value in fields.items() if name not in known and value != _NULL}


def _number(choice: Fields) -> int:
    number = bytes(choice.get("index", b"0"))
    return int(number) if number.isdigit() else 0
