"""What a request continues, and what is kept of its turn.

State belongs to the gateway: the items of earlier turns are put in front of the new ones here, whatever the backend can
do. A response is kept when its turn is over, before its last event leaves.
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
from toolwire.gateway.body import stepped
from toolwire.gateway.flight import Claim
from toolwire.gateway.responses.conversation_lock import UNLOCKED, ConversationLock
from toolwire.gateway.responses.memory import Memory
from toolwire.memory.store import Effects, Fence, KeptItem, Record, RunLimits, Store, TooLarge

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


class _Known(msgspec.Struct):
    type: str = "message"
    id: str | None = None


_decode_known = msgspec.json.Decoder(_Known).decode


def _known(item: Raw) -> _Known:
    try:
        return _decode_known(item)
    except msgspec.DecodeError:  # whoever decodes the item will say what is wrong with it
        return _Known("")


class ResumedRequest(msgspec.Struct, frozen=True):
    """A request with everything it continues."""

    owner: str
    asked: ParsedRequest
    request: Request
    earlier: Sequence[Raw]
    store: bool
    conversation: str
    memory: Memory | None = None
    lock: ConversationLock = UNLOCKED
    """Under which its turn is stored."""

    @property
    def previous(self) -> str:
        return self.asked.body.previous_response_id or ""

    @property
    def answered(self) -> list[str]:
        """The calls that this request brings results for."""
        added = self.request.entries[max(0, len(self.request.entries) - len(self.asked.items)) :]
        return [entry.call_id for entry in added if isinstance(entry, ResultEntry)]

    @property
    def answers_calls(self) -> bool:
        """Whether it brings results for calls of the response that it continues."""
        return bool(self.previous and self.answered)


class KeptTurn(msgspec.Struct, frozen=True):
    """A turn that is over, as it is kept."""

    owner: str
    record: Record
    given: Sequence[KeptItem] | None
    made: Sequence[KeptItem]
    effects: Effects


class ResponseHistory:
    """Opens requests and keeps responses."""

    def __init__(self, store: Store, bounds: Bounds, limits: RunLimits, *, keeps_by_default: bool) -> None:
        self._store = store
        self._limits = limits
        self._bounds = bounds
        self._default = keeps_by_default

    def keeps(self, asked: ParsedRequest) -> bool:
        """Whether the turn of a request is to be kept."""
        return self._default if asked.body.store is None else asked.body.store

    async def open(
        self,
        owner: str,
        asked: ParsedRequest,
        claim: Claim,
        memory: Memory | None = None,
        lock: ConversationLock = UNLOCKED,
    ) -> ResumedRequest:
        """The request behind what was asked, with all earlier items in front; the claim grows by what these have."""
        body = asked.body
        earlier: Sequence[Raw] = ()
        own = sum(map(len, asked.items))
        room = self._bounds.body - own
        try:
            if body.previous_response_id:
                earlier = await self._chain(owner, body.previous_response_id, memory, room)
            elif asked.conversation:
                earlier = await self._conversation(owner, asked.conversation, room)
            items = await self._dereferenced(owner, asked.items, earlier, room)
        except TooLarge:
            field = _what_is_continued(asked)
            message = f"{field}: With all that it continues or refers to, the request has more than "
            message += f"{self._bounds.body} bytes (server.max_body). Compact the conversation, or begin a new one."
            raise BadRequest(message, field, "request_too_large", status=413) from None
        asked = msgspec.structs.replace(asked, items=items)
        store = self.keeps(asked)
        size = sum(map(len, earlier)) + sum(map(len, asked.items))
        claim.grow(max(0, size - own))
        request = await stepped(asked.decoding(earlier, self._bounds, store=store), size)
        return ResumedRequest(owner, asked, request, earlier, store, asked.conversation, memory, lock)

    async def _chain(self, owner: str, id: str, memory: Memory | None, room: int) -> Sequence[Raw]:
        items = memory.get(id) if memory is not None else None
        if items is not None and (size := sum(map(len, items))) > room:
            raise TooLarge(size)
        if items is None:
            record = await self._store.load(owner, id)
            if record is not None and record.status in ("queued", "in_progress"):
                message = f"The response {id!r} is not finished yet."
                raise BadRequest(message, "previous_response_id", "response_not_finished")
            items = await self._store.chain(owner, id, room)
        if items is None:
            missing = await self._store.missing_link(owner, id)
            message = f"There is no response {missing!r} to continue."
            if missing != id:
                message = f"The response {id!r} cannot be continued: what it continues, {missing!r}, is not here."
            raise BadRequest(message, "previous_response_id", "previous_response_not_found", status=404)
        return items

    async def _conversation(self, owner: str, id: str, room: int) -> list[Raw]:
        if await self._store.conversation(owner, id) is None:
            message = f"There is no conversation {id!r} here."
            raise BadRequest(message, "conversation", "conversation_not_found", status=404)
        return await self._store.input(owner, id, room)

    async def _dereferenced(
        self, owner: str, items: Sequence[Raw], earlier: Sequence[Raw], room: int
    ) -> tuple[Raw, ...]:
        """The items, with references replaced by what they refer to. What is in the chain already is left out."""
        if not any(map(_REFERENCE.search, items)):
            return tuple(items)
        present = {_known(item).id for item in earlier}
        references = (read.id for item in items if (read := _known(item)).type == "item_reference")
        wanted = [id for id in references if id and id not in present]
        found = await self._store.find(owner, wanted, room - sum(map(len, earlier)))
        out: list[Raw] = []
        for item in items:
            read = _known(item)
            if read.type != "item_reference":
                out.append(item)
            elif read.id not in present:
                out.append(found.get(read.id or "", item))
        return tuple(out)

    async def keep(self, opened: ResumedRequest, response: ResponseObject, output: list[Raw], figures: Figures) -> None:
        """Keep a turn that is over. One that is not to be stored is still added to its conversation."""
        if opened.memory is not None and response.status in ("completed", "incomplete"):
            # An item is a view of the message it came in, which is not to be kept for its sake.
            items = (*opened.earlier, *(item.copy() for item in opened.asked.items), *output)
            opened.memory.put(response.id, items)
        if not opened.store and not opened.conversation:
            return
        turn, guard = self.turn(opened, response, output, figures), opened.lock.store_guard()
        if not opened.store:
            if turn.effects.conversation and guard is not None:
                items = [*(turn.given or ()), *turn.made]
                await self._store.add_turn(turn.owner, response.id, items, turn.effects, guard)
            return
        await self._store.save(turn.owner, turn.record, turn.given, turn.made, turn.effects, guard=guard)

    def turn(self, opened: ResumedRequest, response: ResponseObject, output: list[Raw], figures: Figures) -> KeptTurn:
        """A turn that is over. What was given to a background run is kept since it was queued."""
        is_known = opened.asked.body.background and not opened.conversation
        given = None if is_known else given_items(opened.asked.items, response.id.partition("_")[2])
        made = [KeptItem(_known(item).id or "", item) for item in output]
        record = self.record(opened, response, figures.comment())
        return KeptTurn(opened.owner, record, given, made, _effects(opened, response))

    async def queue(self, opened: ResumedRequest, response: ResponseObject, plan: bytes, member: str) -> Fence:
        """Keep a response whose turn has yet to run, and its run, which is the member's."""
        record, guard = self.record(opened, response), opened.lock.store_guard()
        given = given_items(opened.asked.items, response.id.partition("_")[2])
        effects = Effects((opened.previous, response.id) if opened.answers_calls else None)
        limits = self._limits
        return await self._store.queue(
            opened.owner, record, given, effects, plan=plan, member=member, guard=guard, limits=limits
        )

    def record(self, opened: ResumedRequest, response: ResponseObject, figures: bytes = b"") -> Record:
        """A response as it is kept, with the figures of its turn once that is over."""
        return Record(
            response.id,
            response.created,
            response.status,
            _encode({name: value for name, value in opened.asked.fields.items() if name != "input"}),
            bytes(response.encoded([], figures)),
            opened.previous,
            opened.conversation,
        )


def _what_is_continued(asked: ParsedRequest) -> str:
    """The field that leads to what came before."""
    if asked.body.previous_response_id:
        return "previous_response_id"
    return "conversation" if asked.conversation else "input"


def _effects(opened: ResumedRequest, response: ResponseObject) -> Effects:
    """What a turn that is over changes beside itself."""
    answered = opened.answered if opened.previous or opened.conversation else []
    continued = opened.previous if answered else ""
    if response.status in ("completed", "incomplete"):
        link = (continued, response.id) if continued else None
        return Effects(link, opened.conversation, tuple(answered) if opened.conversation else ())
    # A background run was linked when it was queued; now its outputs may be sent again.
    return Effects((continued, "") if continued and opened.asked.body.background else None)


def not_found(id: str) -> BadRequest:
    """Why a response cannot be had, as far as the caller may know."""
    message = f"There is no response {id!r} here: it was not stored, was deleted, has expired, or is not yours."
    return BadRequest(message, "response_id", "response_not_found", status=404)


def given_items(items: Sequence[Raw], seed: str) -> list[KeptItem]:
    """Items of an input as they are kept and listed: each with an id and a type."""
    return [_given_item(item, f"{seed}i{index + 1:02d}") for index, item in enumerate(items)]


def _given_item(item: Raw, seed: str) -> KeptItem:
    read = _known(item)
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
