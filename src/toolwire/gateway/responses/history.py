"""Loads what a request continues, and stores its turn.

State belongs to the gateway: earlier items are prepended here, even if the backend could do it. A response is stored
when its turn is over, before its last event is sent.
"""

import re
from collections.abc import Sequence

import msgspec

from toolwire.core.bounds import Bounds
from toolwire.core.errors import BadRequest
from toolwire.core.notes import Figures
from toolwire.core.request import Request, ResultEntry
from toolwire.dialects.responses import ParsedRequest
from toolwire.dialects.responses.response import ResponseObject
from toolwire.gateway.body import run_in_steps
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.responses.conversation_lock import UNLOCKED, ConversationLock
from toolwire.gateway.responses.socket_cache import SocketCache
from toolwire.memory.sql.store import Store
from toolwire.memory.store import Effects, Fence, KeptItem, Record, RunLimits, TooLarge

Raw = msgspec.Raw

_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode
_REFERENCE = re.compile(rb'"item_reference"')

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "additional_tools": "at",
}


class _ItemHead(msgspec.Struct):
    type: str = "message"
    id: str | None = None


_decode_head = msgspec.json.Decoder(_ItemHead).decode


def _read_head(item: Raw) -> _ItemHead:
    try:
        return _decode_head(item)
    except msgspec.DecodeError:  # the decoder of the request reports the fault
        return _ItemHead("")


class ResumedRequest(msgspec.Struct, frozen=True):
    """A request with everything that it continues."""

    owner: str
    parsed: ParsedRequest
    request: Request
    earlier: Sequence[Raw]
    store: bool
    conversation: str
    cache: SocketCache | None = None
    """The cache of its WebSocket connection, for the next turn."""
    lock: ConversationLock = UNLOCKED
    """The lock under which its turn is stored."""

    @property
    def previous(self) -> str:
        return self.parsed.body.previous_response_id or ""

    @property
    def answered(self) -> list[str]:
        """The ids of the calls whose results the request brings."""
        added = self.request.entries[max(0, len(self.request.entries) - len(self.parsed.items)) :]
        return [entry.call_id for entry in added if isinstance(entry, ResultEntry)]

    @property
    def answers_calls(self) -> bool:
        """Whether it brings results for calls of the response that it continues."""
        return bool(self.previous and self.answered)


class StoredTurn(msgspec.Struct, frozen=True):
    """A finished turn as it is stored."""

    owner: str
    record: Record
    given: Sequence[KeptItem] | None
    made: Sequence[KeptItem]
    effects: Effects


class ResponseHistory:
    """Opens requests and stores responses."""

    def __init__(self, store: Store, bounds: Bounds, limits: RunLimits, *, stores_by_default: bool) -> None:
        self._store = store
        self._limits = limits
        self._bounds = bounds
        self._stores_by_default = stores_by_default

    async def open(
        self,
        owner: str,
        parsed: ParsedRequest,
        reservation: Reservation,
        cache: SocketCache | None = None,
        lock: ConversationLock = UNLOCKED,
    ) -> ResumedRequest:
        """The request with all earlier items before its own; the reservation grows by their size.

        Raises `BadRequest` if anything that it continues or refers to is missing, or the whole is too large.
        """
        body = parsed.body
        earlier: Sequence[Raw] = ()
        field = "input"
        own = sum(map(len, parsed.items))
        room = self._bounds.body - own
        try:
            if body.previous_response_id:
                field = "previous_response_id"
                earlier = await self._load_chain(owner, body.previous_response_id, cache, room)
            elif parsed.conversation:
                field = "conversation"
                if await self._store.load_conversation(owner, parsed.conversation) is None:
                    message = f"There is no conversation {parsed.conversation!r} here."
                    raise BadRequest(message, "conversation", "conversation_not_found", status=404)
                earlier = await self._store.load_input(owner, parsed.conversation, room)
            items = await self._resolve_references(owner, parsed.items, earlier, room)
        except TooLarge:
            message = f"{field}: With all that it continues or refers to, the request has more than "
            message += f"{self._bounds.body} bytes (server.max_body). Compact the conversation, or begin a new one."
            raise BadRequest(message, field, "request_too_large", status=413) from None
        parsed = msgspec.structs.replace(parsed, items=items)
        store = self._stores_by_default if body.store is None else body.store
        size = sum(map(len, earlier)) + sum(map(len, parsed.items))
        reservation.grow(max(0, size - own))
        request = await run_in_steps(parsed.decode_steps(earlier, self._bounds, store=store), size)
        return ResumedRequest(owner, parsed, request, earlier, store, parsed.conversation, cache, lock)

    async def _load_chain(self, owner: str, id: str, cache: SocketCache | None, room: int) -> Sequence[Raw]:
        items = cache.get(id) if cache is not None else None
        if items is not None and (size := sum(map(len, items))) > room:
            raise TooLarge(size)
        if items is None:
            record = await self._store.load(owner, id)
            if record is not None and record.status in ("queued", "in_progress"):
                message = f"The response {id!r} is not finished yet."
                raise BadRequest(message, "previous_response_id", "response_not_finished")
            items = await self._store.load_chain(owner, id, room)
        if items is None:
            missing = await self._store.find_missing_link(owner, id)
            message = f"There is no response {missing!r} to continue."
            if missing != id:
                message = f"The response {id!r} cannot be continued: what it continues, {missing!r}, is not here."
            raise BadRequest(message, "previous_response_id", "previous_response_not_found", status=404)
        return items

    async def _resolve_references(
        self, owner: str, items: Sequence[Raw], earlier: Sequence[Raw], room: int
    ) -> tuple[Raw, ...]:
        """The items, with references replaced by their items, or omitted if these are in the chain already."""
        if not any(map(_REFERENCE.search, items)):
            return tuple(items)
        present = {_read_head(item).id for item in earlier}
        references = (read.id for item in items if (read := _read_head(item)).type == "item_reference")
        wanted = [id for id in references if id and id not in present]
        found = await self._store.find_items(owner, wanted, room - sum(map(len, earlier)))
        out: list[Raw] = []
        for item in items:
            read = _read_head(item)
            if read.type != "item_reference":
                out.append(item)
            elif read.id not in present:
                out.append(found.get(read.id or "", item))
        return tuple(out)

    async def store(
        self, opened: ResumedRequest, response: ResponseObject, output: list[Raw], figures: Figures
    ) -> None:
        """Store a finished turn. A turn with `store: false` is still added to its conversation."""
        if opened.cache is not None and response.status in ("completed", "incomplete"):
            # An item is a view of the whole message; a copy releases the message.
            items = (*opened.earlier, *(item.copy() for item in opened.parsed.items), *output)
            opened.cache.put(response.id, items)
        if not opened.store and not opened.conversation:
            return
        turn, guard = self.make_turn(opened, response, output, figures), opened.lock.require_lease()
        if not opened.store:
            if turn.effects.conversation and guard is not None:
                items = [*(turn.given or ()), *turn.made]
                await self._store.add_turn(turn.owner, response.id, items, turn.effects, guard)
            return
        await self._store.save(turn.owner, turn.record, turn.given, turn.made, turn.effects, guard=guard)

    def make_turn(
        self, opened: ResumedRequest, response: ResponseObject, output: list[Raw], figures: Figures
    ) -> StoredTurn:
        """A finished turn. The input of a background run was stored when it was queued."""
        is_known = opened.parsed.body.background and not opened.conversation
        given = None if is_known else make_input_items(opened.parsed.items, response.id.partition("_")[2])
        made = [KeptItem(_read_head(item).id or "", item) for item in output]
        record = self._make_record(opened, response, figures.comment())
        return StoredTurn(opened.owner, record, given, made, _find_effects(opened, response))

    async def queue(self, opened: ResumedRequest, response: ResponseObject, plan: bytes, member: str) -> Fence:
        """Store a response whose turn has yet to run, and its run, which this member owns. Raises `TooManyRuns`."""
        record, guard = self._make_record(opened, response), opened.lock.require_lease()
        given = make_input_items(opened.parsed.items, response.id.partition("_")[2])
        effects = Effects((opened.previous, response.id) if opened.answers_calls else None)
        limits = self._limits
        return await self._store.queue(
            opened.owner, record, given, effects, plan=plan, member=member, guard=guard, limits=limits
        )

    def _make_record(self, opened: ResumedRequest, response: ResponseObject, figures: bytes = b"") -> Record:
        """A response as it is stored, with the figures of a finished turn."""
        return Record(
            response.id,
            response.created,
            response.status,
            _encode({name: value for name, value in opened.parsed.fields.items() if name != "input"}),
            bytes(response.encode([], figures)),
            opened.previous,
            opened.conversation,
        )


def _find_effects(opened: ResumedRequest, response: ResponseObject) -> Effects:
    """The effects of storing a finished turn."""
    answered = opened.answered if opened.previous or opened.conversation else []
    continued = opened.previous if answered else ""
    if response.status in ("completed", "incomplete"):
        link = (continued, response.id) if continued else None
        return Effects(link, opened.conversation, tuple(answered) if opened.conversation else ())
    # A background run was linked when it was queued; now its outputs may be submitted again.
    return Effects((continued, "") if continued and opened.parsed.body.background else None)


def make_input_items(items: Sequence[Raw], seed: str) -> list[KeptItem]:
    """Input items as they are stored and listed: each with an id and a type."""
    return [_make_input_item(item, f"{seed}i{index + 1:02d}") for index, item in enumerate(items)]


def _make_input_item(item: Raw, seed: str) -> KeptItem:
    read = _read_head(item)
    if read.id and read.type != "message":
        return KeptItem(read.id, item)
    fields: dict[str, object] = {**_fields(item)}
    id = read.id or f"{_PREFIXES.get(read.type, 'item')}_{seed}"
    fields |= {"id": id, "type": read.type}
    if read.type == "message":
        fields.setdefault("status", "completed")
        content = fields.get("content")
        if isinstance(content, Raw) and bytes(content).startswith(b'"'):
            kind = "output_text" if fields.get("role") == Raw(b'"assistant"') else "input_text"
            part: dict[str, object] = {"type": kind, "text": content}
            fields["content"] = [{**part, "annotations": []} if kind == "output_text" else part]
    return KeptItem(id, Raw(_encode(fields)))
