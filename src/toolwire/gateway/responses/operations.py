"""What the Responses endpoints do with an exchange: create, submit tool outputs, compact."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.types import Message, Receive

from toolwire.core.errors import BadRequest
from toolwire.core.events import Usage
from toolwire.core.request import Request
from toolwire.dialects import responses
from toolwire.dialects.responses import ParsedRequest, compaction
from toolwire.dialects.responses.response import usage_object
from toolwire.gateway.body import stepped
from toolwire.gateway.exchange import Exchange, Shared, UntilClientGone
from toolwire.gateway.keys import Caller
from toolwire.gateway.responses.answer import ResponsesAnswer
from toolwire.gateway.responses.background import Background, BackgroundRun, LogSink, event_log_bytes
from toolwire.gateway.responses.event_log import EventLog, StoredEventLog
from toolwire.gateway.responses.history import ResponseHistory, ResumedRequest, not_found
from toolwire.gateway.responses.memory import Remembered
from toolwire.gateway.responses.outputs import are_the_same, tool_outputs
from toolwire.gateway.responses.replay import full_response, replayed
from toolwire.gateway.sinks import HttpSink, Pace
from toolwire.turns.source import TurnSource

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

PING = 2.0
"""Seconds of silence before a `ping`, where a client asked for extended events."""


class State(msgspec.Struct, frozen=True):
    """What the Responses endpoints share beyond the rest."""

    shared: Shared
    history: ResponseHistory
    background: Background
    remembered: Remembered
    """The latest responses of WebSocket connections."""
    submitting: dict[tuple[str, str], asyncio.Event] = {}
    """Submissions under way, by owner and response: a second one waits for the first."""


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
        submitting, key = self._state().submitting, (caller.owner, id)
        while key in submitting:
            await submitting[key].wait()
        submitting[key] = over = asyncio.Event()
        try:
            await self._submit(exchange, id, body, caller, receive)
        finally:
            del submitting[key]
            over.set()

    async def _read(self, exchange: Exchange, body: bytes) -> ParsedRequest:
        return await stepped(responses.reading_request(body, exchange.shared.bounds), len(body))

    async def _answer(
        self,
        exchange: Exchange,
        parsed: ParsedRequest,
        caller: Caller,
        receive: Receive,
        *,
        conversation: str = "",
        whole: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Answer a request, whose turn also belongs to a conversation if one is given."""
        resumed = await self._state().history.open(caller.owner, parsed, exchange.claim)
        if conversation:
            resumed = msgspec.structs.replace(resumed, conversation=conversation)
        extended = is_extended(exchange)
        await exchange.shared.memory.load(caller.owner, resumed.request.entries)
        await exchange.pause()
        request, run = begin(exchange, resumed.request, caller)
        answer = ResponsesAnswer(exchange, self._state().history, resumed, request, extended=extended, whole=whole)
        if parsed.body.background:
            await self._in_background(exchange, run, answer, resumed, receive)
        else:
            await exchange.pause()
            await exchange.deliver(run, answer, receive)

    async def _in_background(
        self, exchange: Exchange, run: TurnSource, answer: ResponsesAnswer, resumed: ResumedRequest, receive: Receive
    ) -> None:
        state = self._state()
        answer.response.status = "queued"
        sink = LogSink(answer, exchange.claim, exchange.shared.max_reply)
        await state.history.queue(resumed, answer.response)
        queued = bytes(answer.response.encoded())
        other = exchange.hand_over(sink)
        state.background.start(resumed.owner, BackgroundRun(sink), other.serve(partial(_deliver, run, answer), _never))
        await self._send_kept(exchange, sink.log if answer.request.stream else queued, receive)

    async def _send_kept(self, exchange: Exchange, kept: EventLog | StoredEventLog | bytes, receive: Receive) -> None:
        """Answer with something that does not depend on this connection."""
        sink = exchange.sink
        assert isinstance(sink, HttpSink)
        with UntilClientGone(receive, exchange.shared):
            keepalive = exchange.shared.pace.keepalive
            await sink.send_kept(kept if isinstance(kept, bytes) else event_log_bytes(kept, -1, keepalive))

    async def _submit(self, exchange: Exchange, id: str, body: bytes, caller: Caller, receive: Receive) -> None:
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
        await self._answer(exchange, parsed, caller, receive, conversation=record.conversation)

    async def _is_sent_again(
        self, exchange: Exchange, id: str, caller: Caller, receive: Receive, *, stream: bool
    ) -> bool:
        """Answer with a response that is there already; False if it is not."""
        store = exchange.shared.store
        running = self._state().background.get(caller.owner, id)
        if running is not None and not await running.is_over():
            await self._send_kept(exchange, running.log if stream else running.snapshot(), receive)
            return True
        record = await store.load(caller.owner, id)
        if record is None:
            return False
        if stream:
            await self._send_kept(exchange, await replayed(store, caller.owner, record), receive)
        else:
            await self._send_kept(exchange, full_response(record, await store.output(caller.owner, id)), receive)
        return True


def is_extended(exchange: Exchange) -> bool:
    """Whether the client is to get events of ours too; such a stream opens at once."""
    extended = exchange.rules().responses_events == "extended"
    if extended and isinstance(exchange.sink, HttpSink):
        exchange.sink.pace = Pace(keepalive=PING, opens_at_once=True)
    return extended


def begin(exchange: Exchange, request: Request, caller: Caller) -> tuple[Request, TurnSource]:
    """The run of a request, and what it asks. Where the backend does not compact by itself, its summary is made into
    a compaction."""
    if not compaction.is_asked(request) or exchange.shared.engine.router.find(request.model)[0].compacts:
        return request, exchange.begin(request, caller)
    request = compaction.summarising(request)
    return request, exchange.begin(request, caller, partial(compaction.IntoCompaction, f"cmp_{exchange.seed}"))


async def _deliver(run: TurnSource, answer: ResponsesAnswer, exchange: Exchange, receive: Receive) -> None:
    """Deliver a run that was begun already."""
    await exchange.deliver(run, answer, receive)


async def _never() -> Message:
    """No client is there that could leave."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


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
