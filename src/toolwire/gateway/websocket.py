"""WebSockets of clients, over the sans-IO protocol of `websockets`, with the limits of their connections.

An ASGI application gets text as bytes, like everything else. Compression is not offered: a message would be
decompressed in one step, whatever its size.
"""

import asyncio

from starlette.types import Message, Scope
from websockets.exceptions import SecurityError
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from toolwire.config.settings import bytes_of
from toolwire.core.errors import Failure, InternalError
from toolwire.gateway.body import is_utf8
from toolwire.gateway.connections import Connections, encode_refusal
from toolwire.gateway.http import DRAIN
from toolwire.gateway.http_request import CLOSE, STATUS_LINES, logger
from toolwire.gateway.memory_budget import Reservation

SMALL_READ, LARGE_READ = 2 * 1024, 64 * 1024
"""Bytes of one read: between frames, where a larger read could hold many tiny ones, and inside a long frame. uvloop
reads up to 32 times before other tasks run."""

PING_INTERVAL = 20.0
"""Seconds between two pings."""
PING_TIMEOUT = 20.0
"""Seconds to wait for the answer to a ping."""
CLOSE_TIMEOUT = 10.0
"""Seconds to wait for the answer to a close frame."""


class SocketConnection(asyncio.BufferedProtocol):
    """One WebSocket. An incomplete message is held in one piece, within the memory budget; a complete one is passed to
    the application and not kept."""

    def __init__(self, connections: Connections, transport: asyncio.Transport, scope: Scope) -> None:
        self.all = connections
        self.transport = transport
        self._scope = scope
        self._time = asyncio.get_running_loop().time
        self._limits = connections.limits
        self._protocol = ServerProtocol(max_size=bytes_of(connections.limits.max_body))
        self._response: Response | None = None  # to the handshake, until the application accepts or refuses it
        self._refusal = b""  # the head of the application's refusal
        self._events: asyncio.Queue[Message] = asyncio.Queue()  # for the application
        self._buffer = bytearray()
        self._is_open = False  # whether the handshake is over
        self._is_lost = False
        self._close_sent = 0.0  # when
        self._is_draining = False
        self._began = self._heard = self._pinged = self._time()
        self._ping = b""  # the data of the ping that is not answered
        self._pong = b""  # the answer for a client that does not read
        self._reservation = Reservation(connections.budget)  # of an incomplete message
        self._message = bytearray()  # its fragments
        self._is_text = False
        self._is_paused = False  # whether reading is paused
        self._blocked = 0.0  # since when the client has not read
        self._writable = asyncio.Event()
        self._writable.set()
        connections.open.add(self)

    def begin(self, handshake: bytes, data: bytes) -> None:
        """Read the handshake, and the data that follows it."""
        self._protocol.receive_data(handshake)
        [request] = self._protocol.events_received() or [None]
        if isinstance(request, Request):
            self._response = self._protocol.accept(request)
        if self._protocol.handshake_exc is not None:
            self._refuse_handshake()
            return
        self._events.put_nowait({"type": "websocket.connect"})
        self.all.start(self._run())
        if data:
            self._read(data)

    # The transport

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(LARGE_READ if len(self._protocol.reader.buffer) >= SMALL_READ else SMALL_READ)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._read(bytes(memoryview(self._buffer)[:nbytes]))

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.open.discard(self)
        self._is_lost = self._is_open = True
        self._reservation.release()
        self._writable.set()
        self._events.put_nowait({"type": "websocket.disconnect", "code": 1005})

    def pause_writing(self) -> None:
        self._writable.clear()
        self._blocked = self._time()

    def resume_writing(self) -> None:
        self._writable.set()
        self._blocked = 0.0
        pong, self._pong = self._pong, b""
        if pong:
            self.transport.write(pong)

    def _write(self) -> None:
        self.transport.write(b"".join(self._protocol.data_to_send()))

    # Frames of the client

    def _read(self, data: bytes) -> None:
        self._heard = self._time()
        if self._protocol.eof_sent:
            return  # so that the client can read why
        self._protocol.receive_data(data)
        if self._protocol.parser_exc is not None:
            self._end(self._protocol.close_code or 1006)
            return
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        if not self._reservation.try_resize(self._unfinished):
            self._fail(1013, "The memory budget is used up (server.max_in_flight); try again soon.")

    def _take(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY | Opcode.CONT:
                if frame.opcode is not Opcode.CONT:
                    self._is_text = frame.opcode is Opcode.TEXT
                data, frame.data = frame.data, b""  # the parser keeps its last frame until the next one
                if not frame.fin or self._message:
                    self._message += data
                if frame.fin:
                    message, self._message = self._message, bytearray()
                    self._pass_on(bytes(message or data))
            case Opcode.PING:
                # A client that does not read gets the latest answer only (RFC 6455, section 5.5.3).
                self._pong = b"".join(self._protocol.data_to_send()) or self._pong  # to all pings of a read
                if self._writable.is_set():
                    self.resume_writing()
            case Opcode.PONG:
                if bytes(frame.data) == self._ping:
                    self._ping = b""
            case Opcode.CLOSE:
                self._end(self._protocol.close_code or 1005)

    def _pass_on(self, message: bytes) -> None:
        """Pass a message to the application, and read no further until it is taken."""
        if self._close_sent:
            return
        if self._is_text and not is_utf8(message):
            self._fail(1007, "A text message is not UTF-8.")
            return
        self._events.put_nowait({"type": "websocket.receive", "bytes": message})
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    @property
    def _unfinished(self) -> int:
        """Bytes of an incomplete message."""
        return len(self._message) + len(self._protocol.reader.buffer)

    # The application

    async def _run(self) -> None:
        try:
            await self.all.app(self._scope, self._receive, self._send)
        except ConnectionResetError:
            pass
        except Exception:  # noqa: BLE001 - the process must survive any error
            logger.exception("A WebSocket was not served")
        if not self._is_open:
            self.transport.write(encode_refusal(InternalError().failure, ""))
        if not self._close_sent or not self._is_open:
            self.transport.close()

    async def _receive(self) -> Message:
        event = await self._events.get()
        if self._is_paused and self._events.empty():
            self._resume_reading()
        return event

    def _resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    async def _send(self, message: Message) -> None:
        """Send a part of the answer to the handshake, a message, or the end. Raises `ConnectionResetError`."""
        await self._writable.wait()
        if self._is_lost or self._close_sent:
            raise ConnectionResetError
        match message["type"]:
            case "websocket.accept" if self._response is not None:
                self._is_open = True
                self._protocol.send_response(self._response)
                self._pinged = self._time()
            case "websocket.http.response.start" if not self._is_open:
                lines = (b"%b: %b\r\n" % header for header in message["headers"])
                self._refusal = STATUS_LINES[message["status"]] + self.all.date + b"".join(lines) + CLOSE + b"\r\n"
                return
            case "websocket.http.response.body" if self._refusal:
                self._is_open = True
                self.transport.write(self._refusal + message["body"])
                self.transport.close()
                return
            case "websocket.send" if self._is_open:
                text = message.get("text")
                self._protocol.send_text(text.encode()) if text is not None else self._protocol.send_binary(
                    message["bytes"]
                )
            case "websocket.close" if self._is_open:
                self._protocol.send_close(message.get("code", 1000), message.get("reason", ""))
                self._close_sent = self._time()
                self._events.put_nowait({"type": "websocket.disconnect", "code": message.get("code", 1000)})
                self._resume_reading()
            case kind:
                raise RuntimeError(f"{kind} cannot be sent now")
        self._write()

    # The end

    def shutdown(self) -> None:
        """Tell the application to close after its turn. During the handshake `check` tries again later."""
        if self._is_open and not self._close_sent and not self._is_draining:
            self._is_draining = True
            self._events.put_nowait({"type": DRAIN})

    def check(self, now: float) -> None:
        """End the connection if the client stops inside a message, or does not read or answer."""
        if self.all.draining:
            self.shutdown()
        if self.transport.is_closing():
            self._blocked = self._blocked or now
        elif not self._is_open and now - self._began > self._limits.header_timeout:
            self._refuse_handshake()
        if self._blocked and now - self._blocked > self._limits.write_timeout:
            self.transport.abort()
        elif self._close_sent:
            if now - self._close_sent > CLOSE_TIMEOUT:
                self.transport.close()
        elif self._is_paused:
            self._heard = self._pinged = now
        elif self._protocol.current_size is None and not self._unfinished:
            self._heard = now
            if self._is_open:
                self._check_ping(now)
        elif now - self._heard > self._limits.body_timeout:
            self._fail(1008, "The message was not finished in time.")

    def _check_ping(self, now: float) -> None:
        if self._ping and now - self._pinged > PING_TIMEOUT:
            self._fail(1011, "A ping was not answered in time.")
        elif not self._ping and now - self._pinged > PING_INTERVAL:
            self._pinged, self._ping = now, b"%f" % now
            self._protocol.send_ping(self._ping)
            self._write()

    def _refuse_handshake(self) -> None:
        """Answer a failed upgrade: its headers are invalid, or the application does not answer in time."""
        cause = self._protocol.handshake_exc
        if cause is None:
            message = f"The WebSocket handshake took more than {self._limits.header_timeout:g} seconds."
            failure = Failure(408, "request_timeout", message)
        elif isinstance(cause.__cause__, SecurityError):
            failure = Failure(431, "headers_too_large", "The handshake has too many headers, or too long ones.")
        else:
            failure = Failure(400, "invalid_request", "The request is not a valid WebSocket handshake.")
        self._is_open, self._close_sent = True, self._time()
        self.transport.write(encode_refusal(failure, ""))
        self.transport.close()

    def _fail(self, code: int, reason: str) -> None:
        self._protocol.fail(code, reason)
        self._end(code)

    def _end(self, code: int) -> None:
        """End the connection with the frames that the protocol has to send. What the client still sends is discarded
        for a while: a socket that is closed before is reset, and the client loses the close frame."""
        self._message.clear()
        self._reservation.release()
        self._events.put_nowait({"type": "websocket.disconnect", "code": code})
        self._write()
        self._close_sent = self._close_sent or self._time()
        if self._protocol.close_rcvd is not None:
            self.transport.close()
        else:
            self._resume_reading()
            self.transport.write_eof()
