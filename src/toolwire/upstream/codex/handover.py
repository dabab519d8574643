r"""A turn that is handed over to the process that has its thread: what the two say to each other.

The front has the client's request, the keeper has the thread. Both are processes of one machine and one user.

    front                                       keeper
    turn: lease, model, results            →    moves the lease on by one step, or cannot
                                           ←    GONE                     nothing was begun, nor will be
                                           ←    MINE, rate limits        the results are sent to the thread only now
                                           ←    LINES, LINES, …          as they come from app-server
    say: further requests and answers      →
                                           ←    BROKEN, failure          what the keeper's own client would be told
    stop                                   →                             the model has made new calls
                                           ←    STOPPED                  no line comes after this
    park: the turn that waits now, unread  →                             the thread waits at its keeper again

A stream that ends before MINE has begun nothing. One that ends after it may have: the turn is not asked for again.
A front that closes its stream, or dies, lets the keeper leave the thread.
"""

import struct
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from toolwire.core.backend import Ask
from toolwire.core.errors import Failure
from toolwire.core.raw import to_json
from toolwire.memory.store import Lease
from toolwire.upstream.codex.inbox import INBOX_LIMIT

Handler: TypeAlias = Callable[[bytes], AsyncGenerator[bytes]]


class Unreachable(Exception):
    """Another process is not there, has refused, or broke off."""


class Neighbours(Protocol):
    """The other processes of this machine."""

    def handle(self, name: str, handler: Handler) -> None:
        """Answer what they ask under this name."""
        ...

    def ask(self, socket: str, name: str, payload: bytes, *, first: float, idle: float) -> AsyncGenerator[bytes]:
        """The answer of the process with this socket, in pieces of any size. Raises `Unreachable`.

        `first` and `idle` are seconds until the first piece, and between two.
        """
        ...


# What the front sends. A question's name is the verb with the backend's name.

Verb: TypeAlias = Literal["turn", "say", "stop", "park"]


def question(verb: Verb, backend: str) -> str:
    return f"codex {verb} {backend}"


class Sent(msgspec.Struct, frozen=True):
    """One thing for the thread: a request of ours, or a line as it is."""

    line: bytes
    """The line, or the parameters of the request."""
    name: str = ""
    method: str = ""


def sent(message: Ask | bytes) -> Sent:
    if isinstance(message, bytes):
        return Sent(message)
    return Sent(to_json(message.params), message.name, message.method)


class ThreadWriter(Protocol):
    def ask(self, ask: Ask) -> None: ...

    def write(self, line: bytes) -> None: ...


def deliver(messages: Sequence[Sent], thread: ThreadWriter) -> None:
    """Send all of this to a thread."""
    for each in messages:
        if each.method:
            thread.ask(Ask(each.name, each.method, msgspec.Raw(each.line)))
        else:
            thread.write(each.line)


class Turn(msgspec.Struct, frozen=True):
    """Go on with the thread of this lease."""

    lease: Lease
    model: str
    messages: list[Sent]


class Say(msgspec.Struct, frozen=True):
    """More for the thread of a turn that runs. `turn` is the lease with which it was begun."""

    turn: Lease
    messages: list[Sent]


class Stop(msgspec.Struct, frozen=True):
    """No more lines."""

    turn: Lease


class Park(msgspec.Struct, frozen=True):
    """The thread waits for the results of other calls now. These lines of it are for whoever brings them."""

    turn: Lease
    waiting: bytes
    unread: bytes


pack = msgspec.msgpack.Encoder().encode
read_turn_asked = msgspec.msgpack.Decoder(Turn).decode
read_say = msgspec.msgpack.Decoder(Say).decode
read_stop = msgspec.msgpack.Decoder(Stop).decode
read_park = msgspec.msgpack.Decoder(Park).decode


# What the keeper answers

GONE, MINE, LINES, STOPPED, BROKEN = range(5)
LONGEST = 2 * INBOX_LIMIT
"""Bytes of a message: what waits in an inbox, and one more line."""

_HEAD = struct.Struct("!BI")
_HEADERS = msgspec.json.Decoder(dict[str, str]).decode
_FAILURE = msgspec.json.Decoder(Failure).decode


def message(kind: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(body)) + body


def mine(headers: Mapping[str, str]) -> bytes:
    return message(MINE, to_json(dict(headers)))


def broken_off(failure: Failure) -> bytes:
    return message(BROKEN, to_json(failure))


def headers_in(body: bytes) -> dict[str, str]:
    return _HEADERS(body)


def failure_in(body: bytes) -> Failure:
    return _FAILURE(body)


class MessageReader:
    """From pieces of any size to whole messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        data = self._data
        data += piece
        while len(data) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(data)
            if size > LONGEST:
                raise Unreachable(f"a message has {size} bytes")
            end = _HEAD.size + size
            if len(data) < end:
                return
            body = bytes(data[_HEAD.size : end])
            del data[:end]
            yield kind, body
