"""Exchanges of the Responses endpoints: create, submit tool outputs, compact."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from toolwire.core.collect import Turn, events_of
from toolwire.core.errors import BadRequest, ReplyTooLarge
from toolwire.core.events import Note, Usage
from toolwire.core.notes import Tally
from toolwire.core.request import Request
from toolwire.dialects import responses
from toolwire.dialects.responses import Asked, StreamEncoder, compaction
from toolwire.dialects.responses.response import usage_object
from toolwire.runs.run import AnyRun
from toolwire.service.body import stepped
from toolwire.service.delivery import SSE_HEADERS, Pace
from toolwire.service.exchange import Bound, Exchange, Shared, UntilClientGone
from toolwire.service.flight import Claim
from toolwire.service.http import send_json
from toolwire.service.keys import Caller
from toolwire.service.responses.background import Background, BackgroundRun, journal_bytes
from toolwire.service.responses.journal import Journal
from toolwire.service.responses.ledger import Ledger, Opened, not_found
from toolwire.service.responses.memory import Remembered
from toolwire.service.responses.outputs import are_the_same, tool_outputs
from toolwire.service.responses.replay import full_response, replayed
from toolwire.transport.store import StoreFailed

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

CLAIMED_AT_ONCE = 64 * 1024
"""Bytes of a turn by which its claim grows."""
PING = 2.0
"""Seconds of silence before a `ping`, where a client asked for extended events."""


class State(msgspec.Struct, frozen=True):
    """What the Responses endpoints share beyond the rest."""

    shared: Shared
    ledger: Ledger
    background: Background
    remembered: Remembered
    """The latest responses of WebSocket connections."""
    submitting: dict[tuple[str, str], Any] = {}
    """Submissions under way, by owner and response: a second one waits for the first."""


class ResponsesBound(Bound):
    """The dialect bound to one request, with what it continues."""

    def __init__(self, seed: str, state: State) -> None:
        super().__init__(responses, seed)
        self._state = state
        self.opened: Opened | None = None
        self.extended = False
        self.socket = False
        self.claim: Claim | None = None
        self._claimed = 0  # bytes of the turn
        self._own: StreamEncoder | None = None

    def stream(self) -> StreamEncoder:
        tally = self.run.assembly.tally if self.run is not None else Tally()
        if self._own is None:
            assert self.request is not None
            self._own = StreamEncoder(
                self.request, self.id, self.created, tally, time.time, extended=self.extended, socket=self.socket
            )
        self._own.tally = tally
        return self._own

    def check(self) -> None:
        held = self._own.held if self._own is not None else 0
        if held - self._claimed < CLAIMED_AT_ONCE:
            return
        most = self._state.shared.max_reply
        if held > most:
            raise ReplyTooLarge(most)
        if self.claim is not None:
            self.claim.grow(held - self._claimed)
        self._claimed = held

    def turn(self, turn: Turn) -> bytes:
        encoder = self.stream()
        for event in events_of(turn):
            encoder.feed(event)
        return bytes(encoder.response.encoded())

    async def settle(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        if self._own is None or self.opened is None or await self._is_kept(self._own):
            return pieces
        last = self._own.unstored(pieces)
        assert self.request is not None
        return last if self.request.stream else [bytes(self._own.response.encoded())]

    async def cancel(self) -> None:
        """The client left: keep what there is, as cancelled."""
        if self._own is not None and self.opened is not None and self._own.response.status == "in_progress":
            self._own.cancel()
            await self._is_kept(self._own)

    async def keep_frames(self, journal: Journal, last: Sequence[bytes]) -> Sequence[bytes]:
        """Keep the turn with all its events; the last ones are not in the journal yet. Returns what they are."""
        frames = b"".join((*journal.frames, *(piece for piece in last if piece.startswith(b"event: "))))
        encoder = self.stream()
        return last if await self._is_kept(encoder, frames) else encoder.unstored(last)

    async def _is_kept(self, encoder: StreamEncoder, frames: bytes = b"") -> bool:
        """Keep the turn. The answer is worth more than its copy: it goes out also if it cannot be kept."""
        assert self.opened is not None
        try:
            await self._state.ledger.keep(self.opened, encoder.response, encoder.output, frames)
        except StoreFailed as error:
            encoder.tally.note(Note("not_stored", error.reason))
            return False
        return True


class ResponsesEndpoint:
    """An endpoint of the dialect as an ASGI application."""

    def __init__(self, state: Callable[[], State], exchange: "type[ResponsesExchange]") -> None:
        self._state = state
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._exchange(self._state(), scope, send).run(receive)


class ResponsesExchange(Exchange):
    """POST /v1/responses."""

    _bound: ResponsesBound

    def __init__(self, state: State, scope: Scope, send: Send) -> None:
        self._state = state
        self._send = send
        self._handed_over = False  # the turn is a background run's, which reports it
        super().__init__(state.shared, "responses", responses, scope, send)

    def _bind(self, seed: str) -> Bound:
        return ResponsesBound(seed, self._state)

    async def _exchange(self, receive: Receive) -> None:
        caller = self._enter()
        body = await self._read_body(receive)
        await self._answer(await self._read(body), caller, receive)

    async def _read(self, body: bytes) -> Asked:
        return await stepped(responses.reading_request(body, self._shared.bounds), len(body))

    async def _answer(self, asked: Asked, caller: Caller, receive: Receive, conversation: str = "") -> None:
        """Answer a request, whose turn also belongs to a conversation if one is given."""
        opened = await self._state.ledger.open(caller.owner, asked, self._claim)
        if conversation:
            opened = msgspec.structs.replace(opened, conversation=conversation)
        self._bound.opened = opened
        self._bound.claim = self._claim
        self._extend()
        if asked.body.background:
            await self._in_background(opened, caller, receive)
        else:
            await self._pause()
            run = self._begin_turn(opened.request, caller)
            await self._pause()
            await self._deliver(run, receive)

    def _extend(self) -> None:
        rules = self._rules(self._shared.settings.tools)
        self._bound.extended = rules.responses_events == "extended"
        if self._bound.extended:
            self._delivery.pace = Pace(keepalive=PING, opens_at_once=True)

    def _begin_turn(self, request: Request, caller: Caller) -> AnyRun:
        request, policies = self._compacting(request)
        return self._begin(request, caller, *policies)

    def _compacting(self, request: Request) -> tuple[Request, tuple[Callable[[], compaction.IntoCompaction], ...]]:
        """Where the backend does not compact by itself, its summary is made into a compaction."""
        if not compaction.is_asked(request) or self._shared.router.find(request.model)[0].compacts:
            return request, ()
        return compaction.summarising(request), (partial(compaction.IntoCompaction, f"cmp_{self._seed}"),)

    async def _in_background(self, opened: Opened, caller: Caller, receive: Receive) -> None:
        request, policies = self._compacting(opened.request)
        plan = self._plan(request, caller, policies)
        run = BackgroundRun(self._shared, self._bound, plan, dict(self._facts), self._claim)
        await self._state.ledger.queue(opened, run.response)
        queued = bytes(run.response.encoded())
        self._state.background.start(opened.owner, run)
        claim, self._claim = self._claim, Claim(self._shared.flight)  # the bytes are the run's now
        assert run.task is not None
        run.task.add_done_callback(lambda _: claim.release())
        self._handed_over = True
        self._bound = ResponsesBound(self._seed, self._state)  # the other one is the run's now
        self._claim = Claim(self._shared.flight)
        await self._send_kept(run.journal if request.stream else queued, receive)

    async def _send_kept(self, kept: Journal | bytes, receive: Receive) -> None:
        """Answer with something that does not depend on this connection."""
        self._delivery.status = 200
        self._delivery.committed = self._delivery.ended = True
        if isinstance(kept, bytes):
            await send_json(self._send, 200, kept, self._delivery.headers)
            return
        task = asyncio.current_task()
        assert task is not None
        start = {"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *self._delivery.headers]}
        with UntilClientGone(receive, task, self._shared):
            await self._send(start)
            async for piece in journal_bytes(kept, -1, self._shared.pace.keepalive):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})

    def _report(self) -> None:
        if not self._handed_over:
            super()._report()

    async def run(self, receive: Receive) -> None:
        await super().run(receive)
        if self._delivery.status == 499:
            await self._bound.cancel()


class CompactExchange(ResponsesExchange):
    """POST /v1/responses/compact: a turn that ends in a compaction, kept by nobody."""

    async def _read(self, body: bytes) -> Asked:
        asked = await super()._read(body)
        trigger = msgspec.Raw(b'{"type":"compaction_trigger"}')
        changed = msgspec.structs.replace(asked.body, stream=False, store=False, background=False)
        return msgspec.structs.replace(asked, body=changed, items=(*asked.items, trigger))

    def _bind(self, seed: str) -> Bound:
        return _CompactBound(seed, self._state)


class _CompactBound(ResponsesBound):
    def turn(self, turn: Turn) -> bytes:
        response = _fields(super().turn(turn))
        kept = ("created_at", "output", "usage")
        shown: dict[str, Any] = {name: response[name] for name in kept}
        if bytes(response["usage"]) == b"null":
            shown["usage"] = usage_object(Usage())
        return _encode({"id": self.id, "object": "response.compaction", **shown})


class SubmitExchange(ResponsesExchange):
    """POST /v1/responses/{id}/submit_tool_outputs: continues a response, once."""

    async def _exchange(self, receive: Receive) -> None:
        caller = self._enter()
        body = await self._read_body(receive)
        id = self._scope["path_params"]["response_id"]
        submitting, key = self._state.submitting, (caller.owner, id)
        while key in submitting:
            await submitting[key].wait()
        submitting[key] = over = asyncio.Event()
        try:
            await self._submit(id, body, caller, receive)
        finally:
            del submitting[key]
            over.set()

    async def _submit(self, id: str, body: bytes, caller: Caller, receive: Receive) -> None:
        store = self._shared.store
        record = await store.load(caller.owner, id)
        if record is None:
            raise not_found(id)
        given = responses.read_tool_outputs(body)
        made = await store.output(caller.owner, id)
        items = tool_outputs(given, made)
        if record.continuation:
            earlier = await store.input(caller.owner, record.continuation)
            if earlier and not are_the_same(items, earlier, made):
                message = f"Other outputs were submitted for {id!r} already; they led to {record.continuation!r}."
                raise BadRequest(message, "tool_outputs", "outputs_already_submitted", status=409)
            if earlier and await self._send_again(record.continuation, caller, receive, stream=bool(given.stream)):
                return
        fields: dict[str, Any] = {**_fields(record.fields), "previous_response_id": id, "input": items}
        fields["stream"] = bool(given.stream)
        fields.pop("conversation", None)
        if _forces_a_call(fields.get("tool_choice")):
            del fields["tool_choice"]  # it had its call; forcing another would never end
        await self._answer(await self._read(_encode(fields)), caller, receive, record.conversation)

    async def _send_again(self, id: str, caller: Caller, receive: Receive, *, stream: bool) -> bool:
        """Answer with a response that is there already; False if it is not."""
        store = self._shared.store
        running = self._state.background.get(caller.owner, id)
        if running is not None and not await running.is_over():
            await self._send_kept(running.journal if stream else running.snapshot(), receive)
            return True
        record = await store.load(caller.owner, id)
        if record is None:
            return False
        response = full_response(record, await store.output(caller.owner, id))
        await self._send_kept(replayed(record, response) if stream else response, receive)
        return True


def _forces_a_call(choice: msgspec.Raw | None) -> bool:
    if choice is None:
        return False
    read = msgspec.json.decode(choice)
    return read == "required" or (isinstance(read, dict) and "name" in read)
