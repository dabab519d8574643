"""One HTTP request and its answer on a connection, as an ASGI application sees them.

The head of an answer waits for the beginning of the body, because one write saves a system call.
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Scope, Send

from toolwire.core.errors import InternalError
from toolwire.gateway.http import send_json
from toolwire.protocols import find_dialect

if TYPE_CHECKING:
    from toolwire.gateway.connections import HttpConnection

MAX_UNREAD = 64 * 1024
"""Bytes of a body that may wait for the application before reading pauses."""

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"")) for status in range(100, 600)}
WITHOUT_BODY = (204, 304)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE = b"connection: close\r\n"
UNSAFE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Bytes that a header of an answer must not contain (RFC 9110, section 5.5)."""

logger = logging.getLogger("toolwire")


class HttpRequest:
    """One request, the client's side of which is a connection."""

    def __init__(self, connection: "HttpConnection", scope: Scope, *, keep_alive: bool) -> None:
        self._connection = connection
        self._scope = scope
        self.keep_alive = keep_alive
        """Whether the connection stays open after the answer."""
        self.has_begun = False
        """Whether the answer has begun."""
        self.is_complete = False
        """Whether the answer is complete."""
        self._is_gone = False  # the client
        self._is_http_1_1 = scope["http_version"] == "1.1"
        self._expects_continue = self._is_http_1_1 and (b"expect", b"100-continue") in scope["headers"]
        self._body: list[bytes] = []
        self._unread = 0  # bytes of it
        self._is_body_whole = False
        self._news = asyncio.Event()  # for `receive`
        self._head = b""  # written together with the beginning of the body
        self._is_chunked = False
        self._left: int | None = 0  # bytes of the answer that are to come; None if its end is that of the connection

    # What the connection reads

    def take_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self.is_complete:
            return
        self._body.append(body)
        self._unread += len(body)
        if self._unread > MAX_UNREAD:
            self._connection.pause_reading()
        self._news.set()

    def end_body(self) -> None:
        self._is_body_whole = True
        self._news.set()

    def lose_client(self) -> None:
        """The client is gone; what the application sends is discarded."""
        if not self.is_complete:
            self._is_gone = True
        self._news.set()

    # The application

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("A request was not answered")
        if self.is_complete or self._is_gone:
            return
        if self.has_begun:
            self._connection.transport.close()  # the client sees that the answer is cut
        else:
            self.keep_alive = False
            await send_json(
                self.send, 500, find_dialect(self._scope["path"]).module.encode_error(InternalError().failure)
            )

    async def receive(self) -> Message:
        """The next part of the body, or the client's departure."""
        if self._expects_continue and not self._connection.is_closing():
            self._expects_continue = False
            self._connection.transport.write(CONTINUE)
        if not self._is_gone and not self.is_complete:
            self._connection.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._is_gone or self.is_complete:
            return {"type": "http.disconnect"}
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._unread = [], 0
        return {"type": "http.request", "body": body, "more_body": not self._is_body_whole}

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        connection = self._connection
        if not connection.writable.is_set() and not self._is_gone:
            await connection.writable.wait()
        if self._is_gone:
            return
        if not self.has_begun:
            self._begin(message["status"], message.get("headers", ()))
            return
        self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what is sent."""
        return self.has_begun and self._connection.writable.is_set() and not self._is_gone

    def write(self, body: bytes) -> None:
        """Send a part of the answer, but not the last, without waiting for the client to have read the one before."""
        self._write(body, is_last=False)

    def _write(self, body: bytes, *, is_last: bool) -> None:
        connection = self._connection
        if self._scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            body = _encode_chunk(body, is_last=is_last)
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (is_last and self._left):
                raise RuntimeError("the body does not have the length that its head announced")
        if body or (is_last and self._head):
            head, self._head = self._head, b""
            connection.transport.write(head + body if head else body)
        if is_last:
            self.is_complete = True
            self._news.set()
            connection.end_answer(keep_alive=self.keep_alive)

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Prepare the head, which waits for the beginning of the body: one write saves a system call."""
        if self._expects_continue and not self._is_body_whole:  # the client may send the body or leave it out
            self.keep_alive = False
        self._expects_continue = False
        lines: list[bytes] = []
        has_length = status in WITHOUT_BODY
        for name, value in headers:
            match name.lower():
                case b"content-length":
                    has_length, self._left = True, int(value)
                case b"connection":
                    self.keep_alive = self.keep_alive and b"close" not in value.lower()
                    continue
                case _:
                    pass
            lines.append(b"%b: %b" % (name, value))
        if UNSAFE.search(b"".join(lines)):
            raise RuntimeError("a header has control characters")
        if not has_length and self._scope["method"] != "HEAD":
            if self._is_http_1_1:
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked")
            else:
                self._left = None  # the end of the connection ends the body
            self._connection.loop.call_soon(self._send_head)  # a stream may have nothing to show yet
        ending = b"\r\n\r\n" if self.keep_alive else b"\r\n" + CLOSE + b"\r\n"
        self._head = STATUS_LINES[status] + self._connection.all.date + b"\r\n".join(lines) + ending
        self.has_begun = True

    def _send_head(self) -> None:
        if self._head and not self._is_gone:
            self._connection.transport.write(self._head)
            self._head = b""


def find_request(send: Send) -> HttpRequest | None:
    """The request that `send` answers; None if it is that of another server, or if something wraps it."""
    owner = getattr(send, "__self__", None)
    return owner if isinstance(owner, HttpRequest) else None


def _encode_chunk(body: bytes, *, is_last: bool) -> bytes:
    """A part of a body in chunked transfer coding."""
    if not body:
        return b"0\r\n\r\n" if is_last else b""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_last else b"%x\r\n%b\r\n" % (len(body), body)
