"""A stored response as one object, or as a stream: of its own events, or of equivalent ones."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec

from toolwire.backends.responses.decode import Decoder
from toolwire.core import sse
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import Event, TurnFailed
from toolwire.core.notes import Figures, TurnStats
from toolwire.core.shapes import CALL_TYPES
from toolwire.dialects import responses
from toolwire.gateway.http import cut_into_slices
from toolwire.gateway.responses.run_log import cut_chunk, make_chunk, select_events
from toolwire.gateway.responses.run_progress import encode_unfinished
from toolwire.gateway.responses.run_task import BackgroundRuns
from toolwire.gateway.shared import Shared
from toolwire.memory.store import Record, StoreFailed

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class StoredBody(msgspec.Struct, frozen=True):
    """A response in one piece. Once it is over, the figures of its turn are headers."""

    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()


class StoredResponses:
    """Reads stored responses, including those that other processes produce."""

    def __init__(self, shared: Shared, runs: BackgroundRuns) -> None:
        self._shared = shared
        self._store = shared.store
        self._runs = runs

    async def load(self, owner: str, id: str) -> Record:
        """The record of a response. Raises `BadRequest` (404) if this owner has no such response."""
        record = await self._store.load(owner, id)
        if record is None:
            raise response_not_found(id)
        return record

    async def read_body(self, owner: str, record: Record) -> StoredBody:
        """A response as it is now."""
        unstored = self._runs.get_unstored(owner, record.id)
        if unstored is not None:
            return StoredBody(unstored.response, _read_figures(unstored.turn.record, ()).headers())
        if not record.is_over:
            return StoredBody(encode_unfinished(record, await self._runs.progress.read(owner, record.id)))
        output = await self._store.load_output(owner, record.id)
        return StoredBody(_encode_finished(record, output), _read_figures(record, output).headers())

    async def open_stream(self, owner: str, record: Record, number: int = 0) -> AsyncIterator[bytes]:
        """The events of a response from this number on, and those to come."""
        if record.is_over and await self._store.load_events(owner, record.id, 0) is None:
            return _iterate(_replay(record, await self._store.load_output(owner, record.id), number))
        return self.follow(owner, record.id, number)

    async def follow(self, owner: str, id: str, number: int = 0) -> AsyncIterator[bytes]:
        """The stream of a background run from this event on, with keepalives."""
        reader, metrics = self._runs.open_reader(owner, id, number), self._shared.process.metrics
        metrics.follows += 1
        try:
            while True:
                try:
                    async with asyncio.timeout(self._shared.pace.keepalive or None):
                        chunks = await reader.read()
                except TimeoutError:
                    yield sse.write_comment(b"keepalive")
                    continue
                if chunks is None:
                    break
                for piece in cut_into_slices(chunk.frames for chunk in chunks):
                    yield piece
            comment = reader.comment
            if not comment:  # the run ended in another process, so its figures are in the store
                with suppress(StoreFailed):
                    record = await self._store.load(owner, id)
                    if record is not None and record.is_over:
                        figures = _read_figures(record, await self._store.load_output(owner, id))
                        comment = sse.write_comment(figures.comment())
            yield comment + sse.DONE
        finally:
            metrics.follows -= 1


def response_not_found(id: str) -> BadRequest:
    """The same error for a response of another owner as for one that does not exist."""
    message = f"There is no response {id!r} here: it was not stored, was deleted, has expired, or is not yours."
    return BadRequest(message, "response_id", "response_not_found", status=404)


async def _iterate(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class _StoredFigures(msgspec.Struct):
    toolwire: Figures | None = None


class _Item(msgspec.Struct):
    type: str = ""


_decode_figures = msgspec.json.Decoder(_StoredFigures).decode
_decode_item = msgspec.json.Decoder(_Item).decode


def _read_figures(record: Record, output: Sequence[msgspec.Raw]) -> Figures:
    """The figures stored with a finished response; without them, only the number of calls in its output."""
    with suppress(msgspec.ValidationError):  # written by another version
        if (stored := _decode_figures(record.response).toolwire) is not None:
            return stored
    return Figures(sum(_decode_item(item).type in CALL_TYPES for item in output))


def _encode_finished(record: Record, output: Sequence[msgspec.Raw]) -> bytes:
    """The response object. Calls whose outputs were submitted no longer wait."""
    fields: dict[str, Any] = {**_decode_fields(record.response), "output": output}
    fields.pop("toolwire", None)
    if record.continuation and "required_action" in fields:
        del fields["required_action"]
        fields["status"] = "completed"
    return _encode(fields)


class _Error(msgspec.Struct):
    code: str = "server_error"
    message: str = ""


class _Ending(msgspec.Struct):
    """How a finished response ended."""

    status: str
    completed_at: int | None = None
    error: _Error | None = None
    required_action: Any = None


def _replay(record: Record, output: Sequence[msgspec.Raw], number: int) -> Iterator[bytes]:
    """An equivalent stream for a finished response without stored events, from this event on."""
    response = _encode_finished(record, output)
    ending = msgspec.json.decode(response, type=_Ending)
    request = responses.read_request(_encode({**_decode_fields(record.fields), "input": []})).decode(store=True)
    created = int(record.created)
    waits = ending.status == "incomplete" and ending.required_action is not None
    encoder = responses.StreamEncoder(
        request, record.id, created, TurnStats(), lambda: ending.completed_at or created, extended=waits
    )
    whole = make_chunk(
        0, [select_events([piece for event in _make_events(ending, response) for piece in encoder.feed(event)])]
    )
    wanted = cut_chunk(whole, min(number, whole.count)).frames
    return chain(cut_into_slices((wanted,)), (sse.write_comment(_read_figures(record, output).comment()) + sse.DONE,))


def _make_events(ending: _Ending, response: bytes) -> list[Event]:
    """The events of a finished turn: its output first, however it ended."""
    if ending.status in ("completed", "incomplete") and ending.required_action is None:
        return list(Decoder("", keeps_frames=True).feed_plain(response))
    completed = _encode({**_decode_fields(response), "status": "completed", "error": None})
    events = list(Decoder("", keeps_frames=True).feed_plain(completed))
    if ending.status in ("completed", "incomplete"):
        return events
    error = ending.error or _Error("cancelled", "The response was cancelled.")
    return [*events[:-1], TurnFailed(Failure(500, error.code, error.message))]
