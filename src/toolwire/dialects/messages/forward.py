"""Forwards the unknown fields of a Messages server's events to Messages clients.

A delta that no policy touched is written as its original event, with our index. Blocks without turn events (server
tools and their results) are forwarded whole, in their position. The unknown fields of other blocks, of the message and
of its end are kept.
"""

from toolwire.core import sse
from toolwire.core.batch import BatchWriter
from toolwire.core.events import Reason
from toolwire.core.raw import NULL, Fields, fields_of, text_of, to_json
from toolwire.core.sse import Frame

_REASONS: dict[str, Reason] = {
    "end_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filter",
}


class DeltaForwarder:
    """Writes deltas as the events they came in."""

    def __init__(self) -> None:
        self._index = -1
        self._lead = b""
        self._batch_writer = BatchWriter()

    def write(self, frame: Frame, index: int) -> bytes:
        """Write a frame or a batch, with our index of its block."""
        if index != self._index:
            self._index = index
            self._lead = b'{"type":"content_block_delta","index":%d,' % index
        if frame.batch is None:
            return self._event(frame.data)
        return self._batch_writer.write(frame.batch, self._event, index)

    def _event(self, data: bytes) -> bytes:
        if not data.startswith(self._lead):
            return set_index("content_block_delta", data, self._index)
        return b"event: content_block_delta\ndata: " + data + b"\n\n"


def set_index(type: str, data: bytes, index: int) -> bytes:
    """Encode an event about a block with our index."""
    return sse.write_named(type, to_json({**fields_of(data), "type": type, "index": index}))


def type_of(block: Fields) -> str:
    """The type of a block, or the empty string."""
    return text_of(block.get("type", b'""'))


def original_reason_for(reason: Reason, delta: Fields) -> str:
    """The server's `stop_reason`, if it means the same as ours or is unknown."""
    given = delta.get("stop_reason", NULL)
    reason_text = text_of(given) if given != NULL else ""
    return reason_text if reason_text and _REASONS.get(reason_text, "stop") == reason else ""
