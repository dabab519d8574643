"""Connections of clients, with limits that hold before anybody knows who they are.

uvicorn's protocols wait for a client without end. These say how long a connection may take to become a request, how
many there may be, and they end one so that its last answer is seen: a socket that is closed while its peer still sends
is reset, and what was on its way to the peer is lost. So reading goes on for a while, and what comes is thrown away.

    WAITING → HEADERS → BODY → READ → WAITING …        anything → CLOSING
"""

import asyncio
from enum import Enum, auto
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import SecurityError
from websockets.frames import Frame

from toolwire.config.settings import Server, bytes_of
from toolwire.core.errors import Failure
from toolwire.gateway.body import is_utf8
from toolwire.gateway.http import HEALTH_PATHS, send_json
from toolwire.gateway.memory_budget import MemoryBudget, Reservation
from toolwire.protocols import dialect_for

MOST_OVERHEAD = 64 * 1024
"""Bytes of headers, of trailers, and between two pieces of a body."""

LINGER = 30.0
"""Seconds for which an answered client may go on sending what nobody reads."""

LINGER_RATE = 256 * 1024
"""Bytes that an answered client must send in a second if it is to go on for longer, up to `server.max_body` of them:
a gateway under load reads slowly, and a client that is cut off does not see the answer."""

LINGER_SILENT = 5.0
"""Seconds after which an answered client that sends nothing is taken to have seen the answer."""

HEALTH_CONNECTIONS = 32
"""Connections beyond the limit, for the health endpoints only."""

MOST_PIPELINED = 64
"""Requests that may wait on one connection for the answers to those before them."""

NARROW, WIDE = 2 * 1024, 64 * 1024
"""Bytes that are read at a time from a WebSocket: of frames, each of which costs time however small it is, and of one
long frame. uvloop reads up to 32 times before anybody else has a turn."""

CONTINUE = b"HTTP/1.1 100 "
"""What uvicorn may write before the head of an answer."""

LAST_CHANCE = 1.0
"""Seconds that a connection may wait for a request when the gateway is about to end."""

DRAIN = "websocket.drain"
"""A message of our own to the application: finish the turn that runs, then close."""


class Connections(ServerState):
    """All connections, and what each may take."""

    def __init__(self, server: Server, budget: MemoryBudget) -> None:
        super().__init__()
        self.limits = server
        self.budget = budget
        self.draining = False
        """Whether connections end with the answer that comes next."""
        self.idle = server.idle_timeout
        """Seconds that a connection may wait for the next request."""
        self.reserve: dict[HttpConnection, None] = {}
        """Connections beyond the limit, the oldest first."""

    def drain(self, *, is_replaced: bool) -> None:
        """Answer what is being asked, and then close. What was accepted may still be asked: a client cannot know that
        nobody listens. If nobody will take this process's place, it may not take long."""
        self.draining = True
        if not is_replaced:
            self.idle = min(self.idle, LAST_CHANCE)

    def check(self, now: float) -> None:
        """End those that took too long."""
        for connection in tuple(self.connections):
            if isinstance(connection, HttpConnection | SocketConnection):
                connection.check(now)

    @property
    def are_too_many(self) -> bool:
        return len(self.connections) > self.limits.max_connections

    def enter_reserve(self, connection: "HttpConnection") -> None:
        """Admit a connection beyond the limit. If the reserve is full, the oldest that is not being answered leaves."""
        self.reserve[connection] = None
        if len(self.reserve) > HEALTH_CONNECTIONS:
            next((each for each in self.reserve if not each.is_answering), connection).turn_away()

    @property
    def too_many(self) -> Failure:
        message = f"More than {self.limits.max_connections} connections (server.max_connections)."
        return Failure(503, "too_many_connections", message)

    def only_health(self, app: ASGIApp) -> ASGIApp:
        """The application for a connection of the reserve."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] in HEALTH_PATHS:
                await app(scope, receive, send)
            else:
                await send_json(
                    send, self.too_many.status, dialect_for(scope["path"]).module.encode_error(self.too_many)
                )

        return serve


class Phase(Enum):
    """What a connection waits for."""

    WAITING = auto()
    """The next request."""
    HEADERS = auto()
    BODY = auto()
    READ = auto()
    """Nothing of the client: the request is here."""
    CLOSING = auto()
    """The client's end of the connection; what it still sends is thrown away."""


class _Trailers(list[tuple[bytes, bytes]]):
    """Headers behind a body, which nobody reads."""

    def append(self, object: tuple[bytes, bytes]) -> None:
        pass


_TRAILERS = _Trailers()


class HttpConnection(HttpToolsProtocol):
    """One connection of HTTP; an upgrade makes a `SocketConnection` of it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, Connections)
        self._all = server_state
        self._phase = Phase.HEADERS
        self._since = self._heard = self.loop.time()
        self._overhead = 0
        self._drained = 0  # bytes that came after the answer
        self._blocked = 0.0  # since when the client has not taken what waits for it
        self._is_request = False  # what is being read is answered here; an upgrade to a WebSocket is not
        self._awaits_head = True  # what is written next is the head of an answer
        self._head = b""  # it leaves together with the beginning of the body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._all.are_too_many:
            self.app = self._all.only_health(self.app)
            self._all.enter_reserve(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.reserve.pop(self, None)
        super().connection_lost(exc)

    def turn_away(self) -> None:
        """Close a connection for which there is no room, at once."""
        self._all.reserve.pop(self, None)
        self._refuse(self._all.too_many)
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
        if self._overhead > MOST_OVERHEAD:
            where = "headers" if self._phase is Phase.HEADERS else "trailers"
            self._refuse(Failure(431, "headers_too_large", f"More than {MOST_OVERHEAD} bytes of {where}."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._phase is not Phase.HEADERS:
            self._enter(Phase.HEADERS)  # behind a request that is still being answered

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        self._is_request = self.cycle is not before
        if len(self.pipeline) > MOST_PIPELINED:
            self.transport.close()
        self._phase, self._since, self._overhead = Phase.BODY, self._heard, 0
        if self._is_request:
            self.headers = _TRAILERS
            self.cycle.transport = cast("asyncio.Transport", self)
            is_last = self._all.draining or self in self._all.reserve
            self.cycle.keep_alive = self.cycle.keep_alive and not is_last

    def handle_websocket_upgrade(self) -> None:
        if self in self._all.reserve:
            self._refuse(self._all.too_many)
            return
        if self.scope["method"] != "GET":
            self._refuse(Failure(405, "method_not_allowed", "A WebSocket handshake must use GET."), b"allow: GET\r\n")
            return
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if isinstance(protocol, SocketConnection) and not self.transport.is_closing():
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
        """The next request may come, or be answered. `check` says how long it may take, and not uvicorn's timer."""
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
        """End with the answer to what is being asked, or to what comes next; `check` ends who asks nothing."""
        if self._phase is Phase.CLOSING:
            self.transport.close()
        elif self.is_answering:
            super().shutdown()

    # What an answer needs of its transport

    def write(self, data: bytes) -> None:
        """Write the next part of an answer. Its head waits for what is written right behind it, since each write
        is a system call."""
        if not self._awaits_head:
            self.transport.write(self._head + data)
            self._head = b""
            self.write = self.transport.write  # until the answer is over there is nothing more to do here
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
        """Say that nothing more will come, and wait until the client has seen it if it may still be sending."""
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
            self._blocked = self._blocked or now  # it is open until the client has taken what was written
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
                self._heard = now  # it is we who do not read
            case Phase.BODY if not self._is_answered:
                if now - self._heard > limits.body_timeout:
                    message = f"Nothing of the body came for {limits.body_timeout:g} seconds."
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
        """Answer what never became a request, and close. A request that has its answer gets no second one."""
        if self.is_closing():
            return
        if self._phase is Phase.BODY and self._is_answered:
            self.close()
            return
        if self.is_answering:
            self.cycle.disconnected = True  # the application sees that the client is gone
            self.cycle.message_event.set()
            if self.cycle.response_started or self.pipeline:  # nothing may come in between
                self.transport.close()
                return
        self.transport.write(_refusal(failure, getattr(self, "url", b"").decode("latin-1"), headers))
        self.close()


def _refusal(failure: Failure, path: str, headers: bytes = b"") -> bytes:
    """The answer to what never became a request."""
    body = dialect_for(path).module.encode_error(failure)
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
    return STATUS_LINE[failure.status] + head + headers + b"\r\n" + body


class SocketConnection(WebSocketsSansIOProtocol):
    """One WebSocket. What has come of a message is held in one piece and counts as in flight; a whole one is the
    application's, and nothing of it stays here."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, Connections)
        self._all = server_state
        self._limits = server_state.limits
        self._told_to_drain = False
        self._began = self.loop.time()
        self._claim = Reservation(server_state.budget)  # of a message that is not whole yet
        self._message = bytearray()  # its fragments
        self._is_text = False
        self._heard = self.loop.time()
        self._blocked = 0.0
        self._pong = b""

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.handshake_complete:
            self._refuse_handshake()
        if not self._claim.try_resize(self._unfinished):
            self._fail(1013, "The gateway holds as many bytes as it may (server.max_in_flight); try again soon.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._claim.release()
        super().connection_lost(exc)

    def handle_text(self, event: Frame) -> None:
        self._is_text = True
        self.handle_cont(event)

    def handle_bytes(self, event: Frame) -> None:
        self._is_text = False
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        """Text is handed on as bytes, like everything else."""
        data, event.data = event.data, b""  # the parser keeps its last frame until the next one
        if event.fin and not self._message:
            self._hand_on(bytes(data))
            return
        self._message += data
        if event.fin:
            message, self._message = self._message, bytearray()
            self._hand_on(bytes(message))

    def _hand_on(self, message: bytes) -> None:
        if self._is_text and not is_utf8(message):
            self._fail(1007, "A text message is not UTF-8.")
            return
        self.frames = [message]
        self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer. A client that does not read gets the latest answers only, as RFC 6455 allows (section 5.5.3)."""
        pong = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(pong)
        else:
            self._pong = pong

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked = 0.0
        pong, self._pong = self._pong, b""
        if pong:
            self.transport.write(pong)

    def shutdown(self) -> None:
        """Have the application close the socket when its turn is over; one that is not open yet, when it is."""
        if self.handshake_complete and not self.close_sent and not self._told_to_drain:
            self._told_to_drain = True
            self.queue.put_nowait(cast("Any", {"type": DRAIN}))

    def check(self, now: float) -> None:
        """End the connection if the client stops in the middle of a message, or takes nothing any more."""
        if self._all.draining:
            self.shutdown()
        if self.transport.is_closing():
            self._blocked = self._blocked or now
        elif not self.handshake_complete and now - self._began > self._limits.header_timeout:
            self._refuse_handshake()
        if self._blocked and now - self._blocked > self._limits.write_timeout:
            self.transport.abort()
        elif self.read_paused or (self.conn.current_size is None and not self._unfinished):
            self._heard = now
        elif now - self._heard > self._limits.body_timeout and not self.close_sent:
            self._fail(1008, "The message was not finished in time.")

    @property
    def _unfinished(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._message) + len(self.conn.reader.buffer)

    def _refuse_handshake(self) -> None:
        """Answer an upgrade that opens no WebSocket: its headers cannot be read, or the application says nothing."""
        if self.conn.handshake_exc is None:
            message = f"The WebSocket handshake took more than {self._limits.header_timeout:g} seconds."
            failure = Failure(408, "request_timeout", message)
        elif isinstance(self.conn.handshake_exc.__cause__, SecurityError):
            failure = Failure(431, "headers_too_large", "The handshake has too many headers, or too long ones.")
        else:
            failure = Failure(400, "invalid_request", "The request is not a valid WebSocket handshake.")
        self.handshake_complete = self.close_sent = True
        self.transport.write(_refusal(failure, ""))
        self.transport.close()

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self._message.clear()
        self._claim.release()
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()


class SmallReads(asyncio.BufferedProtocol):
    """Stands between a transport and a WebSocket, and says how much is read at a time."""

    def __init__(self, socket: SocketConnection) -> None:
        self._socket = socket
        self._buffer = bytearray()
        self.connection_lost = socket.connection_lost
        self.eof_received = socket.eof_received
        self.pause_writing = socket.pause_writing
        self.resume_writing = socket.resume_writing

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(WIDE if len(self._socket.conn.reader.buffer) >= NARROW else NARROW)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._socket.data_received(bytes(memoryview(self._buffer)[:nbytes]))
