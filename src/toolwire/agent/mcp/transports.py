"""Transports to MCP servers: a process with pipes, or streamable HTTP.

Both bound the size of a message, and report their end at once; the `mcp` package notices it only while a request is
pending. The package's own transport for processes has no bound for a line.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO

import anyio
import httpx2
import mcp_types
from anyio.abc import ObjectReceiveStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from toolwire.agent.mcp.settings import Server
from toolwire.agent.tools.process_tree import ProcessTree
from toolwire.core.display import clean

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.shared._stream_protocols import ReadStream

MAX_STDERR_BYTES = 2048
MAX_STDERR_LINES = 10
STDERR_TIMEOUT = 0.3
"""Seconds to wait for the rest of standard error after the process has ended."""
FLUSH_TIMEOUT = 0.5
"""Seconds to write the last messages before standard input is closed."""
EXIT_TIMEOUT = 2.0
"""Seconds in which a server should exit after its standard input is closed."""
KILL_TIMEOUT = 2.0
"""Seconds to wait after SIGTERM, and after SIGKILL."""
POLL_INTERVAL = 0.01
CHUNK_BYTES = 1 << 16
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Maximum bytes of one message. The package's default for events, 1 MiB, is too small for images."""
TOO_LARGE = f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes"


class MessageTooLarge(Exception):
    """A message has more than `MAX_MESSAGE_BYTES`."""


class StderrTail(asyncio.Protocol):
    """Keeps the end of a process's standard error, which is not shown in our terminal."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.ReadTransport | None = None
        self._ended = asyncio.Event()

    @property
    def text(self) -> str:
        """The last lines, without control characters."""
        lines = clean(self._data.decode("utf-8", "replace")).strip().splitlines()
        return "\n".join(lines[-MAX_STDERR_LINES:])

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
        self._ended.clear()  # set by an earlier attempt
        return errors

    async def close(self) -> None:
        """Read the rest for a short time: a descendant may keep the pipe open."""
        with anyio.move_on_after(STDERR_TIMEOUT, shield=True):
            await self._ended.wait()
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Keep the last bytes."""
        self._data = (self._data + data)[-MAX_STDERR_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """The pipe is closed."""
        self._ended.set()


class Health:
    """The state of a connection apart from its messages.

    `over` is called when the other side has ended, `fail` with the reason when the connection must be closed.
    """

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
            response.stream = BoundedBody(response)
            response.headers.pop("content-encoding", None)
        if response.status_code < 400 or response.request.method != "POST":
            return
        self.refusal = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        if response.status_code == 404 and "mcp-session-id" in response.request.headers:
            self.session_is_gone = True


class BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer, decompressed, up to the limit."""

    def __init__(self, response: httpx2.Response) -> None:
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        self._stream = stream
        self._response = httpx2.Response(response.status_code, headers=response.headers, stream=stream)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body in pieces. Raises `httpx2.StreamError` above the limit."""
        size = 0
        async for piece in self._response.aiter_bytes():
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(TOO_LARGE)
            yield piece

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


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


@asynccontextmanager
async def open_transport(server: Server, health: Health) -> AsyncGenerator[tuple[WatchedStream, Any]]:
    """The streams of messages from and to a server, until the context is left."""
    if not server.url:
        async with _run_process(server, health) as streams:
            yield streams
        return
    # A stream of events may be silent for a long time; every call has a timeout of its own.
    timeout = httpx2.Timeout(server.start_timeout, read=None)
    hooks = {"response": [health.check_response]}
    async with (
        httpx2.AsyncClient(headers=server.headers, timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as (
            reading,
            writing,
        ),
    ):
        yield WatchedStream(reading, health.over), writing


async def read_lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The complete lines of a stream, in linear time. Raises `MessageTooLarge`."""
    pieces: list[bytes] = []
    size = 0
    while data := await stream.read(CHUNK_BYTES):
        for index, piece in enumerate(data.split(b"\n")):
            if index:  # a line has ended before it
                yield b"".join(pieces)
                pieces, size = [], 0
            pieces.append(piece)
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise MessageTooLarge


@asynccontextmanager
async def _run_process(server: Server, health: Health) -> AsyncGenerator[tuple[WatchedStream, Any]]:
    """Run a server as a process and exchange lines of JSON with it, until the context is left.

    Does not use the event loop's subprocesses: a descendant that holds a pipe open would keep them open.
    """
    try:
        with await health.tail.open() as errors:
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - starting it must not be cancelled halfway
                [server.command, *server.args],
                env=get_default_environment() | server.env,
                cwd=server.cwd or None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        try:
            async with _pipes(process, health) as streams:
                yield streams
        finally:
            with anyio.CancelScope(shield=True):
                await _end_process(process)
    finally:
        await health.tail.close()


@asynccontextmanager
async def _pipes(process: "subprocess.Popen[bytes]", health: Health) -> AsyncGenerator[tuple[WatchedStream, Any]]:
    """The streams of messages from and to a process. Leaving the context ends the process."""
    loop = asyncio.get_running_loop()
    output = asyncio.StreamReader()
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), process.stdout)
    sink, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
    )
    sink.set_write_buffer_limits(0)  # so that `drain` waits until everything is written
    writer = asyncio.StreamWriter(sink, protocol, None, loop)
    to_session, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    requests, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    flushed = anyio.Event()

    async def write_messages() -> None:
        try:
            async with from_session:
                async for each in from_session:
                    text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    writer.write(text.encode(errors="replace") + b"\n")
                    await writer.drain()
        except OSError:  # the process no longer reads, so the session must not wait for an answer
            await to_session.aclose()
        finally:
            flushed.set()

    async with anyio.create_task_group() as group:
        group.start_soon(_read_messages, output, to_session, health)
        group.start_soon(write_messages)
        try:
            yield WatchedStream(messages, health.over), requests
        finally:
            with anyio.CancelScope(shield=True):
                messages.close()
                requests.close()
                with anyio.move_on_after(FLUSH_TIMEOUT):
                    await flushed.wait()
                if not sink.is_closing():
                    sink.abort()  # nothing is buffered, unless the server does not read
                await _end_process(process)
                source.close()
            group.cancel_scope.cancel()


async def _read_messages(
    output: asyncio.StreamReader, to_session: "MemoryObjectSendStream[SessionMessage | Exception]", health: Health
) -> None:
    """Pass on the messages of a process until it or the session ends, then discard the rest of its output."""
    try:
        async with to_session:
            async for line in read_lines(output):
                try:
                    text = line.decode(errors="replace")
                    message = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
                except ValueError as error:  # does not end the connection
                    await to_session.send(error)
                else:
                    await to_session.send(SessionMessage(message))
    except MessageTooLarge:
        health.fail(TOO_LARGE)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):  # the session is closed
        pass
    finally:
        with anyio.CancelScope(shield=True):  # a server that cannot write might not exit
            while await output.read(CHUNK_BYTES):
                pass


async def _end_process(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the exit of a process whose standard input is closed, then kill it with its descendants."""

    async def wait(is_over: Callable[[], bool], seconds: float) -> bool:
        deadline = anyio.current_time() + seconds
        while not is_over() and anyio.current_time() < deadline:  # noqa: ASYNC110 - processes set no event
            await anyio.sleep(POLL_INTERVAL)
        return is_over()

    def has_ended() -> bool:
        return process.poll() is not None

    if not await wait(has_ended, EXIT_TIMEOUT):
        tree = ProcessTree(process.pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            tree.signal(number)
            if await wait(lambda: has_ended() and not tree.list_living(), KILL_TIMEOUT):
                break
