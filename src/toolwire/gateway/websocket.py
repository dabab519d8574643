"""WebSockets of clients, with the limits of their connections (`connections.py`)."""

from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import SecurityError
from websockets.frames import Frame

from toolwire.core.errors import Failure
from toolwire.gateway.body import is_utf8
from toolwire.gateway.connections import Connections, encode_refusal
from toolwire.gateway.memory_budget import Reservation

DRAIN = "websocket.drain"
"""The type of a message to the application, not part of ASGI: finish the current turn, then close."""


class SocketConnection(WebSocketsSansIOProtocol):
    """One WebSocket. An incomplete message is held in one piece, within the memory budget; a complete one is passed to
    the application and not kept."""

    def __init__(self, *, server_state: ServerState, **options: Any) -> None:
        super().__init__(server_state=server_state, **options)
        assert isinstance(server_state, Connections)
        self._all = server_state
        self._limits = server_state.limits
        self._is_draining = False
        self._began = self.loop.time()
        self._reservation = Reservation(self._all.budget)  # of an incomplete message
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
        if not self._reservation.try_resize(self._unfinished):
            self._fail(1013, "The memory budget is used up (server.max_in_flight); try again soon.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._reservation.release()
        super().connection_lost(exc)

    def handle_text(self, event: Frame) -> None:
        self._is_text = True
        self.handle_cont(event)

    def handle_bytes(self, event: Frame) -> None:
        self._is_text = False
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        """Pass text on as bytes, like everything else."""
        data, event.data = event.data, b""  # the parser keeps its last frame until the next one
        if event.fin and not self._message:
            self._pass_on(bytes(data))
            return
        self._message += data
        if event.fin:
            message, self._message = self._message, bytearray()
            self._pass_on(bytes(message))

    def _pass_on(self, message: bytes) -> None:
        if self._is_text and not is_utf8(message):
            self._fail(1007, "A text message is not UTF-8.")
            return
        self.frames = [message]
        self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping. A client that does not read gets the latest answer only (RFC 6455, section 5.5.3)."""
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
        """Tell the application to close after its turn. During the handshake `check` tries again later."""
        if self.handshake_complete and not self.close_sent and not self._is_draining:
            self._is_draining = True
            self.queue.put_nowait(cast("Any", {"type": DRAIN}))

    def check(self, now: float) -> None:
        """End the connection if the client stops inside a message, or does not read."""
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
        """Bytes of an incomplete message."""
        return len(self._message) + len(self.conn.reader.buffer)

    def _refuse_handshake(self) -> None:
        """Answer a failed upgrade: its headers are invalid, or the application does not answer in time."""
        if self.conn.handshake_exc is None:
            message = f"The WebSocket handshake took more than {self._limits.header_timeout:g} seconds."
            failure = Failure(408, "request_timeout", message)
        elif isinstance(self.conn.handshake_exc.__cause__, SecurityError):
            failure = Failure(431, "headers_too_large", "The handshake has too many headers, or too long ones.")
        else:
            failure = Failure(400, "invalid_request", "The request is not a valid WebSocket handshake.")
        self.handshake_complete = self.close_sent = True
        self.transport.write(encode_refusal(failure, ""))
        self.transport.close()

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self._message.clear()
        self._reservation.release()
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
