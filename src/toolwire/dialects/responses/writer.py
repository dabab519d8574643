"""Encodes events as bytes with sequence numbers. The backend's own deltas are written unchanged where possible."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from toolwire.core import sse
from toolwire.core.batch import Template, find_number
from toolwire.core.events import Delta
from toolwire.core.lane import SAMPLE_NUMBER
from toolwire.core.raw import Fields, Json, fields_of, to_json
from toolwire.core.sse import Frame
from toolwire.core.text import count_bytes
from toolwire.dialects.responses.items import CallItem, PartedItem, PendingEvents
from toolwire.dialects.responses.response import ResponseObject

GrowingItem: TypeAlias = PartedItem | CallItem
"""Items that grow by deltas."""

NUMBER = b'"sequence_number":'
DELTA = b'"delta":'
NO_LEAD = b" "
"""Set as the lead when the layout of deltas cannot be learned: no frame begins with it."""


class Writer:
    """Writes the events of one stream. On a `socket` each is one WebSocket message, without an event name."""

    def __init__(self, *, socket: bool) -> None:
        self.number = 0
        self.held = 0
        """Approximate bytes held until the end of the turn, because its last event repeats the output."""
        self._socket = socket
        self._end = b"" if socket else b"\n\n"
        self._item: GrowingItem | None = None
        self._pieces: list[str] = []
        self._position_fields: Fields = {}  # the fields of a delta that identify its part
        self._lead = self._middle = b""  # the bytes around the sequence number in the backend's deltas of this part
        self._template: Template | None = None  # of the last batch
        self._template_fits = False  # whether the last batch needs only new numbers
        self._name = self._head = self._position = self._tail = b""

    def write(self, type: str, fields: Json) -> bytes:
        """Encode one event."""
        number, self.number = self.number, self.number + 1
        event = {"type": type, "sequence_number": number, **fields}
        event |= {"type": type, "sequence_number": number}  # in place of those of the backend's frame
        data = to_json(event)
        return data if self._socket else sse.write_named(type, data)

    def write_response(self, response: ResponseObject, *types: str) -> list[bytes]:
        """Encode events of these types about the whole response."""
        fields = {"response": response.encode()}
        return [self.write(type, fields) for type in types]

    def write_all(self, events: PendingEvents) -> list[bytes]:
        """Encode events."""
        return [self.write(type, fields) for type, fields in events]

    def prepare(self, item: GrowingItem) -> None:
        """Encode the bytes around each delta of a new part. An item without a delta type gets none."""
        self._item = item
        self._pieces = item.pieces
        self._lead = self._middle = b""
        self._template = None
        self._name = b"" if self._socket else b"event: %b\ndata: " % item.delta_type
        self._head = self._name + b'{"type":"%b","sequence_number":' % item.delta_type if item.delta_type else b""
        position = (to_json(item.id), item.index, item.encode_delta_position())
        self._position = b',"item_id":%b,"output_index":%d%b,"delta":' % position
        self._position_fields = fields_of(b"{" + self._position[1:] + b"0}")
        del self._position_fields["delta"]
        self._tail = item.delta_extra + b"}" + self._end

    def write_delta(self, event: Delta) -> Sequence[bytes]:
        """Encode a delta, in as many events as it arrived in."""
        self._pieces.append(event.text)
        self.held += count_bytes(event.text)
        if not self._head:
            return ()
        frame = event.frame
        if frame is not None:
            return self._forward(frame)
        number = self.number
        if event.batch is None:
            self.number = number + 1
            return (self._head + b"%d" % number + self._position + to_json(event.text) + self._tail,)
        texts, head, position, tail = event.batch.texts, self._head, self._position + b'"', b'"' + self._tail
        self.number = number + len(texts)
        return [head + b"%d" % each + position + text + tail for each, text in enumerate(texts, number)]

    def sample(self, event: Delta) -> tuple[bytes, int] | None:
        """What `write_delta` writes with `SAMPLE_NUMBER`, without taking the delta in, and its number."""
        number, held = self.number, self.held
        self.number = SAMPLE_NUMBER
        pieces = self.write_delta(event)
        self._pieces.pop()
        self.number, self.held = number, held
        return (pieces[0], number) if len(pieces) == 1 else None

    def _forward(self, frame: Frame) -> Sequence[bytes]:
        """Write an original frame or batch, with our sequence numbers."""
        batch = frame.batch
        if batch is None:
            number, self.number = b"%d" % self.number, self.number + 1
            data = frame.data
            if not data.startswith(self._lead + number + self._middle):
                data = self._renumber(data, number)
            return (self._name + data + self._end,)
        template = batch.template
        if template is not self._template:
            self._template = template
            fields = fields_of(template.render(b"", 0, b""))
            is_numbered = template.is_numbered and fields.get("sequence_number") == msgspec.Raw(b"0")
            self._template_fits = is_numbered and self._has_our_ids(fields)
        if not self._template_fits:
            return [piece for data in batch.render_frames() for piece in self._forward(Frame(frame.event, data))]
        if batch.number == self.number and not self._socket and template.lead.startswith(self._name):
            self.number += len(batch.texts)
            return (batch.original,)
        number, self.number = self.number, self.number + len(batch.texts)
        return [self._name + data + self._end for data in batch.render_frames(number)]

    def _has_our_ids(self, fields: Fields) -> bool:
        """Whether a frame has our ids and indexes and all required fields, so that only its number may differ."""
        assert self._item is not None
        extra = b"logprobs" not in self._item.delta_extra or "logprobs" in fields
        return extra and all(fields.get(name) == value for name, value in self._position_fields.items())

    def _renumber(self, data: bytes, number: bytes) -> bytes:
        """Set our number in a frame that is the first of its part, or has another layout, id or index."""
        numbered = self._set_number(data, number)
        if numbered is not None:
            return numbered
        fields = fields_of(data)
        if not self._has_our_ids(fields):
            if self._item is not None and self._item.delta_extra:
                fields.setdefault("logprobs", msgspec.Raw(b"[]"))
            return to_json({**fields, "sequence_number": msgspec.Raw(number), **self._position_fields})
        if not self._lead:
            # Learn the bytes around the number, if they contain all position fields.
            lead, found, rest = data.partition(NUMBER)
            middle = rest[rest.find(b",") : rest.find(DELTA) + len(DELTA)]
            try:
                before = fields_of(lead + found + b"0" + middle + b"0}")
            except msgspec.DecodeError:  # the number or the text is not where it usually is
                before = {}
            is_learned = lead.count(b"{") == 1 and self._position_fields.items() <= before.items()
            self._lead, self._middle = (lead + found, middle) if is_learned else (NO_LEAD, b"")
            numbered = self._set_number(data, number)
        has_one = "sequence_number" in fields and data.count(b'"sequence_number"') == 1
        if numbered is None and has_one and (found := find_number(data)) is not None:
            numbered = data[: found.start(1)] + number + data[found.end(1) :]
        return numbered or to_json({**fields, "sequence_number": msgspec.Raw(number)})

    def _set_number(self, data: bytes, number: bytes) -> bytes | None:
        """Set our number in a frame of the learned layout; None if its layout differs."""
        lead = self._lead
        end = data.find(b",", len(lead))
        if lead and data.startswith(lead) and data[len(lead) : end].isdigit() and data.startswith(self._middle, end):
            return lead + number + data[end:]
        return None


class SilentWriter(Writer):
    """Collects the items of a response that is sent in one piece, and encodes no events."""

    def __init__(self) -> None:
        super().__init__(socket=True)

    def write(self, type: str, fields: Json) -> bytes:
        return b""

    def write_response(self, response: ResponseObject, *types: str) -> list[bytes]:
        return []

    def prepare(self, item: GrowingItem) -> None:
        self._pieces = item.pieces

    def write_delta(self, event: Delta) -> Sequence[bytes]:
        self._pieces.append(event.text)
        return ()
