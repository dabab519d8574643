"""What the Responses endpoints do with an exchange: create, submit tool outputs, compact."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive

from toolwire.core.errors import BadRequest
from toolwire.core.events import Usage
from toolwire.core.notes import Figures
from toolwire.core.request import Request
from toolwire.dialects import responses
from toolwire.dialects.responses import ParsedRequest, compaction
from toolwire.dialects.responses.response import usage_object
from toolwire.gateway.body import stepped
from toolwire.gateway.exchange import Exchange, Shared, UntilClientGone
from toolwire.gateway.keys import Caller
from toolwire.gateway.responses.answer import ResponsesAnswer
from toolwire.gateway.responses.background import PING, Background, BackgroundRun, LogSink
from toolwire.gateway.responses.conversation_lock import LOCK_TIMEOUT, UNLOCKED, ConversationLock, acquire
from toolwire.gateway.responses.event_log import RunLog
from toolwire.gateway.responses.follower import live_stream, replayed_stream
from toolwire.gateway.responses.history import ResponseHistory, ResumedRequest, not_found
from toolwire.gateway.responses.memory import Remembered
from toolwire.gateway.responses.outputs import are_the_same, tool_outputs
from toolwire.gateway.responses.plan import ClaimedCaller, Plan, written_plan
from toolwire.gateway.responses.replay import figures_of, full_response, replayed
from toolwire.gateway.responses.take_over import TakeOver, never, read_plan
from toolwire.gateway.responses.unfinished import unfinished_response
from toolwire.gateway.sinks import HttpSink, Pace
from toolwire.memory.leases import Leases
from toolwire.memory.membership import Membership
from toolwire.memory.store import ClaimedRun, Fence, Overtaken, Record, StoreFailed
from toolwire.turns.attempt import TurnGuard
from toolwire.turns.prepare import Caller as Asker
from toolwire.turns.source import TurnSource

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

LONG_PATIENCE = 600.0
"""Seconds for which a background run that was taken over waits for its conversation."""


class State(msgspec.Struct, frozen=True):
    """What the Responses endpoints share beyond the rest."""

    shared: Shared
    history: ResponseHistory
    background: Background
    remembered: Remembered
    """The latest responses of WebSocket connections."""
    membership: Membership
    leases: Leases
    take_over: TakeOver


class Operations:
    """The operations, each a method that an endpoint calls with an exchange."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    async def create(self, exchange: Exchange, receive: Receive) -> None:
        """POST /v1/responses."""
        caller = exchange.enter()
        await self._answer(exchange, await self._read(exchange, await exchange.read_body(receive)), caller, receive)

    async def compact(self, exchange: Exchange, receive: Receive) -> None:
        """POST /v1/responses/compact: a turn that ends in a compaction, kept by nobody."""
        caller = exchange.enter()
        parsed = await self._read(exchange, await exchange.read_body(receive))
        trigger = msgspec.Raw(b'{"type":"compaction_trigger"}')
        body = msgspec.structs.replace(parsed.body, stream=False, store=False, background=False)
        parsed = msgspec.structs.replace(parsed, body=body, items=(*parsed.items, trigger))
        await self._answer(exchange, parsed, caller, receive, whole=_compaction)

    async def submit(self, exchange: Exchange, receive: Receive) -> None:
        """POST /v1/responses/{id}/submit_tool_outputs: continues a response, once."""
        caller = exchange.enter()
        body = await exchange.read_body(receive)
        id = exchange.scope["path_params"]["response_id"]
        record = await exchange.shared.store.load(caller.owner, id)
        if record is None:
            raise not_found(id)
        if record.conversation:
            lock = await in_conversation(self._state(), exchange, caller.owner, record.conversation)
        else:
            state = self._state()
            lock = await acquire(state.leases, state.membership, exchange, "submission", caller.owner, id, LOCK_TIMEOUT)
        await self._submit(exchange, id, body, caller, receive, lock)

    async def ask_again(self, exchange: Exchange, claimed: ClaimedRun, plan: Plan, sink: LogSink) -> None:
        """Produce the turn of a run whose process is gone before it showed anything."""
        parsed = await read_plan(exchange, plan)
        lock = UNLOCKED
        if plan.conversation:
            lock = await in_conversation(self._state(), exchange, claimed.owner, plan.conversation, LONG_PATIENCE)
        if lock.refusal is not None:
            self._state().take_over.postpone(claimed, sink.log)
            return
        caller = ClaimedCaller(claimed.owner)
        _, run, answer = await self._begun(
            exchange,
            parsed,
            caller,
            lock,
            RunGuard(self._state(), claimed.fence),
            conversation=plan.conversation,
            created=int(claimed.record.created),
        )
        answer.response.status = "queued"
        sink.answer = answer
        await exchange.deliver(run, answer, never)

    async def _read(self, exchange: Exchange, body: bytes) -> ParsedRequest:
        return await stepped(responses.reading_request(body, exchange.shared.bounds), len(body))

    async def _answer(
        self,
        exchange: Exchange,
        parsed: ParsedRequest,
        caller: Caller,
        receive: Receive,
        lock: ConversationLock = UNLOCKED,
        *,
        conversation: str = "",
        whole: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Answer a request, whose turn also belongs to a conversation if one is given."""
        if parsed.conversation and whole is None:
            lock = await in_conversation(self._state(), exchange, caller.owner, parsed.conversation)
        guard: TurnGuard | None = lock if lock.lease is not None else None
        if parsed.body.background:
            guard = RunGuard(self._state(), first_fence(responses.new_id(exchange.seed)))
        resumed, run, answer = await self._begun(
            exchange, parsed, caller, lock, guard, conversation=conversation, whole=whole
        )
        if parsed.body.background:
            queued = await self._in_background(exchange, run, answer, resumed, caller)
            await self._send_kept(exchange, queued, receive)
        else:
            await exchange.pause()
            await exchange.deliver(run, answer, receive)

    async def _begun(
        self,
        exchange: Exchange,
        parsed: ParsedRequest,
        caller: Asker,
        lock: ConversationLock,
        guard: TurnGuard | None,
        *,
        conversation: str = "",
        whole: Callable[[bytes], bytes] | None = None,
        created: int | None = None,
    ) -> tuple[ResumedRequest, TurnSource, ResponsesAnswer]:
        """A request with all that it continues, its run and its answer."""
        history = self._state().history
        resumed = await history.open(caller.owner, parsed, exchange.claim, lock=lock)
        if conversation or whole is not None:  # a compaction is added to no conversation
            resumed = msgspec.structs.replace(resumed, conversation=conversation)
        extended = is_extended(exchange)
        await exchange.shared.memory.load(caller.owner, resumed.request.entries)
        await exchange.pause()
        request, run = begin(exchange, resumed.request, caller, guard)
        answer = ResponsesAnswer(exchange, history, resumed, request, extended=extended, whole=whole, created=created)
        return resumed, run, answer

    async def _in_background(
        self,
        exchange: Exchange,
        run: TurnSource,
        answer: ResponsesAnswer,
        resumed: ResumedRequest,
        caller: Caller,
    ) -> AsyncIterator[bytes] | bytes:
        """Queue the run, and begin it in the application's name; returns what its client gets."""
        state = self._state()
        answer.response.status = "queued"
        needs_key = exchange.shared.engine.router.passes_key(answer.request.model, caller.upstream_key)
        plan = written_plan(exchange, resumed, caller, needs_key=needs_key)
        member = await state.membership.id()
        with state.background.doubtful.unless_queued(resumed.owner, answer.id):
            fence = await state.history.queue(resumed, answer.response, plan, member)
        sink = LogSink(state.background, RunLog(resumed.owner, fence), exchange.claim, exchange.shared.max_reply)
        sink.answer = answer
        queued = bytes(answer.response.encoded())
        other = exchange.hand_over(sink)
        if resumed.conversation:  # the run has its conversation to itself, also when this request is over
            other.closing, exchange.closing = exchange.closing, []
        background = BackgroundRun(answer.id, sink, needs_key=needs_key)
        state.background.start(background, other.serve(partial(_deliver, run, answer), never))
        await exchange.close()
        if not answer.request.stream:
            return queued
        return followed_stream(state, resumed.owner, answer.id)

    async def _send_kept(self, exchange: Exchange, kept: AsyncIterator[bytes] | bytes, receive: Receive) -> None:
        """Answer with something that does not depend on this connection."""
        sink = exchange.sink
        assert isinstance(sink, HttpSink)
        with UntilClientGone(receive, exchange.shared):
            await sink.send_kept(kept)

    async def _submit(
        self, exchange: Exchange, id: str, body: bytes, caller: Caller, receive: Receive, lock: ConversationLock
    ) -> None:
        store = exchange.shared.store
        record = await store.load(caller.owner, id)
        if record is None:
            raise not_found(id)
        given = responses.read_tool_outputs(body)
        made = await store.output(caller.owner, id)
        items = tool_outputs(given, made)
        stream = bool(given.stream)
        if record.continuation:
            earlier = await store.input(caller.owner, record.continuation)
            if earlier and not are_the_same(items, earlier, made):
                message = f"Other outputs were submitted for {id!r} already; they led to {record.continuation!r}."
                raise BadRequest(message, "tool_outputs", "outputs_already_submitted", status=409)
            if earlier and await self._is_sent_again(exchange, record.continuation, caller, receive, stream=stream):
                return
        fields: dict[str, Any] = {**_fields(record.fields), "previous_response_id": id, "input": items}
        fields["stream"] = stream
        fields.pop("conversation", None)
        if _forces_a_call(fields.get("tool_choice")):
            del fields["tool_choice"]  # it had its call; forcing another would never end
        parsed = await self._read(exchange, _encode(fields))
        await self._answer(exchange, parsed, caller, receive, lock, conversation=record.conversation)

    async def _is_sent_again(
        self, exchange: Exchange, id: str, caller: Caller, receive: Receive, *, stream: bool
    ) -> bool:
        """Answer with a response that is there already; False if it is not."""
        record = await exchange.shared.store.load(caller.owner, id)
        if record is None:
            return False
        if stream:
            await self._send_kept(exchange, await kept_stream(self._state(), caller.owner, record), receive)
        else:
            kept = await kept_response(self._state(), caller.owner, record)
            exchange.sink.headers += kept.headers
            await self._send_kept(exchange, kept.body, receive)
        return True


class RunGuard:
    """The guard of a background run, by the fence that this process writes it with."""

    def __init__(self, state: State, fence: Fence) -> None:
        self._background = state.background
        self._membership = state.membership
        self._fence = fence

    async def confirm(self) -> None:
        """Raise `Overtaken` if another process may have the run by now."""
        if not await self._membership.is_current() or not self._background.has(self._fence):
            self._background.lose(self._fence)
            raise Overtaken(self._fence)

    async def start(self) -> None:
        """Commit that the run begins something that must not be repeated."""
        await self._background.note_start(self._fence)


async def in_conversation(
    state: State, exchange: Exchange, owner: str, id: str, seconds: float = LOCK_TIMEOUT
) -> ConversationLock:
    """Wait for the other turns of a conversation. A run in it whose process is gone cannot be kept after this."""
    lock = await acquire(state.leases, state.membership, exchange, "conversation", owner, id, seconds)
    if lock.lease is not None:
        try:
            await state.take_over.look()
        except StoreFailed as error:
            return ConversationLock(refusal=error)
    return lock


def first_fence(id: str) -> Fence:
    """The fence of a run that is queued for the first time."""
    return Fence(id, 1)


class KeptResponse(msgspec.Struct, frozen=True):
    """A response in one piece, with the figures of its turn as headers once that is over."""

    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()


async def kept_response(state: State, owner: str, record: Record) -> KeptResponse:
    """A response as it is now."""
    unkept = state.background.unkept(owner, record.id)
    if unkept is not None:
        return KeptResponse(unkept.response, figures_of(unkept.turn.record, ()).headers())
    if not record.is_over:
        progress = await state.background.polled.progress(owner, record.id)
        return KeptResponse(unfinished_response(record, progress))
    output = await state.shared.store.output(owner, record.id)
    return KeptResponse(full_response(record, output), figures_of(record, output).headers())


async def kept_stream(state: State, owner: str, record: Record, number: int = 0) -> AsyncIterator[bytes]:
    """The events of a response from this number on, and those to come."""
    store = state.shared.store
    if record.is_over and await store.events(owner, record.id, 0) is None:
        output = await store.output(owner, record.id)
        return replayed_stream(replayed(record, output), figures_of(record, output), number)
    return followed_stream(state, owner, record.id, number)


def followed_stream(state: State, owner: str, id: str, number: int = 0) -> AsyncIterator[bytes]:
    """The events of a background run from this number on, as they come."""

    async def figures() -> Figures | None:
        """What the store knows, for a run of another process or of an earlier time."""
        try:
            record = await state.shared.store.load(owner, id)
            if record is None or not record.is_over:
                return None
            return figures_of(record, await state.shared.store.output(owner, id))
        except StoreFailed:
            return None

    return live_stream(state.background.reader(owner, id, number), state.shared, figures)


def is_extended(exchange: Exchange) -> bool:
    """Whether the client is to get events of ours too; such a stream opens at once."""
    extended = exchange.rules().responses_events == "extended"
    if extended and isinstance(exchange.sink, HttpSink):
        exchange.sink.pace = Pace(keepalive=PING, opens_at_once=True)
    return extended


def begin(exchange: Exchange, request: Request, caller: Asker, guard: TurnGuard | None) -> tuple[Request, TurnSource]:
    """The run of a request, and what it asks. Where the backend does not compact by itself, its summary is made into
    a compaction."""
    if not compaction.is_asked(request) or exchange.shared.engine.router.find(request.model)[0].compacts:
        return request, exchange.begin(request, caller, guard=guard)
    request = compaction.summarising(request)
    into = partial(compaction.IntoCompaction, f"cmp_{exchange.seed}")
    return request, exchange.begin(request, caller, into, guard=guard)


async def _deliver(run: TurnSource, answer: ResponsesAnswer, exchange: Exchange, receive: Receive) -> None:
    """Deliver a run that was begun already."""
    await exchange.deliver(run, answer, receive)


def _compaction(response: bytes) -> bytes:
    """A response as the object that compacting returns."""
    fields = _fields(response)
    shown: dict[str, Any] = {name: fields[name] for name in ("id", "created_at", "output", "usage")}
    if bytes(fields["usage"]) == b"null":
        shown["usage"] = usage_object(Usage())
    return _encode({"id": shown.pop("id"), "object": "response.compaction", **shown})


def _forces_a_call(choice: msgspec.Raw | None) -> bool:
    if choice is None:
        return False
    read = msgspec.json.decode(choice)
    return read == "required" or (isinstance(read, dict) and "name" in read)
