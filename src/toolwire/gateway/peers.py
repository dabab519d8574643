"""Requests between the worker processes of one machine, over Unix sockets that only their user can reach.

Each worker has one socket in a directory that only its user can enter. The name of the socket is the worker's
incarnation, a random id of one process, so that a request for a process that is gone never reaches its successor. A
request has a name, and its answer is a stream of bytes:

    server.handle("turns", list_turns)                   # async def list_turns(payload: bytes) -> AsyncGenerator[bytes]

    for incarnation in peers.others():
        async for piece in peers.ask(incarnation, "turns", b""):
            …

On the wire, in each direction:

    {"name":"turns","size":2}\\n{}                         one request, one connection
    ┌ kind, 1 byte ┬ length, 4 bytes, big endian ┬ bytes ┐  any number of DATA, then END or ERROR with its reason

A stream that ends without END is `PeerGone`, an ERROR is `PeerFailed`. A client that closes its connection cancels the
handler. Every wait has a deadline; requests, pieces, and the memory of all requests have limits.
"""

import asyncio
import os
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from secrets import token_hex
from typing import TypeAlias

import msgspec

Handler: TypeAlias = Callable[[bytes], AsyncGenerator[bytes]]

FIRST_TIMEOUT = 5.0
"""Seconds until the first piece of an answer, by default. A suspended process accepts connections, then is silent."""
IDLE_TIMEOUT = 60.0
"""Seconds between two pieces, and for a peer to read a piece or to send its request."""
MAX_PIECE = 256 * 1024
"""Bytes that are sent at a time; longer pieces are cut."""
MAX_CONNECTIONS = 512
MAX_HELD = 64 * 1024 * 1024
"""Bytes of all requests that a worker holds at a time, and so of one request."""
MAX_SOCKET_PATH = 100
"""Bytes of the path of a Unix socket. Systems allow a few more."""

_HEAD = struct.Struct("!BI")
_DATA, _END, _ERROR = 0, 1, 2
_MAX_LINE = 4096


class PeerGone(Exception):
    """The peer is gone, does not answer in time, or ended the stream early."""


class PeerFailed(Exception):
    """The peer refused, or its handler failed."""


class _PeerRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size: int


_decode_request = msgspec.json.Decoder(_PeerRequest).decode


def make_incarnation() -> str:
    """A random id for a new process."""
    return token_hex(8)


class PeerServer:
    """Answers requests of peers."""

    def __init__(self, folder: Path, incarnation: str) -> None:
        self.incarnation = incarnation
        self.path = socket_path(folder, incarnation)
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._held = 0

    def handle(self, name: str, handler: Handler) -> None:
        """Answer requests with this name with the pieces that the handler yields."""
        self._handlers[name] = handler

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve_connection, self.path, limit=_MAX_LINE)

    async def stop(self) -> None:
        """Cancel all answers and remove the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        for task in tuple(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve_request(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client is gone or does not speak the protocol, or `stop` cancels: asyncio would log a traceback
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(IDLE_TIMEOUT):
            line = await reader.readuntil(b"\n")
        try:
            request = _decode_request(line)
        except msgspec.DecodeError:
            await _send(writer, _ERROR, b"the request cannot be read")
            return
        handler = self._handlers.get(request.name)
        if handler is None:
            await _send(writer, _ERROR, b"no handler has this name")
        elif len(self._connections) > MAX_CONNECTIONS or not 0 <= request.size <= MAX_HELD - self._held:
            await _send(writer, _ERROR, b"there is no room for the request")
        else:
            self._held += request.size
            try:
                async with asyncio.timeout(IDLE_TIMEOUT):
                    payload = await reader.readexactly(request.size)
                await self._answer(handler, payload, reader, writer)
            finally:
                self._held -= request.size

    async def _answer(
        self, handler: Handler, payload: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send the answer, unless the client closes its connection first."""
        answering = asyncio.create_task(_send_all(handler, payload, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait((answering, leaving))
        if not answering.cancelled():
            answering.result()


async def _send_all(handler: Handler, payload: bytes, writer: asyncio.StreamWriter) -> None:
    try:
        async with aclosing(handler(payload)) as pieces:
            async for piece in pieces:
                for start in range(0, len(piece), MAX_PIECE):
                    await _send(writer, _DATA, piece[start : start + MAX_PIECE])
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a handler's failure is the answer
        await _send(writer, _ERROR, f"{type(error).__name__}: {error}".encode()[:_MAX_LINE])
    else:
        await _send(writer, _END, b"")


async def _send(writer: asyncio.StreamWriter, kind: int, data: bytes) -> None:
    writer.write(_HEAD.pack(kind, len(data)) + data)
    async with asyncio.timeout(IDLE_TIMEOUT):
        await writer.drain()


class Peers:
    """The other workers of this machine."""

    def __init__(self, folder: Path, own: str) -> None:
        self._folder = folder
        self.own = own
        """The incarnation of this process."""

    def list_others(self) -> list[str]:
        """The incarnations of other workers. One that was killed may be among them for a while."""
        names = (path.stem for path in self._folder.glob("*.sock"))
        return sorted(name for name in names if name != self.own)

    async def ask(
        self, incarnation: str, name: str, payload: bytes, *, first: float = FIRST_TIMEOUT, idle: float = IDLE_TIMEOUT
    ) -> AsyncGenerator[bytes]:
        """Yield the answer of one worker, piece by piece. Raises `PeerGone` or `PeerFailed`.

        `first` is the timeout for the first piece, `idle` the timeout between two, in seconds.
        """
        try:
            async with asyncio.timeout(first):
                reader, writer = await asyncio.open_unix_connection(socket_path(self._folder, incarnation))
        except OSError as error:
            raise PeerGone(f"{incarnation} is not there: {error}") from None
        try:
            timeout = first
            writer.write(msgspec.json.encode(_PeerRequest(name, len(payload))) + b"\n" + payload)
            while True:
                async with asyncio.timeout(timeout):
                    await writer.drain()
                    kind, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                    if length > MAX_PIECE:
                        raise PeerFailed(f"a piece has {length} bytes")
                    data = await reader.readexactly(length)
                if kind == _END:
                    return
                if kind == _ERROR:
                    raise PeerFailed(data.decode("utf-8", "replace"))
                yield data
                timeout = idle
        except (OSError, EOFError) as error:
            raise PeerGone(f"{incarnation} broke off: {type(error).__name__}") from None
        finally:
            writer.close()

    async def ask_whole(self, incarnation: str, name: str, payload: bytes, limit: int, *, seconds: float) -> bytes:
        """The whole answer of one worker, of at most `limit` bytes, within `seconds`. Raises as `ask` does."""
        parts: list[bytes] = []
        size = 0
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(self.ask(incarnation, name, payload, first=seconds, idle=seconds)) as pieces,
            ):
                async for piece in pieces:
                    size += len(piece)
                    if size > limit:
                        raise PeerFailed(f"the answer has more than {limit} bytes")
                    parts.append(piece)
        except TimeoutError:
            raise PeerGone(f"{incarnation} took longer than {seconds:g} s") from None
        return b"".join(parts)


def socket_path(folder: Path, incarnation: str) -> str:
    """The path of the socket of an incarnation. Raises `PeerGone` if this is not an id."""
    if not incarnation.isalnum():  # it may be read from a database
        raise PeerGone(f"{incarnation!r} is not an incarnation")
    return str(folder / f"{incarnation}.sock")
