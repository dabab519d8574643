"""The Responses API over a WebSocket: a request is a message, and its events come back as messages.

    → {"type":"response.create","model":…,"input":…}
    ← {"type":"response.created",…} … {"type":"response.completed",…}

Requests are answered one at a time; further ones are queued. The connection caches its latest responses, so that a
chain works even if nothing is stored.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.types import Message, Receive, Scope, Send

from toolwire.core.errors import BadRequest, Failure, ToolwireError
from toolwire.core.events import TurnEnded, TurnStarted
from toolwire.dialects import responses
from toolwire.dialects.openai import encode_error_object
from toolwire.dialects.reading import read
from toolwire.dialects.responses import ParsedRequest
from toolwire.gateway.body import check_body
from toolwire.gateway.endpoint import open_turn
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.http import DRAIN, ClientGone, send_json
from toolwire.gateway.keys import Caller
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.responses.answer import ResponsesAnswer, begin_turn
from toolwire.gateway.responses.conversation_lock import UNLOCKED
from toolwire.gateway.responses.operations import State, read_request
from toolwire.gateway.responses.socket_cache import SocketCache
from toolwire.gateway.sinks import HttpSink
from toolwire.turns.source import TurnSource

_encode = msgspec.json.Encoder().encode

MAX_QUEUED = 1000
"""Maximum requests that wait on one connection."""

_REFUSED_FIELDS = ("stream_options", "background")


class _Create(msgspec.Struct):
    type: str = ""
    stream: bool | None = None
    stream_id: str = ""
    previous_response_id: Any = None


_decode_create = msgspec.json.Decoder(_Create).decode


class _Refused:
    """Consecutive requests for which there was no room in the queue."""

    def __init__(self) -> None:
        self.count = 0


class Socket:
    """The endpoint as an ASGI application."""

    PATH = responses.PATH

    def __init__(self, state: State) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state
        await receive()  # websocket.connect
        try:
            caller = state.shared.keys.check(dict(scope["headers"]))
        except ToolwireError as error:
            await refuse(send, error.failure)
            return
        await send({"type": "websocket.accept"})
        connection = SocketSession(state, scope, receive, send, caller.owner)
        _drain_with_server(receive, connection)
        await connection.run()


def _drain_with_server(receive: Receive, connection: "SocketSession") -> None:
    """Have uvicorn drain a connection when it shuts down.

    By default it closes a WebSocket at once, even during a turn, while it lets an HTTP request finish. `receive` is a
    method of the protocol object that it shuts down. The gateway's own server sends `DRAIN`.
    """
    protocol = getattr(receive, "__self__", None)
    if type(protocol).__module__.startswith("uvicorn."):
        vars(protocol)["shutdown"] = connection.drain


async def refuse(send: Send, failure: Failure) -> None:
    """Answer an upgrade with an HTTP error. On a 426 Codex falls back to POST at once."""

    async def send_response(message: Message) -> None:
        await send({**message, "type": message["type"].replace("http.", "websocket.http.")})

    headers = [(b"upgrade", b"websocket")] if failure.status == 426 else []
    await send_json(send_response, failure.status, responses.encode_error(failure), headers)


class SocketSession:
    """One connection of a client, from its first request to its end."""

    def __init__(self, state: State, scope: Scope, receive: Receive, send: Send, owner: str) -> None:
        self._state = state
        self._scope = scope
        self._receive = receive
        self._send = send
        self._cache = SocketCache(state.socket_responses, owner, state.shared.bounds.body)
        self._queue: asyncio.Queue[bytes | _Refused | Literal["drain", "gone"]] = asyncio.Queue()
        self._queued = 0  # requests, and their bytes
        self._queued_bytes = 0
        self._reservation = Reservation(state.shared.memory_budget)  # of those bytes
        self._refused: _Refused | None = None  # the last in the queue, if it is one
        self._gone = asyncio.Event()

    def drain(self) -> None:
        """Answer the requests that have arrived, then close the connection."""
        self._queue.put_nowait("drain")

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        limit = self._state.shared.settings.server.websocket_limit
        ends = time.monotonic() + limit if limit else float("inf")
        try:
            while not self._gone.is_set():
                if not await self._answer(await self._wait_for_request(ends)):
                    break
        except asyncio.CancelledError:
            await self._close_with(Failure(503, "shutting_down", "The gateway is shutting down."), 1012)
        finally:
            reader.cancel()
            self._reservation.release()
            self._cache.close()

    async def _wait_for_request(self, ends: float) -> "bytes | _Refused | None":
        """The next request; None if the connection is over."""
        now, idle = time.monotonic(), self._state.shared.settings.server.websocket_idle
        left = min(ends, now + (idle or float("inf"))) - now
        try:
            message = await asyncio.wait_for(self._queue.get(), None if left == float("inf") else left)
        except TimeoutError:
            which = "server.websocket_limit" if time.monotonic() >= ends else "server.websocket_idle"
            reason = f"This connection has reached its limit ({which}); open a new one."
            await self._close_with(Failure(400, "websocket_connection_limit_reached", reason), 1000)
            return None
        if isinstance(message, str):
            if message == "drain":
                await self._send({"type": "websocket.close", "code": 1012})
            return None
        return message

    async def _close_with(self, failure: Failure, code: int) -> None:
        await self._send({"type": "websocket.send", "text": encode_error_frame(failure)})
        await self._send({"type": "websocket.close", "code": code})

    async def _read(self) -> None:
        while not self._gone.is_set():
            self._take(await self._receive())

    def _take(self, message: Message) -> None:
        """Enqueue a message. A separate function, so that the message is not held while the next one is awaited."""
        if message["type"] == "websocket.disconnect":
            self._gone.set()
            self._queue.put_nowait("gone")
        elif message["type"] == DRAIN:
            self.drain()
        else:
            text = message.get("text")
            request = text.encode() if text is not None else message.get("bytes") or b""
            has_room = self._queued_bytes + len(request) <= self._state.shared.bounds.body
            if has_room and self._queued < MAX_QUEUED and self._reservation.try_grow(len(request)):
                self._queued += 1
                self._queued_bytes += len(request)
                self._refused = None
                self._queue.put_nowait(request)
                return
            if self._refused is None:
                self._refused = _Refused()
                self._queue.put_nowait(self._refused)
            self._refused.count += 1

    async def _answer(self, message: "bytes | _Refused | None") -> bool:
        """Answer a request; False if there is none. No message is held while the next one is awaited."""
        if message is None:
            return False
        if isinstance(message, _Refused):
            await self._refuse(message.count)
            return True
        self._queued -= 1
        self._queued_bytes -= len(message)
        self._reservation.shrink(len(message))
        shared = self._state.shared
        turn = open_turn(shared, "responses", self._scope)
        turn.report.transport = "websocket"
        sink = SocketSink(self._send, turn, shared.pace, shared.ticker.loop, responses.encode_error)
        exchange = Exchange(shared, turn, self._scope, sink, Reservation(shared.memory_budget))
        await exchange.serve(SocketTurn(self._state, sink, self._cache, message), self._wait_until_gone)
        return True

    async def _refuse(self, count: int) -> None:
        self._refused = None
        limit = f"{MAX_QUEUED} requests or {self._state.shared.bounds.body} bytes of requests"
        busy = Failure(429, "too_many_requests", f"More than {limit} wait on this connection.")
        for _ in range(count):
            await self._send({"type": "websocket.send", "text": encode_error_frame(busy)})

    async def _wait_until_gone(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}


def encode_error_frame(failure: Failure, lane: str = "", request_id: str = "") -> str:
    """The message for a failure that ends a turn."""
    frame: dict[str, Any] = {"type": "error", "status": failure.status, "error": encode_error_object(failure)}
    headers = {"retry-after": failure.retry_after, "x-upstream-request-id": request_id}  # Codex obeys the first
    if any(headers.values()):
        frame["headers"] = {name: value for name, value in headers.items() if value}
    return _encode({**frame, "stream_id": lane} if lane else frame).decode()


class SocketSink(HttpSink):
    """Sends events as messages of a socket."""

    lane = ""
    """The `stream_id` of the events, if the connection has several streams."""

    async def refuse(self, failure: Failure, run: TurnSource | None) -> None:
        if run is not None:
            self._select_headers(run)
        frame = encode_error_frame(failure, self.lane, self.upstream_id)
        self._commit(failure.status)
        self.ended = True
        for tap in self._turn.taps:
            tap.write((frame.encode(),))
        await self._send_text(frame)

    async def send_empty(self, answer: ResponsesAnswer) -> None:
        """Send a turn without output, which needs no run."""
        encoder = answer.get_encoder(None)
        pieces = await answer.settle([*encoder.feed(TurnStarted()), *encoder.feed(TurnEnded())])
        self._commit(200)
        await self._end_with(pieces)

    async def _open(self, run: TurnSource) -> None:
        self._select_headers(run)

    async def _put(self, pieces: Sequence[bytes], *, last: bool = False) -> None:
        if self.lane:
            head = b'{"stream_id":%b,' % _encode(self.lane)
            pieces = [head + piece[1:] for piece in pieces]
        for tap in self._turn.taps:
            tap.write(pieces)
        for piece in pieces:
            await self._send_text(piece.decode())

    async def _send_text(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError:
            raise ClientGone from None


class SocketTurn:
    """The operation that answers one message."""

    def __init__(self, state: State, sink: SocketSink, cache: SocketCache, message: bytes) -> None:
        self._state = state
        self._sink = sink
        self._cache = cache
        self._message = message
        self._answer: ResponsesAnswer | None = None

    async def __call__(self, exchange: Exchange, receive: Receive) -> None:
        caller = exchange.enter()
        exchange.take_body(self._message)
        await check_body(self._message, exchange.shared.bounds)
        create = read(_decode_create, self._message, "The message")
        self._sink.lane = self._cache.lane = create.stream_id
        try:
            await exchange.pause()
            await self._run(exchange, await self._read(exchange, create), caller, receive)
        finally:
            answer = self._answer
            is_whole = answer is not None and answer.response.status in ("completed", "incomplete")
            if self._sink.status >= 400 or not is_whole:
                self._cache.evict(str(create.previous_response_id))

    async def _read(self, exchange: Exchange, create: _Create) -> ParsedRequest:
        if create.type != "response.create":
            message = f"type must be response.create; received {create.type!r}."
            raise BadRequest(message, "type", "unknown_message")
        parsed = await read_request(exchange, self._message)
        for name in _REFUSED_FIELDS:
            if bytes(parsed.fields.get(name, b"null")) not in (b"null", b"false"):
                raise BadRequest(f"{name} cannot be sent over a WebSocket.", name, "unsupported_parameter")
        if create.stream is False:
            raise BadRequest("stream: A WebSocket always streams.", "stream", "unsupported_value")
        return msgspec.structs.replace(parsed, body=msgspec.structs.replace(parsed.body, stream=True))

    async def _run(self, exchange: Exchange, parsed: ParsedRequest, caller: Caller, receive: Receive) -> None:
        history, lock = self._state.history, UNLOCKED
        if parsed.conversation:
            lock = await self._state.recovery.lock_conversation(exchange, caller.owner, parsed.conversation)
        resumed = await history.open(caller.owner, parsed, exchange.reservation, self._cache, lock)
        if parsed.body.generate is False:  # a warm-up: the request is only cached, and the next one continues it
            self._answer = ResponsesAnswer(exchange, history, resumed, resumed.request, socket=True)
            model = resumed.request.model
            route, _ = exchange.shared.engine.router.find(model, caller.grant)
            report = exchange.turn.report
            report.backend, report.model, report.warm_up = route.backend.name, model, True
            await self._sink.send_empty(self._answer)
            return
        guard = lock if lock.lease is not None else None
        run, self._answer = await begin_turn(exchange, history, resumed, caller, guard, socket=True)
        await exchange.pause()
        await exchange.deliver(run, self._answer, receive)
