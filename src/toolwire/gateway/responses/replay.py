"""A kept response as one object again, or as the stream it could have been."""

from typing import Any

import msgspec

from toolwire.backends.responses.decode import Decoder
from toolwire.core.errors import Failure
from toolwire.core.events import Event, TurnFailed
from toolwire.core.notes import TurnStats
from toolwire.dialects import responses
from toolwire.memory.store import Record, Store

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def full_response(record: Record, output: list[msgspec.Raw]) -> bytes:
    """The response object. Calls whose outputs came no longer wait."""
    fields: dict[str, Any] = {**_fields(record.response), "output": output}
    if record.continuation and "required_action" in fields:
        del fields["required_action"]
        fields["status"] = "completed"
    return _encode(fields)


async def replayed(store: Store, owner: str, record: Record) -> list[bytes]:
    """Events that say the same as a response that is over, for one whose own were not kept."""
    response = full_response(record, await store.output(owner, record.id))
    read = msgspec.json.decode(response, type=_Over)
    asked = _encode({**_fields(record.fields), "input": []})
    request = responses.read_request(asked).request(store=True)
    stats, created = TurnStats(), int(record.created)
    waits = read.status == "incomplete" and read.required_action is not None
    encoder = responses.StreamEncoder(
        request, record.id, created, stats, lambda: read.completed_at or created, extended=waits
    )
    pieces: list[bytes] = []
    for event in _events(read, response):
        stats.feed(event)
        pieces += encoder.feed(event)
    return pieces


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
