"""A kept response as one object again, or as the stream it could have been."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from toolwire.backends.responses.decode import Decoder
from toolwire.core.errors import Failure
from toolwire.core.events import Event, TurnFailed
from toolwire.core.loose import CALL_TYPES
from toolwire.core.notes import Figures, TurnStats
from toolwire.dialects import responses
from toolwire.memory.store import Record

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Kept(msgspec.Struct):
    toolwire: Figures | None = None


_decode_kept = msgspec.json.Decoder(_Kept).decode


class _Item(msgspec.Struct):
    type: str = ""


_decode_item = msgspec.json.Decoder(_Item).decode


def figures_of(record: Record, output: Sequence[msgspec.Raw]) -> Figures:
    """The figures that are kept with a response that is over; of one without any, the calls in its output."""
    with suppress(msgspec.ValidationError):  # of another version
        if (kept := _decode_kept(record.response).toolwire) is not None:
            return kept
    return Figures(sum(_decode_item(item).type in CALL_TYPES for item in output))


def full_response(record: Record, output: Sequence[msgspec.Raw]) -> bytes:
    """The response object. Calls whose outputs came no longer wait."""
    fields: dict[str, Any] = {**_fields(record.response), "output": output}
    fields.pop("toolwire", None)
    if record.continuation and "required_action" in fields:
        del fields["required_action"]
        fields["status"] = "completed"
    return _encode(fields)


def replayed(record: Record, output: Sequence[msgspec.Raw]) -> list[bytes]:
    """Events that say the same as a response that is over, for one whose own were not kept."""
    response = full_response(record, output)
    read = msgspec.json.decode(response, type=_Over)
    asked = _encode({**_fields(record.fields), "input": []})
    request = responses.read_request(asked).request(store=True)
    created = int(record.created)
    waits = read.status == "incomplete" and read.required_action is not None
    encoder = responses.StreamEncoder(
        request, record.id, created, TurnStats(), lambda: read.completed_at or created, extended=waits
    )
    return [piece for event in _events(read, response) for piece in encoder.feed(event)]


class _Error(msgspec.Struct):
    code: str = "server_error"
    message: str = ""


class _Over(msgspec.Struct):
    """What a finished response says about its end."""

    status: str
    completed_at: int | None = None
    error: _Error | None = None
    required_action: dict[str, Any] | None = None


def _events(read: _Over, response: bytes) -> list[Event]:
    """The events of a finished turn. What it delivered comes first, however it ended."""
    if read.status in ("completed", "incomplete") and read.required_action is None:
        return list(Decoder("", keeps_frames=True).feed_plain(response))
    whole = _encode({**_fields(response), "status": "completed", "error": None})
    events = list(Decoder("", keeps_frames=True).feed_plain(whole))
    if read.status in ("completed", "incomplete"):
        return events
    error = read.error or _Error("cancelled", "The response was cancelled.")
    return [*events[:-1], TurnFailed(Failure(500, error.code, error.message))]
