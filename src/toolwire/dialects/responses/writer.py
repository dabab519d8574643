"""Events to bytes: every event gets the next number, and a delta goes out as it came wherever that is possible."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from toolwire.core import sse
from toolwire.core.flow import Delta
from toolwire.core.pieces import Template
from toolwire.core.sse import Frame
from toolwire.dialects.responses.items import CallItem, MessageItem, ReasoningItem, Steps

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Growing: TypeAlias = MessageItem | ReasoningItem | CallItem
"""Items that deltas add to."""

NUMBER = b'"sequence_number":'
DELTA = b'"delta":'
NOTHING = b" "
"""What no frame begins with."""


class Writer:
    """Writes the events of one stream. On a `socket` each is one message, without a name."""

    def __init__(self, *, socket: bool) -> None:
        self.number = 0
        self.held = 0
        """Bytes, more or less, that are held until the end of the turn, which repeats all of it."""
        self._socket = socket
        self._end = b"" if socket else b"\n\n"
        self._item: Growing | None = None
        self._pieces: list[str] = []
        self._here: dict[str, msgspec.Raw] = {}  # where a delta of this part belongs
        self._lead = self._middle = b""  # what stands before and behind the number in the backend's deltas of this part
        self._template: Template | None = None  # of the latest run of them, and whether it needs no change
        self._is_right = False
        self._name = self._head = self._place = self._tail = b""

    def write(self, type: str, fields: dict[str, Any]) -> bytes:
        number, self.number = self.number, self.number + 1
        event = {"type": type, "sequence_number": number, **fields}
        event |= {"type": type, "sequence_number": number}  # over those of a frame of the backend
        data = _json(event)
        return data if self._socket else sse.write_named(type, data)

    def write_all(self, steps: Steps) -> list[bytes]:
        return [self.write(type, fields) for type, fields in steps]

    def prepare(self, item: Growing) -> None:
        """A part begins: the bytes around each of its deltas."""
        self._item = item
        self._pieces = item.pieces
        self._lead = self._middle = b""
        self._template = None
        self._name = b"" if self._socket else b"event: %b\ndata: " % item.delta_type
        self._head = self._name + b'{"type":"%b","sequence_number":' % item.delta_type
        place = (_json(item.id), item.place, item.delta_place())
        self._place = b',"item_id":%b,"output_index":%d%b,"delta":' % place
        self._here = _fields(b"{" + self._place[1:] + b"0}")
        del self._here["delta"]
        self._tail = item.delta_extra + b"}" + self._end

    def delta(self, event: Delta) -> Sequence[bytes]:
        """A delta in as many events as it came in."""
        self._pieces.append(event.text)
        self.held += len(event.text)
        frame = event.frame
        if frame is not None:
            return self._framed(frame)
        number = self.number
        if event.pieces is None:
            self.number = number + 1
            return (self._head + b"%d" % number + self._place + _json(event.text) + self._tail,)
        return self._spread(event.pieces.texts, self._head, self._place + b'"', b'"' + self._tail)

    def _spread(self, texts: Sequence[bytes], head: bytes, place: bytes, tail: bytes) -> Sequence[bytes]:
        number = self.number
        self.number = number + len(texts)
        return [head + b"%d" % each + place + text + tail for each, text in enumerate(texts, number)]

    def _framed(self, frame: Frame) -> Sequence[bytes]:
        """A frame as it came, or a run of them, under our own numbers."""
        pieces = frame.pieces
        if pieces is None:
            number, self.number = b"%d" % self.number, self.number + 1
            data = frame.data
            if not data.startswith(self._lead + number + self._middle):
                data = self._fitted(data, number)
            return (self._name + data + self._end,)
        template = pieces.template
        if template is not self._template:
            self._template = template
            self._is_right = bool(template.middle) and self._fits(_fields(template.whole(b"", 0)))
        if not self._is_right:
            return [piece for data in pieces.single() for piece in self._framed(Frame(frame.event, data))]
        if pieces.number == self.number and not self._socket and template.lead.startswith(self._name):
            self.number += len(pieces.texts)
            return (pieces.written,)
        head, tail = template.lead[template.data :], template.tail.removesuffix(b"\n\n") + self._end
        return self._spread(pieces.texts, self._name + head, template.middle + template.key, tail)

    def _fits(self, fields: dict[str, msgspec.Raw]) -> bool:
        """Whether a frame names and counts its item as we do and lacks nothing: only its number may be another."""
        assert self._item is not None
        extra = b"logprobs" not in self._item.delta_extra or "logprobs" in fields
        return extra and all(fields.get(name) == value for name, value in self._here.items())

    def _fitted(self, data: bytes, number: bytes) -> bytes:
        """A frame under our number: the first of its part, or one that counts or names something otherwise."""
        numbered = self._numbered(data, number)
        if numbered is None:
            fields = _fields(data)
            if not self._fits(fields):
                return self._overlaid(fields, number)
            if not self._lead:
                self._learn(data)
                numbered = self._numbered(data, number)
        return numbered or _json({**_fields(data), "sequence_number": msgspec.Raw(number)})

    def _numbered(self, data: bytes, number: bytes) -> bytes | None:
        """A frame like the one that was learned from, under our number."""
        lead = self._lead
        end = data.find(b",", len(lead))
        if lead and data.startswith(lead) and data[len(lead) : end].isdigit() and data.startswith(self._middle, end):
            return lead + number + data[end:]
        return None

    def _learn(self, data: bytes) -> None:
        """What stands around the number in a frame that fits, if it holds all that makes it fit."""
        lead, found, rest = data.partition(NUMBER)
        middle = rest[rest.find(b",") : rest.find(DELTA) + len(DELTA)]
        try:
            before = _fields(lead + found + b"0" + middle + b"0}")
        except msgspec.DecodeError:  # the number or the text is not where it usually is
            before = {}
        is_learned = lead.count(b"{") == 1 and self._here.items() <= before.items()
        self._lead, self._middle = (lead + found, middle) if is_learned else (NOTHING, b"")

    def _overlaid(self, fields: dict[str, msgspec.Raw], number: bytes) -> bytes:
        """A frame that counts or names its item otherwise, with our own fields over it."""
        ours: dict[str, Any] = {"sequence_number": msgspec.Raw(number), **self._here}
        if self._item is not None and self._item.delta_extra:
            fields.setdefault("logprobs", msgspec.Raw(b"[]"))
        return _json({**fields, **ours})
