"""HTTP/1.1 connections to servers over httptools: one request at a time on each, and a pool by server.

A connection parses what it receives into the buffer of one reply, whose reader takes all bytes that have arrived.

    IDLE → a request is written → the head of its reply → its body → IDLE …        anything → closed

Reading pauses while a buffer is full. A connection is used again only if its reply was whole and nothing followed it.
"""

import asyncio
import socket
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, cast

import httptools
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType] - partly typed

from toolwire.upstream.reply import Take

BUFFER_SIZE = 64 * 1024
"""Reading resumes when a buffer holds fewer bytes."""
MAX_READ = 2 * BUFFER_SIZE
"""Maximum bytes of one read. Reading pauses when a buffer holds more."""
MAX_PIECES = 4096
"""Reading pauses when a buffer has more pieces than this: servers may send chunks of one byte."""
MAX_TAKEN = 4 * 1024
"""Maximum bytes that are passed on when they arrive. More of them, or several pieces, are a burst for the reader."""
MAX_HEAD_BYTES = 64 * 1024
"""Maximum bytes before the body of a reply, informational responses included."""
WRITTEN_AT_ONCE = 256 * 1024
"""Bytes of a request that are written before other tasks run."""
KEEP_ALIVE = 60.0
"""Seconds for which an idle connection is kept."""
NEXT_ADDRESS_DELAY = 0.25
"""Seconds after which the next address of a server is tried beside the one before (RFC 8305)."""
NO_BODY = (204, 304)
_INFLATE = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class Disconnected(Exception):
    """The connection broke, or the server does not speak HTTP."""


class ConnectFailed(Exception):
    """There is no connection."""

    def __init__(self, os_error: OSError) -> None:
        super().__init__(str(os_error))
        self.os_error = os_error


class ConnectTimeout(Exception):
    """There was no connection in time."""


class Address(NamedTuple):
    """A server."""

    host: str
    port: int
    is_tls: bool


class WireReply:
    """One reply: its head, and the buffer of its body."""

    def __init__(self, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self.head: asyncio.Future[None] = loop.create_future()
        """Done when the head has arrived."""
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._buffer: deque[bytes] = deque()
        self._size = 0
        self._has_ended = False  # whether the last byte has been received
        self._error: Disconnected | None = None
        self._waiter: asyncio.Future[bool] | None = None  # of `read`; its result is whether `_take` has stopped it
        self._take: Take | None = None
        self._encoding = ""
        self._inflating: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage] - a type of the stubs
        self._is_paused = False

    # What the connection receives

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head has arrived."""
        self.status, self.headers = status, headers
        self._encoding = headers.get("content-encoding", "").strip().lower()
        if not self.head.done():
            self.head.set_result(None)

    def take(self, data: bytes) -> None:
        """A part of the body has arrived."""
        self._buffer.append(data)
        self._size += len(data)
        if not self._is_paused and (self._size > MAX_READ or len(self._buffer) > MAX_PIECES):
            self._is_paused = True
            self._connection.transport.pause_reading()

    def pass_on(self) -> None:
        """Pass what has arrived on to the reader, if it waits."""
        waiter, buffer = self._waiter, self._buffer
        if waiter is None or waiter.done() or not buffer:
            return
        if self._take is None or len(buffer) > 1 or self._size > MAX_TAKEN or self._encoding:
            waiter.set_result(False)
            return
        self._size = 0
        if not self._take(buffer.pop()):
            waiter.set_result(True)

    def end(self, error: Disconnected | None = None) -> None:
        """The body is complete, or an error ends it."""
        if self._has_ended:
            return
        self._has_ended, self._error = True, error
        if self._is_paused:  # an idle connection is read, to see when the server closes it
            self._is_paused = False
            self._connection.resume_reading()
        if error is not None and not self.head.done():
            self.head.set_exception(error)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    # What its reader does

    def read_nowait(self) -> bytes:
        """The bytes that have arrived; empty if none have. Raises `Disconnected` after the last of them."""
        while (rest := self._inflating.unconsumed_tail if self._inflating is not None else b"") or self._buffer:
            data = rest or self._drain()
            if self._encoding in _INFLATE:
                data = self._inflate(data)
            if data:
                return data
        if self._has_ended and self._error is None and self._inflating is not None and not self._inflating.eof:
            self._error = Disconnected("the compressed body was cut")
        if self._error is not None:
            raise self._error
        return b""

    async def read(self, take: Take | None = None) -> bytes | None:
        """The next bytes; empty at the end. Raises `Disconnected`.

        Bytes that arrive one piece at a time during the wait are given to `take`; None once it has returned False.
        """
        self._take = take
        while not (data := self.read_nowait()) and not self._has_ended:
            self._waiter = self._loop.create_future()
            if await self._waiter:
                return None
        return data

    def is_whole(self) -> bool:
        """Whether the body is complete and read."""
        is_rest_read = self._inflating is None or (self._inflating.eof and not self._inflating.unconsumed_tail)
        return self._has_ended and self._error is None and not self._buffer and is_rest_read

    def close(self) -> None:
        """Close the connection of an incomplete reply, which stops the model."""
        if not self._has_ended:
            self._connection.abort()

    def _drain(self) -> bytes:
        """Up to `MAX_READ` bytes of the buffer."""
        buffer = self._buffer
        if self._size <= MAX_READ:
            data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
            buffer.clear()
        else:
            pieces, left = list[bytes](), MAX_READ
            while buffer and left:
                piece = buffer.popleft()
                if len(piece) > left:
                    buffer.appendleft(piece[left:])
                    piece = piece[:left]
                pieces.append(piece)
                left -= len(piece)
            data = b"".join(pieces)
        self._size -= len(data)
        if self._is_paused and self._size < BUFFER_SIZE:
            self._is_paused = False
            self._connection.resume_reading()
        return data

    def _inflate(self, data: bytes) -> bytes:
        """Up to `MAX_READ` bytes of a compressed body."""
        if self._inflating is None:  # although no encoding was asked for
            self._inflating = zlib.decompressobj(_INFLATE[self._encoding])
        try:
            return self._inflating.decompress(data, MAX_READ)
        except zlib.error:
            self.close()
            raise Disconnected("the compressed body is invalid") from None


class Connection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, pool: "Pool", address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self.address = address
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)  # until there is a connection
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_headers=True)  # control characters in values are replaced later
        self._reply: WireReply | None = None
        self._headers: dict[str, str] = {}
        self._head_size = 0
        self._is_interim = False  # whether the response being read is informational
        self._in_body = False
        self._has_end = False  # whether the body says where it ends; otherwise the connection's end ends it
        self._is_reusable = True
        self._writable = asyncio.Event()
        self._writable.set()

    async def ask(self, head: bytes, body: bytes) -> WireReply:
        """Write a request; returns when the head of the reply has arrived. Raises `Disconnected`."""
        self._reply = reply = WireReply(self, self._loop)
        self._head_size, self._in_body, self._is_interim = 0, False, False
        try:
            if len(body) <= WRITTEN_AT_ONCE:
                self.transport.write(head + body)
            else:
                await self._write(head, body)
            del body  # the reply may take minutes
            await reply.head
        except BaseException:
            reply.head.cancel()
            if self._reply is reply:  # otherwise another request may be using the connection
                self.abort()
            raise
        return reply

    async def _write(self, head: bytes, body: bytes) -> None:
        """Write a large body in pieces, so that other tasks can run."""
        self._is_reusable = False  # if the server answers without having read everything
        self.transport.write(head)
        for start in range(0, len(body), WRITTEN_AT_ONCE):
            if self._reply is None or self._reply.head.done() or self.transport.is_closing():
                return
            self.transport.write(body[start : start + WRITTEN_AT_ONCE])
            await asyncio.sleep(0)
            await self._writable.wait()
        self._is_reusable = self._reply is not None and not self._reply.head.done()

    @property
    def is_usable(self) -> bool:
        """Whether another request may be written."""
        return self._is_reusable and not self.transport.is_closing()

    def resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once."""
        self._is_reusable = False
        self.transport.abort()

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._pool.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_reusable = False
        self._pool.open.discard(self)
        self._writable.set()
        reply, self._reply = self._reply, None
        if reply is not None:
            is_whole = self._in_body and not self._has_end and exc is None
            reply.end(None if is_whole else Disconnected("the server closed the connection"))
        self._parser = cast("httptools.HttpResponseParser", None)  # it holds a reference to this object

    def eof_received(self) -> None:
        pass

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:  # bytes that belong to no request
            self.abort()
            return
        self._head_size += 0 if self._in_body else len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the server does not speak HTTP")
            return
        if self._reply is not None:
            if self._in_body:
                self._reply.pass_on()
            elif self._head_size > MAX_HEAD_BYTES:
                self._fail("the head of the reply is too large")
        elif self.is_usable:  # the reply is complete
            self._pool.release(self)
        else:
            self.transport.close()

    def _fail(self, reason: str) -> None:
        reply, self._reply = self._reply, None
        self.abort()
        if reply is not None:
            reply.end(Disconnected(reason))

    # The parser

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._reply is None:  # a response that was not asked for
            self._is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # trailers are discarded
            return
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_interim = 100 <= status < 200
        if self._is_interim or self._reply is None:
            return
        headers = self._headers
        self._in_body = True
        is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._has_end = status in NO_BODY or is_chunked or "content-length" in headers
        self._is_reusable = self._is_reusable and self._parser.should_keep_alive()
        self._reply.begin(status, headers)

    def on_body(self, body: bytes) -> None:
        if self._reply is not None:
            self._reply.take(body)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is None or self._is_interim:
            return
        self._reply = None
        reply.end()


class Pool:
    """All connections, and those among them that wait for a request."""

    def __init__(self, connect_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self.open: set[Connection] = set()
        """All connections."""
        self._idle: dict[Address, list[Connection]] = {}
        self._tls: ssl.SSLContext | None = None
        self._expiring: asyncio.TimerHandle | None = None

    async def acquire(self, address: Address) -> Connection:
        """A connection that waits for a request, or a new one. Raises `ConnectFailed` or `ConnectTimeout`."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._connect(address, loop)
        except TimeoutError as error:
            raise ConnectTimeout from error
        except OSError as error:
            raise ConnectFailed(error) from error

    async def _connect(self, address: Address, loop: asyncio.AbstractEventLoop) -> Connection:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        sock = await start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_DELAY, interleave=1, loop=loop)
        try:
            if address.is_tls and self._tls is None:
                self._tls = ssl.create_default_context()
                self._tls.set_alpn_protocols(("http/1.1",))
            _, connection = await loop.create_connection(
                lambda: Connection(self, address, loop),
                sock=sock,
                ssl=self._tls if address.is_tls else None,
                server_hostname=address.host.rstrip(".") if address.is_tls else None,
            )
        except BaseException:
            sock.close()
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """Keep a connection for another request."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(connection.address, []).append(connection)
        if self._expiring is None:
            self._expiring = loop.call_later(KEEP_ALIVE, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections that have been idle for too long."""
        self._expiring = None
        limit = loop.time() - KEEP_ALIVE
        kept: dict[Address, list[Connection]] = {}
        for address, idle in self._idle.items():
            for connection in idle:
                if connection.is_usable and connection.idle_since > limit:
                    kept.setdefault(address, []).append(connection)
                else:
                    connection.transport.close()
        self._idle = kept
        if kept:
            self._expiring = loop.call_later(KEEP_ALIVE, self._expire, loop)

    async def close(self) -> None:
        """Close all connections."""
        if self._expiring is not None:
            self._expiring.cancel()
        for connection in tuple(self.open):
            connection.abort()
        await asyncio.sleep(0)  # the event loop closes them
