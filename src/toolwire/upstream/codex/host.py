"""One process hosts the Codex threads of a machine; worker processes reach it over a Unix socket.

A worker keeps everything that belongs to its client: dialect, policies, storage, log. Only the lines of app-server
travel, on one connection for each turn:

    worker                                      host
    Find: keys of calls                    →                        on a connection of its own
                                           ←    Found: turns that wait for their results
    Open: model, the waiting turn          →    waits for a slot
                                           ←    Refused: failure    nothing was begun
                                           ←    Opened: rate limits
    Send: a request or a response          →    from here on the model may act
                                           ←    Lines, Lines, …     as app-server writes them
                                           ←    Refused: failure    the thread is lost
    Stop                                   →                        the turn is over, and waits for results
                                           ←    Stopped             no lines come after this
    Park: the turn, unread lines           →    the thread waits again
                                           ←    Parked

No turn is run twice. Results are sent only after Opened. If the connection ends before that, nothing was begun, and the
turn is sent again with its whole history. If it ends later, the model may have acted, so the turn fails. The host
abandons a thread whose connection ends, and interrupts its turn.

Each message is a length (4 bytes, big endian) and a MessagePack object.
"""

import asyncio
import os
import struct
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, TypeAlias, TypeVar

import msgspec

from toolwire.backends.codex import Profile, read_turn, write_turn
from toolwire.core.backend import Ask, Dialogue, Opening, PendingTurn
from toolwire.core.errors import THREAD_GONE, BackendFault, Failure
from toolwire.core.raw import to_json
from toolwire.memory.call_keys import CallKey
from toolwire.upstream.codex.app_server import UNUSABLE
from toolwire.upstream.codex.inbox import MAX_INBOX_BYTES, Inbox
from toolwire.upstream.codex.upstream import CodexReply, CodexUpstream
from toolwire.upstream.reply import Broken, Upstream, make_broken

FIND_TIMEOUT = 1.0
"""Seconds to find waiting turns. Without an answer the whole history is sent again."""
PARK_TIMEOUT = 1.0
"""Seconds that the end of a turn waits for its thread to be parked."""
HOST_TIMEOUT = 60.0
"""Seconds within which the host must answer anything else, not counting the wait for a slot."""
RECONNECT_PAUSE = 0.1
"""Seconds between two attempts to reach a host that is being replaced."""
MAX_MESSAGE_BYTES = 2 * MAX_INBOX_BYTES
"""Maximum bytes of a message: a full inbox and one more line."""
MAX_FOUND_CALLS = 1000
"""Maximum calls whose turns are remembered between `find` and the request that continues them."""

_LENGTH = struct.Struct("!I")


class Find(msgspec.Struct, tag=True):
    calls: list[CallKey]


class Found(msgspec.Struct, tag=True):
    turns: list[tuple[str, bytes]]
    """Backends and turns, as `write_turn` writes them."""


class Open(msgspec.Struct, tag=True):
    backend: str
    model: str
    turn: bytes | None
    """The waiting turn to continue; None for a new thread."""


class Opened(msgspec.Struct, tag=True):
    headers: dict[str, str]


class Refused(msgspec.Struct, tag=True):
    failure: Failure


class Send(msgspec.Struct, tag=True):
    name: str
    method: str
    line: bytes
    """The parameters of a request; without a name and a method, a line as it is."""


class Lines(msgspec.Struct, tag=True):
    data: bytes


class Stop(msgspec.Struct, tag=True):
    pass


class Stopped(msgspec.Struct, tag=True):
    pass


class Park(msgspec.Struct, tag=True):
    turn: bytes
    unread: bytes


class Parked(msgspec.Struct, tag=True):
    pass


FromWorker: TypeAlias = Find | Open | Send | Stop | Park
FromHost: TypeAlias = Found | Opened | Refused | Lines | Stopped | Parked
Received = TypeVar("Received")

_encode = msgspec.msgpack.Encoder().encode
_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
_from_host = msgspec.msgpack.Decoder(FromHost).decode


def _write(writer: asyncio.StreamWriter, message: FromWorker | FromHost) -> None:
    data = _encode(message)
    writer.write(_LENGTH.pack(len(data)) + data)


async def _read(reader: asyncio.StreamReader, decode: Callable[[bytes], Received]) -> Received:
    """The next message. Raises `EOFError` or `OSError` at the end of the connection."""
    [size] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > MAX_MESSAGE_BYTES:
        raise EOFError(f"a message has {size} bytes")
    return decode(await reader.readexactly(size))


# The host


class CodexHostServer:
    """Serves the threads of all `codex` backends to workers."""

    def __init__(self, path: str, upstreams: Mapping[str, CodexUpstream]) -> None:
        self._path = path
        self._upstreams = upstreams
        self._server: asyncio.Server | None = None
        self.connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # of a host that was killed
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        for upstream in self._upstreams.values():
            upstream.start()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        for task in tuple(self.connections):
            task.cancel()
        if self.connections:
            await asyncio.wait(self.connections)
        for upstream in self._upstreams.values():
            await upstream.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            message = await _read(reader, _from_worker)
            if isinstance(message, Find):
                turns = (
                    (name, write_turn(turn))
                    for name, upstream in self._upstreams.items()
                    for turn in upstream.find_waiting(message.calls)
                )
                _write(writer, Found([(name, written) for name, written in turns if written is not None]))
            elif isinstance(message, Open):
                await self._serve(message, reader, writer)
        except (OSError, EOFError, msgspec.DecodeError, asyncio.CancelledError):
            pass  # the worker is gone, or the host ends
        finally:
            self.connections.discard(task)
            writer.close()

    async def _serve(self, opening: Open, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one turn, until it is parked or the worker closes the connection."""
        parked: list[PendingTurn] = []
        try:
            waiting = self._find_waiting(opening)
            dialogue = Dialogue(opening.model, "", waiting, lambda: parked[0] if parked else None)
            reply = await self._open_while_connected(opening.backend, dialogue, reader)
        except BackendFault as fault:
            _write(writer, Refused(fault.failure))
            return
        pump = asyncio.create_task(_pump(reply, writer))
        try:
            _write(writer, Opened(dict(reply.headers)))
            while True:
                match await _read(reader, _from_worker):
                    case Send(name, method, line):
                        dialogue.outbox.append(Ask(name, method, msgspec.Raw(line)) if method else line)
                        reply.flush()
                    case Stop():
                        pump.cancel()
                        await asyncio.wait((pump,))
                        _write(writer, Stopped())
                    case Park(turn, unread) if (waiting := read_turn(turn)) is not None:
                        reply.inbox.put_back(unread)
                        parked.append(waiting)
                        reply.close()
                        _write(writer, Parked())
                    case _:
                        return
        finally:
            pump.cancel()
            reply.close()

    def _find_waiting(self, opening: Open) -> PendingTurn | None:
        """The turn that a worker wants to continue. Raises `Broken` if it no longer waits."""
        if opening.turn is None:
            return None
        if (wanted := read_turn(opening.turn)) is not None:
            for turn in self._upstreams[opening.backend].find_waiting(wanted.calls):
                if write_turn(turn) == opening.turn:
                    return turn
        raise make_broken(THREAD_GONE, "The thread of these calls is gone.")

    async def _open_while_connected(self, backend: str, dialogue: Dialogue, reader: asyncio.StreamReader) -> CodexReply:
        """Wait for a slot, unless the worker closes the connection first."""
        opening = asyncio.create_task(self._upstreams[backend].open(dialogue, ""))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise EOFError("the worker has left")
            return opening.result()
        finally:
            opening.cancel()
            leaving.cancel()
            await asyncio.wait((opening, leaving))


async def _pump(reply: CodexReply, writer: asyncio.StreamWriter) -> None:
    """Send the lines of a thread. If the worker reads slowly, they collect in the inbox of the thread."""
    try:
        while True:
            _write(writer, Lines(await reply.read()))
            await writer.drain()
    except BackendFault as fault:
        _write(writer, Refused(fault.failure))
    except OSError:
        pass  # the worker is gone


# A worker


class FoundTurn(PendingTurn, frozen=True, kw_only=True):
    """A turn that waits at the host."""

    backend: str
    written: bytes


class CodexHost:
    """A worker's view of the host."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._found: dict[Hashable, list[FoundTurn]] = {}
        self._parking: set[asyncio.Task[None]] = set()

    async def find(self, calls: Sequence[CallKey]) -> None:
        """Ask the host which turns wait for results of these calls, for `waiting`. Without an answer, none do."""
        turns: list[tuple[str, bytes]] = []
        with suppress(OSError, EOFError, msgspec.DecodeError, UnicodeEncodeError):
            async with asyncio.timeout(FIND_TIMEOUT):
                reader, writer = await asyncio.open_unix_connection(self.path)
                with closing(writer):
                    _write(writer, Find(list(calls)))
                    message = await _read(reader, _from_host)
                turns = message.turns if isinstance(message, Found) else []
        for call in calls:
            self._found.pop(call, None)
        for backend, written in turns:
            if (turn := read_turn(written)) is not None:
                found = FoundTurn(turn.thread, turn.calls, turn.state, backend=backend, written=written)
                for call in calls:
                    if call in turn.calls:
                        self._found.setdefault(call, []).append(found)
        while len(self._found) > MAX_FOUND_CALLS:
            del self._found[next(iter(self._found))]

    def list_found(self, backend: str, calls: Sequence[CallKey]) -> list[PendingTurn]:
        """The turns of a backend that wait for the result of one of these calls, as last found."""
        found = {turn.written: turn for call in calls for turn in self._found.get(call, ())}
        return [turn for turn in found.values() if turn.backend == backend]

    def forget(self, turn: FoundTurn) -> None:
        """Forget a turn that is continued or gone."""
        for call in turn.calls:
            self._found.pop(call, None)

    def park(self, parking: Coroutine[Any, Any, None]) -> None:
        """Park a thread in a task. The end of the turn waits for it, because the next request may follow at once."""
        task = asyncio.get_running_loop().create_task(parking)
        self._parking.add(task)
        task.add_done_callback(self._parking.discard)

    async def wait_until_parked(self) -> None:
        """Wait until the threads of ended turns can be found, for at most `PARK_TIMEOUT`."""
        if self._parking:
            await asyncio.wait(tuple(self._parking), timeout=PARK_TIMEOUT)


class HostedCodexUpstream(Upstream):
    """The upstream of a `codex` backend whose threads run at the host."""

    def __init__(self, name: str, host: CodexHost, profile: Profile) -> None:
        self._name = name
        self._host = host
        self._profile = profile

    def find_waiting(self, calls: Sequence[CallKey]) -> list[PendingTurn]:
        """The turns that wait for the result of one of these calls."""
        return self._host.list_found(self._name, calls)

    async def open(self, opening: Opening, key: str) -> CodexReply:
        assert isinstance(opening, Dialogue)
        turn = opening.resume
        written = None
        if isinstance(turn, FoundTurn):
            self._host.forget(turn)
            written = turn.written
        message = Open(self._name, opening.model, written)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._profile.patience
        while True:
            try:
                thread = await self._connect(message)
            except TimeoutError:
                failure = Failure(504, "backend_timeout", "The process that hosts Codex does not answer.")
                raise Broken(failure) from None
            except (OSError, EOFError):  # it is being replaced, and has begun nothing
                if written is not None:
                    raise make_broken(THREAD_GONE, "The process that had the thread of these calls is gone.") from None
                if loop.time() > give_up:
                    raise make_broken(UNUSABLE, "The process that hosts Codex cannot be reached.", 503) from None
                await asyncio.sleep(RECONNECT_PAUSE)
            else:
                return CodexReply(thread, opening, thread.release)

    async def _connect(self, message: Open) -> "HostedThread":
        reader, writer = await asyncio.open_unix_connection(self._host.path)
        try:
            _write(writer, message)
            async with asyncio.timeout(self._profile.patience + HOST_TIMEOUT):
                answer = await _read(reader, _from_host)
        except BaseException:
            writer.close()
            raise
        if isinstance(answer, Opened):
            self.note_connection()
            return HostedThread(reader, writer, answer.headers, self._host)
        writer.close()
        if isinstance(answer, Refused) and answer.failure.code == UNUSABLE:
            self.note_connection(answer.failure.message)
        raise Broken(answer.failure) if isinstance(answer, Refused) else EOFError("another message was expected")


class HostedThread:
    """A thread of the host, while it serves a client of this worker."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str], host: CodexHost
    ) -> None:
        self.headers = headers
        self._writer = writer
        self._host = host
        self.inbox = Inbox(b"")
        loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._parked: asyncio.Future[None] = loop.create_future()
        self._receiving = loop.create_task(self._receive(reader))

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                match await _read(reader, _from_host):
                    case Lines(data):
                        self.inbox.put(data)
                    case Refused(failure):
                        self.inbox.fail(Broken(failure))
                    case Stopped():
                        self._stopped.set_result(None)
                    case Parked():
                        self._parked.set_result(None)
                    case _:
                        return
        except (OSError, EOFError, msgspec.DecodeError):
            pass
        finally:
            self._stopped.cancel()
            self._parked.cancel()
            if self.inbox.fault is None:
                message = "The process that has the thread ended in the middle of the turn."
                self.inbox.fail(Broken(Failure(502, "backend_broke_off", message)))

    @property
    def is_running(self) -> bool:
        return self.inbox.fault is None

    def ask(self, ask: Ask) -> None:
        _write(self._writer, Send(ask.name, ask.method, to_json(ask.params)))

    def write(self, line: bytes) -> None:
        _write(self._writer, Send("", "", line))

    def release(self, waiting: PendingTurn | None) -> None:
        """End the client's turn: the thread waits for the results of its calls, or is abandoned."""
        written = write_turn(waiting) if waiting is not None else None
        if written is None or self.inbox.fault is not None:
            self._close()
        else:
            self._host.park(self._park(written))

    async def _park(self, turn: bytes) -> None:
        """Return the thread and its unread lines to the host, so that the next request finds it."""
        try:
            async with asyncio.timeout(HOST_TIMEOUT):
                _write(self._writer, Stop())
                await self._stopped
                _write(self._writer, Park(turn, self.inbox.read_nowait()))
                await self._parked
        except (TimeoutError, BackendFault, asyncio.CancelledError):
            pass  # the host abandons the thread, and the whole history is sent again
        finally:
            self._close()

    def _close(self) -> None:
        self._receiving.cancel()
        self._writer.close()
