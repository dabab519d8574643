"""What a server's own events say beyond our words, for clients of the same dialect.

A delta that no policy touched goes out in its own event, under our index. Blocks that we have no word for (server tools
and their results) pass whole, in their place; of the others, of the message and of its end, what we do not know is laid
under what we do.
"""

import msgspec

from toolwire.core import sse
from toolwire.core.events import Reason
from toolwire.core.pieces import Around
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


class Forward:
    """Writes deltas in the events they came in."""

    def __init__(self) -> None:
        self._index = -1
        self._lead = b""
        self._around = Around()

    def written(self, frame: Frame, index: int) -> bytes:
        """A frame, or a run of them, of the block that has this index with us."""
        if index != self._index:
            self._index = index
            self._lead = b'{"type":"content_block_delta","index":%d,' % index
        if frame.pieces is None:
            return self._event(frame.data)
        return self._around.spread(frame.pieces, self._event, index)

    def _event(self, data: bytes) -> bytes:
        if not data.startswith(self._lead):
            return passed("content_block_delta", data, self._index)
        return b"event: content_block_delta\ndata: " + data + b"\n\n"


def passed(type: str, data: bytes, index: int) -> bytes:
    """An event about a block, under our index."""
    return sse.write_named(type, _json({**_fields(data), "type": type, "index": index}))


def inner(data: bytes, name: str) -> Fields:
    """The fields of one field."""
    value = _fields(data).get(name, _NULL)
    return _fields(value) if value != _NULL else {}


def block_type(block: Fields) -> str:
    return _text(block.get("type", b'""'))


def fields_of(data: bytes) -> Fields:
    return _fields(data)


def without_nulls(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value != _NULL}


def usage_of(message: Fields) -> Fields:
    """What the server has counted so far."""
    counted = message.get("usage", _NULL)
    return without_nulls(_fields(counted)) if counted != _NULL else {}


def own_reason(reason: Reason, delta: Fields) -> str:
    """The server's own word for the end, if it means the same as ours or is one we do not know."""
    given = delta.get("stop_reason", _NULL)
    word = _text(given) if given != _NULL else ""
    return word if word and _MEANING.get(word, "stop") == reason else ""
