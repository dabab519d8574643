"""Standard error that nobody has to read.

A pipe without a reader fills up, and the next write waits without end: the whole gateway would stand still. So a thread
writes what everybody else only hands over. What it cannot get rid of is kept up to a limit, then dropped and counted.

A pipe keeps short writes of several processes apart, but not long ones. Workers hold a lock while they write; the
system takes it back from one that is killed.
"""

import io
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LIMIT = 256 * 1024
"""Bytes that wait to be written."""

PATIENCE = 1.0
"""Seconds that the end waits for what is left."""


class StderrWriter(io.RawIOBase):
    """Takes whole lines at once, and writes them later."""

    name = "<stderr>"

    def __init__(self, descriptor: int, lock: Path | None = None) -> None:
        self._descriptor = descriptor
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if lock is not None else None
        self._changed = threading.Condition()
        self._pieces: list[bytes] = []
        self._size = 0  # of the pieces, and of those that are being written
        self._unsaid = 0  # lines that were dropped since that was last said
        self.dropped = 0
        """Lines that were never written."""
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        piece = bytes(data)
        with self._changed:
            if self._size + len(piece) > LIMIT:
                self._drop(piece)
            else:
                self._pieces.append(piece)
                self._size += len(piece)
            self._changed.notify_all()
        return len(piece)

    def finish(self, seconds: float) -> None:
        """Wait until all is written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, seconds)

    def _drop(self, piece: bytes) -> None:
        lines = piece.count(b"\n")
        self.dropped += lines
        self._unsaid += lines

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._unsaid)
                data = b"".join(self._pieces)
                size, self._pieces = len(data), []
                if self._unsaid:
                    data += _said(self._unsaid)
                    self._unsaid = 0
            with held(self._lock):
                written = self._put(data)
            with self._changed:
                self._size -= size
                if written < len(data):
                    self.dropped += data[written:].count(b"\n")
                self._changed.notify_all()

    def _put(self, data: bytes) -> int:
        """How many bytes could be written: fewer when nobody can read them any more."""
        written = 0
        while written < len(data):
            try:
                written += os.write(self._descriptor, data[written : written + 65536])
            except OSError:
                break
        return written


def _said(lines: int) -> bytes:
    line = {"timestamp": datetime.now(UTC), "level": "warning", "event": "log_dropped", "lines": lines}
    return msgspec.json.encode(line) + b"\n"


def dropped_lines() -> int:
    """Lines of this process that were never written."""
    writer = getattr(sys.stderr, "buffer", None)
    return writer.dropped if isinstance(writer, StderrWriter) else 0


@contextmanager
def held(lock: int | None) -> Generator[None]:
    """Hold a lock among the processes that have opened it, if there is one."""
    if lock is None or fcntl is None:
        yield
        return
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


@contextmanager
def write_stderr_in_thread(lock: Path | None = None) -> Generator[None]:
    """Have a thread write all that goes to standard error; with a lock, in turn with other processes."""
    usual = sys.stderr
    writer = StderrWriter(usual.fileno(), lock)
    sys.stderr = io.TextIOWrapper(writer, usual.encoding, "backslashreplace", line_buffering=True)
    try:
        yield
    finally:
        writer.finish(PATIENCE)
        sys.stderr = usual
