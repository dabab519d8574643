"""The supervisor's lines on stderr. The supervisor has no thread, and must never wait for a reader."""

import os
import select
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toolwire.config.settings import Settings
from toolwire.gateway.lifespan import log_format
from toolwire.gateway.log import LEVELS, Format, written_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MAX_UNWRITTEN = 64 * 1024
"""Bytes that wait to be written; lines beyond are dropped."""
MAX_LINE = 4096
"""Bytes of a line. A pipe takes a write of this size whole or not at all."""


class SupervisorLog:
    """Lines that are written as soon as stderr takes them, under the lock that workers write under."""

    def __init__(self, settings: Settings, lock: Path) -> None:
        self._descriptor = sys.stderr.fileno()
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting: list[bytes] = []
        self._level = 0
        self._format: Format = "json"
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Use the level and the format of these settings."""
        self._level = LEVELS.index(settings.debug.level)
        self._format = log_format(settings)

    def log(self, level: str, event: str, **facts: Any) -> None:
        """Write a line of the log."""
        if LEVELS.index(level) >= self._level:
            line = {"timestamp": datetime.now(UTC), "level": level, "event": event, **facts}
            self._add(written_line(line, self._format))

    def print(self, line: str) -> None:
        """Write a line of plain text."""
        self._add(line.encode("utf-8", "replace"))

    def _add(self, line: bytes) -> None:
        if sum(map(len, self._waiting)) + len(line) < MAX_UNWRITTEN:
            self._waiting.append(line[: MAX_LINE - 1] + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write what can be written without waiting."""
        while self._waiting and self._write(self._waiting[0]):
            del self._waiting[0]

    def _write(self, line: bytes) -> bool:
        assert fcntl is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            ready = poll.poll(0)
            if ready:
                with suppress(OSError):  # stderr is closed
                    os.write(self._descriptor, line)
            return bool(ready)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
