"""The operations of the Responses endpoints on an exchange: create, submit tool outputs, compact."""

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.types import Receive

from toolwire.core.errors import BadRequest
from toolwire.core.events import Usage
from toolwire.dialects import responses
from toolwire.dialects.responses import ParsedRequest
from toolwire.dialects.responses.response import encode_usage
from toolwire.gateway.body import run_in_steps
from toolwire.gateway.endpoint import Endpoint
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.http import UntilClientGone
from toolwire.gateway.keys import Caller
from toolwire.gateway.responses.answer import begin_turn
from toolwire.gateway.responses.conversation_lock import UNLOCKED, ConversationLock, acquire
from toolwire.gateway.responses.history import ResponseHistory, ResumedRequest
from toolwire.gateway.responses.outputs import is_same, read_outputs
from toolwire.gateway.responses.recovery import Recovery, encode_spec, wait_forever
from toolwire.gateway.responses.run_log import RunLog
from toolwire.gateway.responses.run_task import BackgroundRuns, RunTask
from toolwire.gateway.responses.socket_cache import SocketResponses
from toolwire.gateway.responses.stored_response import StoredResponses
from toolwire.gateway.shared import Shared
from toolwire.gateway.sinks import HttpSink
from toolwire.memory.leases import Leases
from toolwire.memory.membership import Membership
from toolwire.memory.store import Fence, Overtaken

NAME, PATH = "responses", responses.PATH
_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class State(msgspec.Struct, frozen=True):
    """What the Responses endpoints share, besides what all endpoints share."""

    shared: Shared
    history: ResponseHistory
    runs: BackgroundRuns
    stored: StoredResponses
    socket_responses: SocketResponses
    membership: Membership
    leases: Leases
    recovery: Recovery


class Operations:
    """The operations, each a method that an endpoint calls with an exchange."""

    def __init__(self, state: State) -> None:
        self._state = state

    def endpoints(self) -> dict[str, Endpoint]:
        """The endpoints for POST, by path."""
        table = {"": self.create, "/compact": self.compact}
        return {PATH + below: Endpoint(self._state.shared, NAME, each) for below, each in table.items()}

    def submit_endpoint(self) -> tuple[re.Pattern[str], Endpoint]:
        """The endpoint that takes tool outputs, and the pattern of its path."""
        pattern = re.compile(rf"{PATH}/(?P<response_id>[^/]+)/submit_tool_outputs")
        return pattern, Endpoint(self._state.shared, NAME, self.submit)

    async def create(self, exchange: Exchange, receive: Receive) -> None:
        """POST /v1/responses."""
        caller = exchange.enter()
        parsed = await read_request(exchange, await exchange.read_body(receive))
        lock = UNLOCKED
        if parsed.conversation:
            lock = await self._state.recovery.lock_conversation(exchange, caller.owner, parsed.conversation)
        resumed = await self._state.history.open(caller.owner, parsed, exchange.reservation, lock=lock)
        await self._answer(exchange, resumed, caller, receive)

    async def compact(self, exchange: Exchange, receive: Receive) -> None:
        """POST /v1/responses/compact: a turn that ends in a compaction and is not stored."""
        caller = exchange.enter()
        parsed = await read_request(exchange, await exchange.read_body(receive))
        trigger = msgspec.Raw(b'{"type":"compaction_trigger"}')
        body = msgspec.structs.replace(parsed.body, stream=False, store=False, background=False)
        parsed = msgspec.structs.replace(parsed, body=body, items=(*parsed.items, trigger))
        resumed = await self._state.history.open(caller.owner, parsed, exchange.reservation)
        resumed = msgspec.structs.replace(resumed, conversation="")
        await self._answer(exchange, resumed, caller, receive, whole=_to_compaction)

    async def submit(self, exchange: Exchange, receive: Receive) -> None:
        """POST /v1/responses/{id}/submit_tool_outputs: continues a response, once."""
        caller = exchange.enter()
        body = await exchange.read_body(receive)
        id, state = exchange.scope["path_params"]["response_id"], self._state
        record = await state.stored.load(caller.owner, id)
        if record.conversation:
            lock = await state.recovery.lock_conversation(exchange, caller.owner, record.conversation)
        else:
            lock = await acquire(state.leases, exchange, "submission", caller.owner, id)
        await self._submit(exchange, id, body, caller, receive, lock)

    async def _submit(
        self, exchange: Exchange, id: str, body: bytes, caller: Caller, receive: Receive, lock: ConversationLock
    ) -> None:
        state, store = self._state, exchange.shared.store
        record = await state.stored.load(caller.owner, id)
        given = responses.read_tool_outputs(body)
        made = await store.load_output(caller.owner, id)
        items = read_outputs(given, made)
        if record.continuation:
            earlier = await store.load_input(caller.owner, record.continuation)
            if earlier and not is_same(items, earlier, made):
                message = f"Other outputs were submitted for {id!r} already; they led to {record.continuation!r}."
                raise BadRequest(message, "tool_outputs", "outputs_already_submitted", status=409)
            continuation = await store.load(caller.owner, record.continuation) if earlier else None
            if continuation is not None and given.stream:
                await self._send(exchange, await state.stored.open_stream(caller.owner, continuation), receive)
                return
            if continuation is not None:
                stored = await state.stored.read_body(caller.owner, continuation)
                exchange.sink.headers += stored.headers
                await self._send(exchange, stored.body, receive)
                return
        fields: dict[str, Any] = {**_decode_fields(record.fields), "previous_response_id": id, "input": items}
        fields["stream"] = bool(given.stream)
        fields.pop("conversation", None)
        if _forces_call(fields.get("tool_choice")):
            del fields["tool_choice"]  # the call was made; forcing another would never end
        parsed = await read_request(exchange, _encode(fields))
        resumed = await state.history.open(caller.owner, parsed, exchange.reservation, lock=lock)
        if record.conversation:
            resumed = msgspec.structs.replace(resumed, conversation=record.conversation)
        await self._answer(exchange, resumed, caller, receive)

    async def _answer(
        self,
        exchange: Exchange,
        resumed: ResumedRequest,
        caller: Caller,
        receive: Receive,
        whole: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Answer a request with its turn, or with the queued response of a background run."""
        if resumed.parsed.body.background:
            await self._send(exchange, await self._start_background(exchange, resumed, caller), receive)
            return
        guard = resumed.lock if resumed.lock.lease is not None else None
        run, answer = await begin_turn(exchange, self._state.history, resumed, caller, guard, whole=whole)
        await exchange.pause()
        await exchange.deliver(run, answer, receive)

    async def _start_background(
        self, exchange: Exchange, resumed: ResumedRequest, caller: Caller
    ) -> AsyncIterator[bytes] | bytes:
        """Queue a background run, and start it in a task of the application; returns the answer to the client."""
        state, owner = self._state, resumed.owner
        needs_key = exchange.shared.engine.router.passes_key(resumed.request.model, caller.upstream_key)
        fence = Fence(responses.new_id(exchange.seed), epoch=1)  # every new run starts with this epoch
        task = RunTask(state.runs, RunLog(owner, fence), exchange.reservation, exchange.turn.taps, needs_key=needs_key)
        run, answer = await begin_turn(exchange, state.history, resumed, caller, task)
        spec = encode_spec(exchange, resumed, caller, needs_key=needs_key)
        member = await state.membership.id()
        with state.recovery.unconfirmed.watch(owner, answer.id):
            if await state.history.queue(resumed, answer.response, spec, member) != fence:
                raise Overtaken(fence)
        queued = bytes(answer.response.encode())
        detached = exchange.hand_over(task, keeps_locks=bool(resumed.conversation))

        async def deliver(exchange: Exchange, receive: Receive) -> None:
            if caller.is_issued:
                exchange.watch_key(caller)
            await exchange.deliver(run, answer, receive)

        state.runs.start(task, detached.serve(deliver, wait_forever))
        await exchange.close()
        return state.stored.follow(owner, answer.id) if answer.request.stream else queued

    async def _send(self, exchange: Exchange, content: AsyncIterator[bytes] | bytes, receive: Receive) -> None:
        """Send a body or a stream that does not depend on the turn of this exchange."""
        sink = exchange.sink
        assert isinstance(sink, HttpSink)
        with UntilClientGone(receive, exchange.shared.ticker):
            await sink.send_stored(content)


async def read_request(exchange: Exchange, body: bytes) -> ParsedRequest:
    return await run_in_steps(responses.read_request_steps(body, exchange.shared.bounds), len(body))


def _to_compaction(response: bytes) -> bytes:
    """A response as a `response.compaction` object."""
    fields = _decode_fields(response)
    shown: dict[str, Any] = {name: fields[name] for name in ("id", "created_at", "output", "usage")}
    if bytes(fields["usage"]) == b"null":
        shown["usage"] = encode_usage(Usage())
    return _encode({"id": shown.pop("id"), "object": "response.compaction", **shown})


def _forces_call(choice: msgspec.Raw | None) -> bool:
    read = msgspec.json.decode(choice) if choice is not None else None
    return read == "required" or (isinstance(read, dict) and "name" in read)
