"""Carries the fields of a server's events that no turn event has, for clients of the same dialect.

A delta that no policy touched is written as its original event, with our index. Blocks without a turn event (server
tools and their results) are passed on whole, in their position; of the other blocks, of the message and of its end, the
unknown fields are kept.
"""

import msgspec

from toolwire.core import sse
from toolwire.core.batch import BatchWriter
from toolwire.core.events import Reason
from toolwire.core.sse import Frame

Fields = dict[str, msgspec.Raw]

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields).decode
_text = msgspec.json.Decoder(str).decode

_MEANING: dict[str, Reason] = {
    "end_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filter",
}
_NULL = msgspec.Raw(b"null")


class DeltaForwarder:
    """Writes deltas as the events they came in."""

    def __init__(self) -> None:
        self._index = -1
        self._lead = b""
        self._batch_writer = BatchWriter()

    def write(self, frame: Frame, index: int) -> bytes:
        """A frame or a batch, with our index of its block."""
        if index != self._index:
            self._index = index
            self._lead = b'{"type":"content_block_delta","index":%d,' % index
        if frame.batch is None:
            return self._event(frame.data)
        return self._batch_writer.write(frame.batch, self._event, index)

    def _event(self, data: bytes) -> bytes:
        if not data.startswith(self._lead):
            return with_index("content_block_delta", data, self._index)
        return b"event: content_block_delta\ndata: " + data + b"\n\n"


def with_index(type: str, data: bytes, index: int) -> bytes:
    """An event about a block, with our index."""
    return sse.write_named(type, _json({**_fields(data), "type": type, "index": index}))


def object_field(data: bytes, name: str) -> Fields:
    """The fields of one field that is an object."""
    value = _fields(data).get(name, _NULL)
    return _fields(value) if value != _NULL else {}


def block_type(block: Fields) -> str:
    """The type of a block, or the empty string."""
    return _text(block.get("type", b'""'))


def fields_of(data: bytes) -> Fields:
    """The fields of a JSON object, each as raw JSON."""
    return _fields(data)


def without_nulls(fields: Fields) -> Fields:
    """The fields that are not null."""
    return {name: value for name, value in fields.items() if value != _NULL}


def usage_of(message: Fields) -> Fields:
    """The server's usage in a message, without nulls."""
    counted = message.get("usage", _NULL)
    return without_nulls(_fields(counted)) if counted != _NULL else {}


def original_reason(reason: Reason, delta: Fields) -> str:
    """The server's `stop_reason`, if it means the same as ours or is unknown."""
    given = delta.get("stop_reason", _NULL)
    reason_text = _text(given) if given != _NULL else ""
    return reason_text if reason_text and _MEANING.get(reason_text, "stop") == reason else ""
