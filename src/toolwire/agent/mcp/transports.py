"""Transports of the `mcp` package: a process with pipes, or streamable HTTP.

A transport here also reports when it has ended, which the package does only while a request is pending.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream
from anyio.streams.text import TextReceiveStream
from mcp import StdioServerParameters, stdio_client
from mcp.client import stdio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from toolwire.agent.mcp.settings import Server
from toolwire.core.terminal import clean

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream

LAST_BYTES = 2048
LAST_LINES = 10
STDERR_SECONDS = 0.3
"""Seconds to wait for the rest of standard error after the process has ended."""
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Bytes of one message. The package has no limit for lines and plain answers, and its limit of 1 MiB for events is less
than an image may take."""
TOO_LARGE = f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes"


class StderrTail(asyncio.Protocol):
    """The end of the standard error of a process, which is not shown in our terminal."""

    def __init__(self) -> None:
        self._kept = b""
        self._transport: asyncio.ReadTransport | None = None
        self._ended = asyncio.Event()

    @property
    def text(self) -> str:
        """The last lines, without control characters."""
        lines = clean(self._kept.decode("utf-8", "replace")).strip().splitlines()
        return "\n".join(lines[-LAST_LINES:])

    async def open(self) -> TextIO:
        """Open the pipe and return its writing end."""
        reading, writing = os.pipe()
        errors = os.fdopen(writing, "w")
        source = os.fdopen(reading, "rb", 0)
        try:
            self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, source)
        except BaseException:
            errors.close()
            source.close()
            raise
        self._ended.clear()  # of an attempt before
        return errors

    async def close(self) -> None:
        """Read the rest for a short time: a descendant may keep the pipe open."""
        with anyio.move_on_after(STDERR_SECONDS, shield=True):
            await self._ended.wait()
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Keep the last bytes."""
        self._kept = (self._kept + data)[-LAST_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """The pipe is closed."""
        self._ended.set()


class Health:
    """The state of a connection beside its messages."""

    def __init__(self, over: Callable[[], None], fail: Callable[[str], None]) -> None:
        self.over = over
        self.fail = fail
        self.tail = StderrTail()
        self.refusal = ""
        """The last HTTP status that was an error."""
        self.session_is_gone = False

    async def check_response(self, response: httpx2.Response) -> None:
        """Bound the body of a plain answer, and note an HTTP error and a lost session."""
        if "event-stream" not in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = BoundedBody(response.stream)
        if response.status_code < 400 or response.request.method != "POST":
            return
        self.refusal = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        if response.status_code == 404 and "mcp-session-id" in response.request.headers:
            self.session_is_gone = True


class BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer, up to the limit."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body in pieces."""
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(TOO_LARGE)
            yield piece

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


_health: ContextVar["Health"] = ContextVar("_health")
"""The connection whose process is started."""


class BoundedLines(TextReceiveStream):
    """The standard output of a process in whole lines, each up to the limit.

    The package joins a line with each further piece of it, which takes minutes for a line of 200 MB.
    """

    async def receive(self) -> str:
        """The next lines, with the beginning of another."""
        pieces: list[str] = []
        size = 0
        while True:
            try:
                piece = await super().receive()
            except anyio.EndOfStream:
                if pieces:
                    return "".join(pieces)
                raise
            pieces.append(piece)
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                if (health := _health.get(None)) is not None:  # else it is a process that the user's program started
                    health.fail(TOO_LARGE)
                raise anyio.BrokenResourceError
            if "\n" in piece:
                return "".join(pieces)


# The package names it there, and has no other place for a limit.
stdio.TextReceiveStream = BoundedLines  # pyright: ignore[reportPrivateImportUsage]


class WatchedStream(ObjectReceiveStream[SessionMessage | Exception]):
    """A message stream that reports its end."""

    def __init__(self, stream: "ReadStream[SessionMessage | Exception]", over: Callable[[], None]) -> None:
        self._stream = stream
        self._over = over

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            self._over()
            raise

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


def transport(server: Server, health: Health) -> AbstractAsyncContextManager[Any]:
    """The transport to a server, as a context manager."""
    return _http(server, health) if server.url else _stdio(server, health)


@asynccontextmanager
async def _stdio(server: Server, health: Health) -> AsyncGenerator[tuple[WatchedStream, Any]]:
    parameters = StdioServerParameters(
        command=server.command,
        args=list(server.args),
        env=server.env,
        cwd=server.cwd or None,
        encoding_error_handler="replace",  # one invalid byte must not end the connection
    )
    errors = await health.tail.open()
    _health.set(health)
    try:
        async with stdio_client(parameters, errors) as (reading, writing):
            errors.close()  # the process has its own
            yield WatchedStream(reading, health.over), writing
    finally:
        with suppress(OSError):
            errors.close()
        await health.tail.close()


@asynccontextmanager
async def _http(server: Server, health: Health) -> AsyncGenerator[tuple[WatchedStream, Any]]:
    # A stream of events may be silent for long; every call has a deadline of its own.
    timeout = httpx2.Timeout(server.start_timeout, read=None)
    async with (
        httpx2.AsyncClient(
            headers=server.headers, timeout=timeout, event_hooks={"response": [health.check_response]}
        ) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as (
            reading,
            writing,
        ),
    ):
        yield WatchedStream(reading, health.over), writing
