"""Carries the fields of a server's events that no turn event has, for clients of the same dialect.

A delta that no policy touched is written as its original event, with our index. Blocks without a turn event (server
tools and their results) are passed on whole, in their position; of the other blocks, of the message and of its end, the
unknown fields are kept.
"""

from toolwire.core import sse
from toolwire.core.batch import BatchWriter
from toolwire.core.events import Reason
from toolwire.core.raw import NULL, Fields, fields_of, text_of, to_json
from toolwire.core.sse import Frame

_MEANING: dict[str, Reason] = {
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
    return sse.write_named(type, to_json({**fields_of(data), "type": type, "index": index}))


def block_type(block: Fields) -> str:
    """The type of a block, or the empty string."""
    return text_of(block.get("type", b'""'))


def original_reason(reason: Reason, delta: Fields) -> str:
    """The server's `stop_reason`, if it means the same as ours or is unknown."""
    given = delta.get("stop_reason", NULL)
    reason_text = text_of(given) if given != NULL else ""
    return reason_text if reason_text and _MEANING.get(reason_text, "stop") == reason else ""
