"""What a supervisor and a worker tell each other: one line of JSON for each message, over a pair of sockets.

Either end knows that the other is gone when its own reaches the end of the stream, however the other one ended.
"""

from typing import TypeAlias

import msgspec

from toolwire.gateway.workers.counters import Snapshot

LONGEST = 16 * 1024 * 1024
"""Bytes of a line. The longest have the numbers of all workers, whose labels come from the operator alone."""


class Hello(msgspec.Struct, tag=True):
    """A worker is there, by this name."""

    incarnation: str


class Ready(msgspec.Struct, tag=True):
    """A worker accepts connections; or, of a check, nothing is wrong."""


class Failed(msgspec.Struct, tag=True):
    """It will not come about, for this reason."""

    reason: str
    is_lasting: bool
    """Whether the settings are to blame, which do not get better by themselves."""


class Beat(msgspec.Struct, tag=True):
    """The event loop of a worker runs, with so many turns."""

    running: int


class Draining(msgspec.Struct, tag=True):
    """A worker accepts nothing any more, and ends when its turns are over."""


class Numbers(msgspec.Struct, tag=True):
    """All that a worker has counted so far, with so many turns running."""

    running: int
    snapshot: Snapshot


class NumbersWanted(msgspec.Struct, tag=True):
    """A worker asks for `AllNumbers`, with a number of its own for the question."""

    question: int


FromWorker: TypeAlias = Hello | Ready | Failed | Beat | Draining | Numbers | NumbersWanted


class Retire(msgspec.Struct, tag=True):
    """Accept nothing any more, and end when the turns are over, however long they take."""


class Drain(msgspec.Struct, tag=True):
    """The same, within `server.drain` seconds."""


class End(msgspec.Struct, tag=True):
    """End at once."""


class Fleet(msgspec.Struct, tag=True):
    """How many workers there should be, and how many are ready. Before all were once, nobody says that it is."""

    workers: int
    ready: int
    started: bool


class AllNumbers(msgspec.Struct, tag=True):
    """What all workers have counted, also those that are gone."""

    question: int
    snapshot: Snapshot


FromSupervisor: TypeAlias = Retire | Drain | End | Fleet | AllNumbers

_encode = msgspec.json.Encoder().encode
decode_from_worker = msgspec.json.Decoder(FromWorker).decode
decode_from_supervisor = msgspec.json.Decoder(FromSupervisor).decode


def line_of(message: FromWorker | FromSupervisor) -> bytes:
    return _encode(message) + b"\n"


class TooLong(Exception):
    """A line never ends."""


class Lines:
    """Bytes as they come, as whole lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        if b"\n" not in data:
            self._rest += data
            if len(self._rest) > LONGEST:
                raise TooLong
            return []
        *lines, rest = bytes(self._rest + data).split(b"\n")
        self._rest = bytearray(rest)
        return lines
