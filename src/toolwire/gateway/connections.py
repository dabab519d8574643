"""Connections of clients, with limits that hold before a client is authenticated.

uvicorn's protocols wait for a client without a deadline. These limit the number of connections, and each wait for a
request, its headers and its body. They also linger before closing: a socket that is closed while its peer still sends
is reset, and the peer loses the answer. So input is read and discarded for a while.

    WAITING → HEADERS → BODY → READ → WAITING …        anything → CLOSING
"""

import asyncio
from enum import Enum, auto
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from toolwire.config.settings import Server, bytes_of
from toolwire.core.errors import Failure
from toolwire.gateway.http import HEALTH_PATHS, send_json
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.protocols import dialect_for

MAX_OVERHEAD = 64 * 1024
"""Bytes of headers, of trailers, and between two pieces of a body."""

LINGER = 30.0
"""Seconds for which data from an answered client is read and discarded."""

LINGER_RATE = 256 * 1024
"""Discarded bytes, up to `server.max_body`, for which `LINGER` is extended by a second: a gateway under load reads
slowly, and a client whose connection is reset does not receive the answer."""

LINGER_SILENT = 5.0
"""Seconds of silence after which an answered client is presumed to have received the answer."""

HEALTH_CONNECTIONS = 32
"""Connections beyond the limit, for the health endpoints only."""

MAX_PIPELINED = 64
"""Requests that may wait on one connection for the answers to earlier ones."""

SMALL_READ, LARGE_READ = 2 * 1024, 64 * 1024
"""Bytes of one read from a WebSocket: between frames, where a larger read could hold many tiny ones, and inside a long
frame. uvloop reads up to 32 times before other tasks run."""

CONTINUE = b"HTTP/1.1 100 "
"""The start of the interim answer that uvicorn may write before the final one."""

DRAIN_IDLE = 1.0
"""Seconds that a connection may wait for a request while the gateway drains."""


class Connections(ServerState):
    """All connections and their limits."""

    def __init__(self, server: Server, budget: MemoryBudget) -> None:
        super().__init__()
        self.limits = server
        self.budget = budget
        self.draining = False
        """Whether connections close after their next answer."""
        self.idle = server.idle_timeout
        """Seconds that a connection may wait for the next request."""
        self.reserve: dict[HttpConnection, None] = {}
        """Connections beyond the limit, the oldest first."""

    def drain(self, *, is_replaced: bool) -> None:
        """Answer current requests, then close. An idle connection may still send a request, because its client does not
        know of the drain; without a process that replaces this one, it must do so soon."""
        self.draining = True
        if not is_replaced:
            self.idle = min(self.idle, DRAIN_IDLE)

    def check(self, now: float) -> None:
        """End connections that exceed a time limit."""
        for connection in tuple(self.connections):
            cast("HttpConnection", connection).check(now)

    @property
    def are_too_many(self) -> bool:
        return len(self.connections) > self.limits.max_connections

    def enter_reserve(self, connection: "HttpConnection") -> None:
        """Admit a connection beyond the limit. If the reserve is full, the oldest without a request is closed."""
        self.reserve[connection] = None
        if len(self.reserve) > HEALTH_CONNECTIONS:
            next((each for each in self.reserve if not each.is_answering), connection).turn_away()

    @property
    def overflow(self) -> Failure:
        """The failure of a request on a connection beyond the limit."""
        message = f"More than {self.limits.max_connections} connections (server.max_connections)."
        return Failure(503, "too_many_connections", message)

    def only_health(self, app: ASGIApp) -> ASGIApp:
        """The application for a connection in the reserve."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] in HEALTH_PATHS:
                await app(scope, receive, send)
            else:
                failure = self.overflow
                await send_json(send, failure.status, dialect_for(scope["path"]).module.encode_error(failure))

        return serve


class Phase(Enum):
    """What a connection waits for."""

    WAITING = auto()
    """The next request."""
    HEADERS = auto()
    BODY = auto()
    READ = auto()
    """The answer: the request is complete."""
    CLOSING = auto()
    """The end of the client's data, which is discarded."""


class _Trailers(list[tuple[bytes, bytes]]):
    """Headers after a body, which are discarded."""

    def append(self, object: tuple[bytes, bytes]) -> None:
        pass


_TRAILERS = _Trailers()


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection. An upgrade turns it into a WebSocket (`websocket.py`)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self.server_state, Connections)
        self._all = self.server_state
        self._phase = Phase.HEADERS
        self._since = self._heard = self.loop.time()
        self._overhead = 0
        self._drained = 0  # bytes that came after the answer
        self._blocked = 0.0  # since when the client has not read
        self._is_request = False  # whether the data read is a request to answer here, not an upgrade
        self._awaits_head = True  # whether the next write is the head of an answer
        self._head = b""  # written together with the beginning of the body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._all.are_too_many:
            self.app = self._all.only_health(self.app)
            self._all.enter_reserve(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.reserve.pop(self, None)
        super().connection_lost(exc)

    def turn_away(self) -> None:
        """Close a connection beyond the limit at once."""
        self._all.reserve.pop(self, None)
        self._refuse(self._all.overflow)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        self._drained += len(data)
        if self._phase is Phase.CLOSING:
            return
        if self._phase is Phase.WAITING:
            self._enter(Phase.HEADERS)
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > MAX_OVERHEAD:
            where = "headers" if self._phase is Phase.HEADERS else "trailers"
            self._refuse(Failure(431, "headers_too_large", f"More than {MAX_OVERHEAD} bytes of {where}."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._phase is not Phase.HEADERS:
            self._enter(Phase.HEADERS)  # behind a request that is still being answered

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        self._is_request = self.cycle is not before
        if len(self.pipeline) > MAX_PIPELINED:
            self.transport.close()
        self._phase, self._since, self._overhead = Phase.BODY, self._heard, 0
        if self._is_request:
            self.headers = _TRAILERS
            self.cycle.transport = cast("asyncio.Transport", self)
            is_last = self._all.draining or self in self._all.reserve
            self.cycle.keep_alive = self.cycle.keep_alive and not is_last

    def handle_websocket_upgrade(self) -> None:
        if self in self._all.reserve:
            self._refuse(self._all.overflow)
            return
        if self.scope["method"] != "GET":
            self._refuse(Failure(405, "method_not_allowed", "A WebSocket handshake must use GET."), b"allow: GET\r\n")
            return
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if isinstance(protocol, WebSocketsSansIOProtocol) and not self.transport.is_closing():
            self.transport.pause_reading()
            self.transport.set_protocol(SmallReads(protocol))
            self.transport.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._phase, self._since, self._overhead = Phase.READ, self._heard, 0
        if self._is_request and self.cycle.response_complete:
            self._phase = Phase.WAITING

    def on_response_complete(self) -> None:
        """Start the next pipelined request, or wait for one; `check` limits the wait, not uvicorn's timer."""
        self._send_head()
        self._awaits_head = True
        vars(self).pop("write", None)
        self._since, self._drained = self.loop.time(), 0
        if self._phase is Phase.READ and self.cycle.response_complete:
            self._phase, self._overhead = Phase.WAITING, 0
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())

    def send_400_response(self, msg: str) -> None:
        self._refuse(Failure(400, "invalid_request", msg))

    def shutdown(self) -> None:
        """Close after the answer to the current or the next request; `check` closes idle connections."""
        if self._phase is Phase.CLOSING:
            self.transport.close()
        elif self.is_answering:
            super().shutdown()

    # The transport of an answer

    def write(self, data: bytes) -> None:
        """Write the next part of an answer. The head waits for the write that follows it, which saves a system call."""
        if not self._awaits_head:
            self.transport.write(self._head + data)
            self._head = b""
            self.write = self.transport.write  # the rest goes straight to the transport
        elif data.startswith(CONTINUE):
            self.transport.write(data)
        else:
            self._awaits_head, self._head = False, data
            self.loop.call_soon(self._send_head)

    def _send_head(self) -> None:
        if self._head:
            self.write(b"")

    def is_closing(self) -> bool:
        return self._phase is Phase.CLOSING or self.transport.is_closing()

    def close(self) -> None:
        """Close, and if the client may still be sending, let it receive the answer first."""
        if self.is_closing():
            return
        self._send_head()
        if self._phase not in (Phase.HEADERS, Phase.BODY):
            self.transport.close()
            return
        self._enter(Phase.CLOSING)
        self._heard, self._drained = self._since, 0
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write_eof()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked = 0.0

    def check(self, now: float) -> None:
        """End the connection if the client takes too long."""
        limits = self._all.limits
        if self.transport.is_closing():
            self._blocked = self._blocked or now  # open until the client has read everything
        if self._blocked and now - self._blocked > limits.write_timeout:
            self.transport.abort()
            return
        match self._phase:
            case Phase.WAITING if now - self._since > self._all.idle:
                self.transport.close()
            case Phase.HEADERS if self._all.draining and not self._overhead and now - self._since > self._all.idle:
                self.transport.close()
            case Phase.HEADERS if now - self._since > limits.header_timeout and not self.is_answering:
                if self._overhead:
                    message = f"The headers were not complete within {limits.header_timeout:g} seconds."
                    self._refuse(Failure(408, "request_timeout", message))
                else:
                    self.transport.close()
            case Phase.BODY if self.flow.read_paused:
                self._heard = now  # silence while reading is paused does not count
            case Phase.BODY if not self._is_answered:
                if now - self._heard > limits.body_timeout:
                    message = f"No part of the body arrived for {limits.body_timeout:g} seconds."
                    self._refuse(Failure(408, "request_timeout", message))
            case Phase.BODY | Phase.CLOSING:
                longest = LINGER + min(self._drained, bytes_of(limits.max_body)) / LINGER_RATE
                if now - self._since > longest or now - self._heard > LINGER_SILENT:
                    self.transport.close()
            case _:
                pass

    @property
    def _is_answered(self) -> bool:
        return self._is_request and self.cycle.response_complete

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return not getattr(self.cycle, "response_complete", True)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._since = self.loop.time()
        self._overhead = 0

    def _refuse(self, failure: Failure, headers: bytes = b"") -> None:
        """Answer data that is not a valid request, and close. A request that has an answer gets no second one."""
        if self.is_closing():
            return
        if self._phase is Phase.BODY and self._is_answered:
            self.close()
            return
        if self.is_answering:
            self.cycle.disconnected = True  # the application sees that the client is gone
            self.cycle.message_event.set()
            if self.cycle.response_started or self.pipeline:  # a refusal would be read as part of an answer
                self.transport.close()
                return
        self.transport.write(encode_refusal(failure, getattr(self, "url", b"").decode("latin-1"), headers))
        self.close()


def encode_refusal(failure: Failure, path: str, headers: bytes = b"") -> bytes:
    """The whole HTTP answer to data that is not a valid request."""
    body = dialect_for(path).module.encode_error(failure)
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
    return STATUS_LINE[failure.status] + head + headers + b"\r\n" + body


class SmallReads(asyncio.BufferedProtocol):
    """Sits between a transport and a WebSocket, and limits the size of a read."""

    def __init__(self, socket: WebSocketsSansIOProtocol) -> None:
        self._socket = socket
        self._buffer = bytearray()
        self.connection_lost = socket.connection_lost
        self.eof_received = socket.eof_received
        self.pause_writing = socket.pause_writing
        self.resume_writing = socket.resume_writing

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(LARGE_READ if len(self._socket.conn.reader.buffer) >= SMALL_READ else SMALL_READ)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._socket.data_received(bytes(memoryview(self._buffer)[:nbytes]))
