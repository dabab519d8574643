"""Responses over a WebSocket: each message asks for one turn, and its events come back as messages.

    → {"type":"response.create","model":…,"input":…}
    ← {"type":"response.created",…} … {"type":"response.completed",…}

One turn at a time; further requests wait their turn. The latest response lives in the connection's memory, so that a
chain works though nothing is stored.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import Event, TurnEnded, TurnStarted
from toolwire.dialects import responses
from toolwire.dialects.openai import error_object
from toolwire.dialects.reading import read
from toolwire.dialects.responses import ParsedRequest
from toolwire.gateway.body import check_body, stepped
from toolwire.gateway.connections import DRAIN, SocketConnection
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.flight import Claim
from toolwire.gateway.http import ClientGone, send_json
from toolwire.gateway.keys import Caller, Unauthorized
from toolwire.gateway.responses.answer import ResponsesAnswer
from toolwire.gateway.responses.conversation_lock import UNLOCKED
from toolwire.gateway.responses.memory import Memory
from toolwire.gateway.responses.operations import State, begin, in_conversation, is_extended
from toolwire.gateway.sinks import HttpSink
from toolwire.turns.source import TurnSource

_encode = msgspec.json.Encoder().encode

WAITING = 1000
"""Most requests that wait on one connection."""

_REFUSED = ("stream_options", "background")


class _Draining:
    """Stands behind the last request of a connection that is answered."""


_DRAINING = _Draining()


class _Create(msgspec.Struct):
    type: str = ""
    stream: bool | None = None
    stream_id: str = ""
    previous_response_id: Any = None


_decode_create = msgspec.json.Decoder(_Create).decode


class _Refused:
    """Requests in a row for which there was no room in the queue."""

    def __init__(self) -> None:
        self.count = 0


class Socket:
    """The endpoint as an ASGI application."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state()
        await receive()  # websocket.connect
        try:
            caller = state.shared.keys.check(dict(scope["headers"]))
        except Unauthorized as error:
            await refuse(send, error.failure)
            return
        await send({"type": "websocket.accept"})
        connection = Connection(state, scope, receive, send, caller.owner)
        _drain_with_server(receive, connection)
        await connection.run()


def _drain_with_server(receive: Receive, connection: "Connection") -> None:
    """Have uvicorn drain a connection when it ends.

    By itself it closes a WebSocket at once, whatever runs there, where it lets an HTTP request finish. `receive` is a
    method of the protocol that it asks to shut down. The gateway's own server has a protocol that drains.
    """
    protocol = getattr(receive, "__self__", None)
    if isinstance(getattr(protocol, "config", None), uvicorn.Config) and not isinstance(protocol, SocketConnection):
        vars(protocol)["shutdown"] = connection.drain


async def refuse(send: Send, failure: Failure) -> None:
    """Answer an upgrade with an HTTP error. Codex falls back to POST at once on a 426."""

    async def send_response(message: Message) -> None:
        await send({**message, "type": message["type"].replace("http.", "websocket.http.")})

    headers = [(b"upgrade", b"websocket")] if failure.status == 426 else []
    await send_json(send_response, failure.status, responses.encode_error(failure), headers)


class Connection:
    """One client's socket, from its first request to its end."""

    def __init__(self, state: State, scope: Scope, receive: Receive, send: Send, owner: str) -> None:
        self._state = state
        self._scope = scope
        self._receive = receive
        self._send = send
        self._memory = Memory(state.remembered, owner, state.shared.bounds.body)
        self._asked: asyncio.Queue[bytes | _Refused | _Draining] = asyncio.Queue()
        self._waiting = 0  # requests, and the bytes of them
        self._waiting_bytes = 0
        self._claim = Claim(state.shared.flight)  # of those bytes
        self._refused: _Refused | None = None  # the last in the queue, if it is one
        self._gone = asyncio.Event()

    def drain(self) -> None:
        """Answer what was asked until now, and then close."""
        self._asked.put_nowait(_DRAINING)

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        limit = self._state.shared.settings.server.websocket_limit
        ends = time.monotonic() + limit if limit else float("inf")
        try:
            while not self._gone.is_set():
                if not await self._turn(await self._next(ends)):
                    break
        except asyncio.CancelledError:
            await self._say_goodbye(503, "shutting_down", "The gateway is shutting down.", 1012)
        finally:
            reader.cancel()
            self._claim.release()
            self._memory.close()

    async def _next(self, ends: float) -> "bytes | _Refused | None":
        """The next request, or None when the connection is over."""
        getting = asyncio.create_task(self._asked.get())
        leaving = asyncio.create_task(self._gone.wait())
        now, idle = time.monotonic(), self._state.shared.settings.server.websocket_idle
        left = max(0.0, min(ends, now + (idle or float("inf"))) - now)
        _, pending = await asyncio.wait(
            (getting, leaving),
            timeout=None if left == float("inf") else left,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in pending:
            task.cancel()
        if getting.done():
            asked = getting.result()
            if not isinstance(asked, _Draining):
                return asked
            await self._send({"type": "websocket.close", "code": 1012})
        elif not leaving.done():
            which = "server.websocket_limit" if time.monotonic() >= ends else "server.websocket_idle"
            message = f"This connection has reached its limit ({which}); open a new one."
            await self._say_goodbye(400, "websocket_connection_limit_reached", message, 1000)
        return None

    async def _say_goodbye(self, status: int, code: str, message: str, reason: int) -> None:
        await self._send({"type": "websocket.send", "text": error_frame(Failure(status, code, message))})
        await self._send({"type": "websocket.close", "code": reason})

    async def _read(self) -> None:
        while not self._gone.is_set():
            self._hear(await self._receive())

    def _hear(self, message: Message) -> None:
        """Take a message in; nothing of it is held while the next one is waited for."""
        if message["type"] == "websocket.disconnect":
            self._gone.set()
        elif message["type"] == DRAIN:
            self.drain()
        else:
            text = message.get("text")
            self._enqueue(text.encode() if text is not None else message.get("bytes") or b"")

    def _enqueue(self, asked: bytes) -> None:
        has_room = self._waiting_bytes + len(asked) <= self._state.shared.bounds.body
        if has_room and self._waiting < WAITING and self._claim.takes(len(asked)):
            self._waiting += 1
            self._waiting_bytes += len(asked)
            self._refused = None
            self._asked.put_nowait(asked)
            return
        if self._refused is None:
            self._refused = _Refused()
            self._asked.put_nowait(self._refused)
        self._refused.count += 1

    async def _turn(self, message: "bytes | _Refused | None") -> bool:
        """Answer a request; False if there is none."""
        if message is None:
            return False
        if isinstance(message, _Refused):
            self._refused = None
            await self._refuse(message.count)
            return True
        self._waiting -= 1
        self._waiting_bytes -= len(message)
        self._claim.shrink(len(message))
        shared = self._state.shared
        sink = SocketSink(self._send, shared.pace, shared.loop, responses.encode_error)
        exchange = Exchange(shared, "responses", self._scope, sink)
        exchange.facts["transport"] = "websocket"
        await exchange.serve(SocketTurn(self._state, sink, self._memory, message), self._until_gone)
        return True

    async def _refuse(self, count: int) -> None:
        limit = f"{WAITING} requests or {self._state.shared.bounds.body} bytes of them"
        busy = Failure(429, "too_many_requests", f"More than {limit} wait on this connection.")
        for _ in range(count):
            await self._send({"type": "websocket.send", "text": error_frame(busy)})

    async def _until_gone(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}


def error_frame(failure: Failure, lane: str = "", request_id: str = "") -> str:
    """A failure as the message that ends a turn."""
    frame: dict[str, Any] = {"type": "error", "status": failure.status, "error": error_object(failure)}
    headers = {"retry-after": failure.retry_after, "x-upstream-request-id": request_id}  # Codex waits by the first
    if any(headers.values()):
        frame["headers"] = {name: value for name, value in headers.items() if value}
    return _encode({**frame, "stream_id": lane} if lane else frame).decode()


class SocketSink(HttpSink):
    """Events as messages of a socket. `lane` is the stream of the connection that they belong to, if it has several."""

    lane = ""

    async def refuse(self, failure: Failure, run: TurnSource | None) -> None:
        if run is not None:
            self._passed_on(run)
        frame = error_frame(failure, self.lane, self.upstream_id)
        self._commit(failure.status)
        self.ended = True
        if self.trace is not None:
            self.trace.wrote((frame.encode(),))
        await self._say(frame)

    async def at_once(self, events: Sequence[Event], answer: ResponsesAnswer) -> None:
        """A turn that needs no run."""
        pieces = [piece for event in events for piece in answer.encoder(None).feed(event)]
        pieces = await answer.settle(pieces)
        self._commit(200)
        await self._end_with(pieces)

    async def _open(self, run: TurnSource) -> None:
        self._passed_on(run)

    async def _put(self, pieces: Sequence[bytes], *, last: bool = False) -> None:
        if self.lane:
            head = b'{"stream_id":%b,' % _encode(self.lane)
            pieces = [head + piece[1:] for piece in pieces]
        if self.trace is not None:
            self.trace.wrote(pieces)
        for piece in pieces:
            await self._say(piece.decode())

    async def _say(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError:
            raise ClientGone from None


class SocketTurn:
    """The operation behind one message."""

    def __init__(self, state: State, sink: SocketSink, memory: Memory, message: bytes) -> None:
        self._state = state
        self._sink = sink
        self._memory = memory
        self._message = message
        self._answer: ResponsesAnswer | None = None

    async def __call__(self, exchange: Exchange, receive: Receive) -> None:
        caller = exchange.enter()
        exchange.take_body(self._message)
        await check_body(self._message, exchange.shared.bounds)
        create = read(_decode_create, self._message, "The message")
        self._sink.lane = self._memory.lane = create.stream_id
        try:
            await exchange.pause()
            await self._turn(exchange, create, caller, receive)
        finally:
            answer = self._answer
            is_whole = answer is not None and answer.response.status in ("completed", "incomplete")
            if self._sink.status >= 400 or not is_whole:
                self._memory.evict(str(create.previous_response_id))

    async def _turn(self, exchange: Exchange, create: _Create, caller: Caller, receive: Receive) -> None:
        parsed = await self._read(exchange, create)
        history, lock = self._state.history, UNLOCKED
        if parsed.conversation:
            lock = await in_conversation(self._state, exchange, caller.owner, parsed.conversation)
        resumed = await history.open(caller.owner, parsed, exchange.claim, self._memory, lock)
        extended = is_extended(exchange)
        if parsed.body.generate is False:
            self._answer = ResponsesAnswer(exchange, history, resumed, resumed.request, extended=extended, socket=True)
            await self._warm_up(exchange, self._answer)
            return
        await exchange.shared.memory.load(caller.owner, resumed.request.entries)
        await exchange.pause()
        request, run = begin(exchange, resumed.request, caller, lock if lock.lease is not None else None)
        self._answer = ResponsesAnswer(exchange, history, resumed, request, extended=extended, socket=True)
        await exchange.pause()
        await exchange.deliver(run, self._answer, receive)

    async def _read(self, exchange: Exchange, create: _Create) -> ParsedRequest:
        if create.type != "response.create":
            message = f"type must be response.create; received {create.type!r}."
            raise BadRequest(message, "type", "unknown_message")
        data = self._message
        parsed = await stepped(responses.reading_request(data, exchange.shared.bounds), len(data))
        for name in _REFUSED:
            if bytes(parsed.fields.get(name, b"null")) not in (b"null", b"false"):
                raise BadRequest(f"{name} cannot be sent over a WebSocket.", name, "unsupported_parameter")
        if create.stream is False:
            raise BadRequest("stream: A WebSocket always streams.", "stream", "unsupported_value")
        return msgspec.structs.replace(parsed, body=msgspec.structs.replace(parsed.body, stream=True))

    async def _warm_up(self, exchange: Exchange, answer: ResponsesAnswer) -> None:
        """A request that is only to be remembered: the next one will continue it."""
        route, _ = exchange.shared.engine.router.find(answer.request.model)
        exchange.facts |= {"backend": route.backend.name, "model": answer.request.model, "warm_up": True}
        await self._sink.at_once((TurnStarted(), TurnEnded()), answer)
