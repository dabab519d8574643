"""The gateway's HTTP server: connections over httptools, with limits that hold before a client is authenticated.

The number of connections is limited, and so is each wait for a request, its headers, its body, and for a client to
read. A connection lingers before it closes: a socket that is closed while its peer still sends is reset, and the peer
loses the answer. So input is read and discarded for a while.

    WAITING → HEADERS → BODY → READ → WAITING …        anything → CLOSING
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from email.utils import formatdate
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send

from toolwire.config.settings import Server, bytes_of
from toolwire.core.errors import Failure
from toolwire.gateway.http import HEALTH_PATHS, send_json
from toolwire.gateway.http_request import CLOSE, STATUS_LINES, HttpRequest
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.protocols import find_dialect

if TYPE_CHECKING:
    from toolwire.gateway.websocket import SocketConnection

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

DRAIN_IDLE = 1.0
"""Seconds that a connection may wait for a request while the gateway drains."""


class Connections:
    """All connections, their limits, and the application that answers them."""

    def __init__(self, app: ASGIApp, server: Server, budget: MemoryBudget) -> None:
        self.app = app
        self.limits = server
        self.budget = budget
        self.open: set[HttpConnection | SocketConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """The requests that are being answered."""
        self.draining = False
        """Whether connections close after their next answer."""
        self.idle = server.idle_timeout
        """Seconds that a connection may wait for the next request."""
        self.reserve: dict[HttpConnection, None] = {}
        """Connections beyond the limit, the oldest first."""
        self.date = b""
        """The header of answers with the time of the last check."""

    def drain(self, *, is_replaced: bool) -> None:
        """Answer current requests, then close. An idle connection may still send a request, because its client does not
        know of the drain; without a process that replaces this one, it must do so soon."""
        self.draining = True
        if not is_replaced:
            self.idle = min(self.idle, DRAIN_IDLE)
        for connection in tuple(self.open):
            connection.shutdown()

    def check(self, now: float) -> None:
        """End connections that exceed a time limit."""
        self.date = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        for connection in tuple(self.open):
            connection.check(now)

    def start(self, answering: Coroutine[Any, Any, None]) -> None:
        """Answer a request in a task."""
        task = asyncio.get_running_loop().create_task(answering)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    @property
    def are_too_many(self) -> bool:
        return len(self.open) > self.limits.max_connections

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

    def limit_to_health(self, app: ASGIApp) -> ASGIApp:
        """The application for a connection in the reserve."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] in HEALTH_PATHS:
                await app(scope, receive, send)
            else:
                failure = self.overflow
                await send_json(send, failure.status, find_dialect(scope["path"]).module.encode_error(failure))

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


class HttpConnection(asyncio.Protocol):
    """One HTTP connection. An upgrade turns it into a WebSocket (`websocket.py`)."""

    def __init__(self, connections: Connections) -> None:
        self.all = connections
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)  # until there is a connection
        self._app = connections.app
        self._parser = self._make_parser()
        self._requests: deque[HttpRequest] = deque()  # the one that is being answered, and those that wait
        self._last: HttpRequest | None = None  # the one whose body is being read, or was
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._scope: Scope = {}  # of the latest request
        self._phase = Phase.HEADERS
        self._since = self._heard = self.loop.time()
        self._overhead = 0
        self._drained = 0  # bytes that came after the answer
        self._blocked = 0.0  # since when the client has not read
        self._is_paused = False  # whether reading is paused
        self.writable = asyncio.Event()
        self.writable.set()

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        addresses = map(transport.get_extra_info, ("sockname", "peername"))
        self._server, self._client = (address and address[:2] for address in addresses)  # IPv6 has four parts
        self.all.open.add(self)
        if self.all.are_too_many:
            self._app = self.all.limit_to_health(self._app)
            self.all.enter_reserve(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.reserve.pop(self, None)
        self.all.open.discard(self)
        for request in self._requests:
            request.lose_client()
        self.writable.set()
        self._parser = cast("httptools.HttpRequestParser", None)  # it holds a reference to this object

    def eof_received(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        self._drained += len(data)
        if self._phase is Phase.CLOSING:
            return
        if self._phase is Phase.WAITING:
            self._enter(Phase.HEADERS)
        self._overhead += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(Failure(400, "invalid_request", "Invalid HTTP request received."))
            return
        if self._overhead > MAX_OVERHEAD:
            where = "headers" if self._phase is Phase.HEADERS else "trailers"
            self._refuse(Failure(431, "headers_too_large", f"More than {MAX_OVERHEAD} bytes of {where}."))

    def _make_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # a refused client may send on
        return parser

    def _parse(self, data: bytes) -> None:
        while not self.transport.is_closing():
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            else:
                return
            headers = self._headers
            if self.all.limits.websocket and (b"upgrade", b"websocket") in headers:
                self._open_socket(self._encode_head(headers), data)
                return
            if self._scope["method"] == "CONNECT":
                self._refuse(Failure(405, "method_not_allowed", "This is not a proxy."))
                return
            # Any other upgrade is ignored: the request is read again without it, because the parser skips its body.
            connection = (b"connection", b"keep-alive" if self._parser.should_keep_alive() else b"close")
            data = self._encode_head([connection, *(each for each in headers if each[0] != b"connection")]) + data
            self._parser = self._make_parser()

    def _encode_head(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The head of the latest request, with these headers."""
        method, version = self._scope["method"].encode(), self._scope["http_version"].encode()
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version, lines)

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.writable.clear()
        self._blocked = self.loop.time()

    def resume_writing(self) -> None:
        self.writable.set()
        self._blocked = 0.0

    # The parser

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        if self._phase is not Phase.HEADERS:
            self._enter(Phase.HEADERS)  # behind a request that is still being answered

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is Phase.HEADERS:  # trailers are discarded
            name = name.lower()
            self._headers.append((name, value.lower() if name in (b"expect", b"upgrade") else value))

    def on_headers_complete(self) -> None:
        parser, version = self._parser, self._parser.get_http_version()
        self._phase, self._since, self._overhead = Phase.BODY, self._heard, 0
        path, query = self._url, b""
        if path.startswith(b"/") and b"#" not in path:
            path, _, query = path.partition(b"?")
        else:
            parsed = httptools.parse_url(path)
            path, query = parsed.path or b"/", parsed.query or b""
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": self._headers,
        }
        if parser.should_upgrade():
            return  # to `_parse`
        is_last = version != "1.1" or self.all.draining or self in self.all.reserve
        request = HttpRequest(self, self._scope, keep_alive=parser.should_keep_alive() and not is_last)
        self._last = request
        self._requests.append(request)
        if len(self._requests) == 1:
            self.all.start(request.run(self._app))
            return
        self.pause_reading()
        if len(self._requests) > MAX_PIPELINED + 1:
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        if self._last is not None:
            self._last.take_body(body)

    def on_message_complete(self) -> None:
        self._phase, self._since, self._overhead = Phase.READ, self._heard, 0
        if self._last is not None and not self._parser.should_upgrade():
            self._last.end_body()
            if self._last.is_complete:
                self._phase = Phase.WAITING

    def _open_socket(self, handshake: bytes, data: bytes) -> None:
        """Turn the connection into a WebSocket; `data` follows the handshake."""
        if self in self.all.reserve:
            self._refuse(self.all.overflow)
        elif self._scope["method"] != "GET":
            self._refuse(Failure(405, "method_not_allowed", "A WebSocket handshake must use GET."), b"allow: GET\r\n")
        elif self._requests:
            self._refuse(Failure(400, "invalid_request", "A WebSocket handshake must wait for the answers before it."))
        else:
            from toolwire.gateway.websocket import SocketConnection  # noqa: PLC0415 - most clients open none

            self.all.open.discard(self)
            self._parser = cast("httptools.HttpRequestParser", None)  # it holds a reference to this object
            self.transport.pause_reading()
            socket = SocketConnection(self.all, self.transport, {**self._scope, "type": "websocket", "scheme": "ws"})
            self.transport.set_protocol(socket)
            self.transport.resume_reading()
            socket.begin(handshake, data)

    # Answers

    def end_answer(self, *, keep_alive: bool) -> None:
        """Close the connection, answer the next pipelined request, or wait for one."""
        self._requests.popleft()
        if not keep_alive:
            self.close()
        self._since, self._drained = self.loop.time(), 0
        if self._phase is Phase.READ and not self._requests:
            self._phase, self._overhead = Phase.WAITING, 0
        if not self.transport.is_closing():
            self.resume_reading()
            if self._requests and keep_alive:
                self.all.start(self._requests[0].run(self._app))

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return bool(self._requests)

    def is_closing(self) -> bool:
        return self._phase is Phase.CLOSING or self.transport.is_closing()

    def close(self) -> None:
        """Close, and if the client may still be sending, let it receive the answer first."""
        if self.is_closing():
            return
        if self._phase not in (Phase.HEADERS, Phase.BODY):
            self.transport.close()
            return
        self._enter(Phase.CLOSING)
        self._heard, self._drained = self._since, 0
        self.resume_reading()
        self.transport.write_eof()

    def shutdown(self) -> None:
        """Close after the answer to the current or the next request; `check` closes idle connections."""
        if self._phase is Phase.CLOSING:
            self.transport.close()
        elif self._requests:
            self._requests[-1].keep_alive = False

    def turn_away(self) -> None:
        """Close a connection beyond the limit at once."""
        self.all.reserve.pop(self, None)
        self._refuse(self.all.overflow)
        self.transport.close()

    def check(self, now: float) -> None:
        """End the connection if the client takes too long."""
        limits = self.all.limits
        if self.transport.is_closing():
            self._blocked = self._blocked or now  # open until the client has read everything
        if self._blocked and now - self._blocked > limits.write_timeout:
            self.transport.abort()
            return
        match self._phase:
            case Phase.WAITING if now - self._since > self.all.idle:
                self.transport.close()
            case Phase.HEADERS if self.all.draining and not self._overhead and now - self._since > self.all.idle:
                self.transport.close()
            case Phase.HEADERS if now - self._since > limits.header_timeout and not self.is_answering:
                if self._overhead:
                    message = f"The headers were not complete within {limits.header_timeout:g} seconds."
                    self._refuse(Failure(408, "request_timeout", message))
                else:
                    self.transport.close()
            case Phase.BODY if self._is_paused:
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
        """Whether the request that is being read has its answer."""
        return self._last is not None and self._last.is_complete

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
        has_begun = bool(self._requests) and self._requests[0].has_begun
        is_alone = len(self._requests) <= 1
        for request in self._requests:
            request.lose_client()
        if has_begun or not is_alone:  # a refusal would be read as part of an answer
            self.transport.close()
            return
        self.transport.write(encode_refusal(failure, self._url.decode("latin-1"), headers))
        self.close()


def encode_refusal(failure: Failure, path: str, headers: bytes = b"") -> bytes:
    """The whole HTTP answer to data that is not a valid request."""
    body = find_dialect(path).module.encode_error(failure)
    head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    return STATUS_LINES[failure.status] + head + CLOSE + headers + b"\r\n" + body
