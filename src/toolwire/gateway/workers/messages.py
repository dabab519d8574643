"""Messages between the supervisor and its workers: one line of JSON each, over a pair of sockets.

When one process exits, for any reason, the other reads the end of the stream.
"""

from typing import TypeAlias

import msgspec

MAX_LINE = 1024 * 1024
"""Bytes of a line. The longest messages hold the reason of a failure."""


class Ready(msgspec.Struct, tag=True):
    """A worker accepts connections, or a check has found the settings valid."""


class Failed(msgspec.Struct, tag=True):
    """A worker cannot start, or settings are invalid."""

    reason: str
    is_lasting: bool
    """Whether the settings are the cause, so that another start would fail too."""


class Beat(msgspec.Struct, tag=True):
    """A heartbeat, which the event loop of a worker sends every second."""


class Draining(msgspec.Struct, tag=True):
    """A worker accepts no more connections, and ends when its turns are over."""


class Retire(msgspec.Struct, tag=True):
    """Accept no more connections, and end when the turns are over, however long they take."""


class Drain(msgspec.Struct, tag=True):
    """Accept no more connections, and end within `server.drain` seconds."""


class End(msgspec.Struct, tag=True):
    """End at once."""


class Fleet(msgspec.Struct, tag=True):
    """Desired and ready workers. Readiness is withheld until all were ready once (`started`)."""

    workers: int
    ready: int
    started: bool


FromWorker: TypeAlias = Ready | Failed | Beat | Draining
FromSupervisor: TypeAlias = Retire | Drain | End | Fleet

_encode = msgspec.json.Encoder().encode
decode_from_worker = msgspec.json.Decoder(FromWorker).decode
decode_from_supervisor = msgspec.json.Decoder(FromSupervisor).decode


def encode_line(message: FromWorker | FromSupervisor) -> bytes:
    return _encode(message) + b"\n"


class LineTooLong(Exception):
    """A line has more than `MAX_LINE` bytes."""


class LineSplitter:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now. Raises `LineTooLong`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise LineTooLong
        return lines
