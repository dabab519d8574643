"""A run that is not over, as anybody sees it by what is committed of it; and its end by somebody who did not run it."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.raw import to_raw
from toolwire.core.shares import Shares
from toolwire.dialects.openai import error_object
from toolwire.dialects.responses.response import failed_code
from toolwire.dialects.responses.writer import Writer
from toolwire.gateway.responses.event_log import cut
from toolwire.gateway.responses.shown import ShownItems
from toolwire.memory.store import EventChunk, Follow, KeptItem, Record, Store

AT_ONCE = 1024 * 1024
"""Bytes of events that are read at a time."""
REMEMBERED = 16 * 1024 * 1024
"""Bytes of events whose items are remembered for the next poll."""

CANCELLED = Failure(499, "cancelled", "The response was cancelled.")
OWNER_LOST = Failure(
    500,
    "owner_lost",
    "The process that produced this response is gone, and what it had begun cannot be repeated.",
)

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Known(msgspec.Struct):
    id: str = ""


_decode_known = msgspec.json.Decoder(_Known).decode


class Progress(msgspec.Struct, frozen=True):
    """How far a run has come, by its committed events."""

    events: int = 0
    items: ShownItems = msgspec.field(default_factory=ShownItems)
    size: int = 0
    """Bytes of these events."""


async def progress_of(store: Store, owner: str, id: str, before: Progress | None = None) -> Progress:
    """What can be seen of a run. What was seen before is not read again, and grows by what is new."""
    before = before or Progress()
    items, events, size = before.items, before.events, before.size
    async for chunk in _chunks(store, owner, id, events):
        events = chunk.first + chunk.count
        size += len(chunk.frames)
        items.feed(chunk.frames)
    return Progress(events, items, size)


class Polled:
    """How far runs have come whose clients poll them: each poll reads what is new since the one before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Shares[tuple[str, str], Progress] = Shares(REMEMBERED)

    async def progress(self, owner: str, id: str) -> Progress:
        before = self._known.get((owner, id))
        self._known.pop((owner, id))  # it changes now: of two polls at once, the second one begins anew
        found = await progress_of(self._store, owner, id, before)
        self._known.put(owner, (owner, id), found, found.size)
        return found


async def _chunks(store: Store, owner: str, id: str, number: int) -> AsyncIterator[EventChunk]:
    """The committed events of a run from this number on."""
    while True:
        [followed] = await store.follow([Follow(owner, id, number)], AT_ONCE)
        for chunk in followed.chunks:
            yield cut(chunk, number)
            number = chunk.first + chunk.count
        if not followed.chunks:
            return


def unfinished_response(record: Record, progress: Progress) -> bytes:
    """The response as it is now."""
    status = "in_progress" if progress.events else record.status
    return msgspec.json.encode({**_fields(record.response), "status": status, "output": progress.items.complete})


def ended(record: Record, progress: Progress, failure: Failure) -> tuple[Record, list[KeptItem], EventChunk]:
    """A run that ends with this failure: the response, its output and its last events."""
    writer = Writer(socket=False)
    output = progress.items.all
    fields: dict[str, Any] = {**_fields(record.response), "output": output}
    pieces = [] if progress.events else _opening(writer, record)
    writer.number = progress.events or writer.number
    first = progress.events
    error = error_object(failure)
    pieces.append(writer.write("error", {**error, "error": error}))
    fields |= {"status": "failed", "error": {"code": failed_code(failure), "message": failure.message}}
    pieces.append(writer.write("response.failed", {"response": to_raw(fields)}))
    if failure is CANCELLED:
        fields |= {"status": "cancelled", "error": None}
    body = msgspec.json.encode({**fields, "output": []})
    made = [KeptItem(_decode_known(item).id, item) for item in output]
    over = msgspec.structs.replace(record, status=fields["status"], response=body)
    return over, made, EventChunk(first, len(pieces), b"".join(pieces))


def _opening(writer: Writer, record: Record) -> list[bytes]:
    """The events that every background run begins with."""
    queued = _fields(record.response)
    going_on = to_raw({**queued, "status": "in_progress"})
    events = (("created", to_raw(queued)), ("queued", to_raw(queued)), ("in_progress", going_on))
    return [writer.write(f"response.{type}", {"response": response}) for type, response in events]
