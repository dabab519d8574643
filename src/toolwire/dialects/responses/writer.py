"""Events to bytes: every event gets the next number, and a delta goes out as it came wherever that is possible."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from toolwire.core import sse
from toolwire.core.flow import Delta
from toolwire.core.sse import Frame
from toolwire.dialects.responses.items import CallItem, MessageItem, ReasoningItem, Steps

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Growing: TypeAlias = MessageItem | ReasoningItem | CallItem
"""Items that deltas add to."""

NUMBER = b'"sequence_number":'


class Writer:
    """Writes the events of one stream. On a `socket` each is one message, without a name."""

    def __init__(self, *, socket: bool) -> None:
        self.number = 0
        self._socket = socket
        self._end = b"" if socket else b"\n\n"
        self._item: Growing | None = None
        self._pieces: list[str] = []
        self._lead = b""  # how the backend's deltas of this part begin, up to their number
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
        self._lead = b""
        self._name = b"" if self._socket else b"event: %b\ndata: " % item.delta_type
        self._head = self._name + b'{"type":"%b","sequence_number":' % item.delta_type
        place = (_json(item.id), item.place, item.delta_place())
        self._place = b',"item_id":%b,"output_index":%d%b,"delta":' % place
        self._tail = item.delta_extra + b"}" + self._end

    def delta(self, event: Delta) -> Sequence[bytes]:
        """A delta in as many events as it came in."""
        self._pieces.append(event.text)
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
            if not data.startswith(self._lead + number + b","):
                data = self._fitted(data, number)
            return (self._name + data + self._end,)
        if not pieces.template.middle or not self._fits(frame.data):
            return [piece for data in pieces.single() for piece in self._framed(Frame(frame.event, data))]
        template = pieces.template
        if pieces.number == self.number and not self._socket and template.lead.startswith(self._name):
            self.number += len(pieces.texts)
            return (pieces.written,)
        head, tail = template.lead[template.data :], template.tail.removesuffix(b"\n\n") + self._end
        return self._spread(pieces.texts, self._name + head, template.middle + template.key, tail)

    def _fits(self, data: bytes) -> bool:
        """Whether frames of this kind need no change but their number."""
        item = self._item
        assert item is not None
        return item.keeps_place and item.counts_parts and item.delta_extra[1:11] in data

    def _fitted(self, data: bytes, number: bytes) -> bytes:
        """A frame that is not numbered as ours, or the first of its part, which shows how the others will be."""
        if not self._fits(data):
            return self._overlaid(data, number)
        lead = self._lead = self._lead or _lead(data)
        end = data.find(b",", len(lead))
        if data.startswith(lead) and data[len(lead) : end].isdigit():
            return lead + number + data[end:]
        return _json({**_fields(data), "sequence_number": msgspec.Raw(number)})

    def _overlaid(self, data: bytes, number: bytes) -> bytes:
        """A frame that counts or names its item otherwise, with our own fields over it."""
        item = self._item
        assert item is not None
        ours = _fields(b'{"sequence_number":' + number + self._place + b"0" + item.delta_extra + b"}")
        del ours["delta"]
        fields = _fields(data)
        if "logprobs" in fields:
            ours.pop("logprobs", None)
        return _json({**fields, **ours})


def _lead(data: bytes) -> bytes:
    """How a frame begins, up to its number, or something that no frame begins with."""
    head, found, rest = data.partition(NUMBER)
    is_its_own = found and head.count(b"{") == 1 and b"[" not in head and NUMBER not in rest
    return head + NUMBER if is_its_own else b" "
