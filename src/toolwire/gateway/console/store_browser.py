"""Responses in the store, of every process and every machine that uses it.

The metadata of a response is shown to every viewer who sees its owner's turns. Its content is shown to its owner, and
to other viewers if the console keeps everything. Secrets are removed from both.
"""

from collections.abc import Awaitable

import msgspec
from starlette.requests import Request

from toolwire.core.errors import BadRequest
from toolwire.gateway.console.access import Viewer
from toolwire.gateway.console.http import run_in_thread
from toolwire.gateway.console.secrets import redact, redact_name
from toolwire.memory.sql.store import Store
from toolwire.memory.store import OwnedRecord, Raw, TooLarge

MAX_ROWS, MAX_BODIES_SIZE = 200, 16 * 1024 * 1024
"""Maximum number of responses in one answer, and of bytes of their bodies."""
MAX_CONTENT_SIZE = 4 * 1024 * 1024
"""Maximum bytes of input, and of output, that are shown of one response."""


class _StoredUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0


class _StoredFields(msgspec.Struct):
    model: str = ""
    background: bool | None = None
    usage: _StoredUsage | None = None


_decode_body = msgspec.json.Decoder(_StoredFields).decode


class StoreBrowser:
    """Handlers that show responses of the store."""

    def __init__(self, store: Store, secrets: tuple[bytes, ...], *, shows_everything: bool) -> None:
        self._store = store
        self._secrets = secrets
        self._shows_everything = shows_everything

    async def list_responses(self, request: Request, viewer: Viewer) -> object:
        """The responses that this viewer may see, the last used first."""
        found = await self._store.list_recent(None if viewer.sees_all else viewer.key, MAX_ROWS, MAX_BODIES_SIZE)
        return await run_in_thread(lambda: [self._make_row(each) for each in found])

    async def show_response(self, request: Request, viewer: Viewer) -> object:
        """One response, with its content if this viewer may see it."""
        owner, id = request.query_params.get("owner", viewer.key), request.path_params["id"]
        record = await self._store.load(owner, id) if viewer.sees(owner) else None
        if record is None:
            raise BadRequest("There is no such response in the store.", code="not_found", status=404)
        row = await run_in_thread(self._make_row, OwnedRecord(owner, record))
        if not self._shows_everything and (not viewer.key or viewer.key != owner):
            return {**row, "shown": False, "input": [], "output": []}
        input = await self._load_texts(self._store.load_input(owner, id, MAX_CONTENT_SIZE))
        output = await self._load_texts(self._store.load_output(owner, id))
        return {**row, "shown": True, "input": input, "output": output}

    def _make_row(self, found: OwnedRecord) -> dict[str, object]:
        """The metadata of a response, without the fields of a body that was too large to read."""
        record = found.record
        try:
            body = _decode_body(record.response)
        except msgspec.DecodeError:
            body = _StoredFields()
        return {
            "id": record.id,
            "owner": found.owner,
            "created": record.created,
            "status": record.status,
            "model": redact_name(body.model, self._secrets),
            "background": bool(body.background),
            "previous": record.previous,
            "conversation": record.conversation,
            "input_tokens": body.usage.input_tokens if body.usage else 0,
            "output_tokens": body.usage.output_tokens if body.usage else 0,
        }

    async def _load_texts(self, items: Awaitable[list[Raw]]) -> list[str] | None:
        """Items without secrets; None if they have too many bytes."""
        try:
            found = await items
        except TooLarge:
            return None
        if sum(map(len, found)) > MAX_CONTENT_SIZE:
            return None
        return await run_in_thread(
            lambda: [redact(bytes(each), self._secrets).decode(errors="replace") for each in found]
        )
