"""Non-blocking standard error: a bounded buffer and a writer thread.

A pipe without a reader fills up, and the next write would block the whole gateway. So all lines go to a buffer, and a
thread writes them. When the buffer is full, lines are dropped and counted.

Short writes to a pipe are atomic, long ones are not. So workers hold a lock while they write; the system releases it
when a worker is killed.
"""

import io
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MAX_BUFFERED = 256 * 1024
"""Maximum bytes that wait to be written."""

FINISH_TIMEOUT = 1.0
"""Maximum seconds that the process waits at exit for the buffer to empty."""


class StderrWriter(io.RawIOBase):
    """Takes whole lines, and writes them in a thread."""

    name = "<stderr>"

    def __init__(self, descriptor: int, lock: Path | None = None) -> None:
        self._descriptor = descriptor
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if lock is not None else None
        self._changed = threading.Condition()
        self._pieces: list[bytes] = []
        self._size = 0  # of the pieces, and of those that are being written
        self._unreported = 0  # lines dropped since the last report of dropped lines
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
            if self._size + len(piece) > MAX_BUFFERED:
                lines = piece.count(b"\n")
                self.dropped += lines
                self._unreported += lines
            else:
                self._pieces.append(piece)
                self._size += len(piece)
            self._changed.notify_all()
        return len(piece)

    def finish(self, seconds: float) -> None:
        """Wait until the buffer is empty, at most for this long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._unreported)
                data = b"".join(self._pieces)
                size, self._pieces = len(data), []
                if self._unreported:
                    line = {"timestamp": datetime.now(UTC), "level": "warning", "event": "log_dropped"}
                    data += msgspec.json.encode({**line, "lines": self._unreported}) + b"\n"
                    self._unreported = 0
            written = 0
            with hold_lock(self._lock), suppress(OSError):  # the reader is gone
                while written < len(data):
                    written += os.write(self._descriptor, data[written : written + 65536])
            with self._changed:
                self._size -= size
                if written < len(data):
                    self.dropped += data[written:].count(b"\n")
                self._changed.notify_all()


def count_dropped_lines() -> int:
    """Lines of this process that were never written."""
    writer = getattr(sys.stderr, "buffer", None)
    return writer.dropped if isinstance(writer, StderrWriter) else 0


@contextmanager
def hold_lock(lock: int | None) -> Generator[None]:
    """Hold a lock file of several processes, if there is one."""
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
    """Route `sys.stderr` through the writer thread; `lock` is a file that other processes lock too."""
    original = sys.stderr
    writer = StderrWriter(original.fileno(), lock)
    sys.stderr = io.TextIOWrapper(writer, original.encoding, "backslashreplace", line_buffering=True)
    try:
        yield
    finally:
        writer.finish(FINISH_TIMEOUT)
        sys.stderr = original
