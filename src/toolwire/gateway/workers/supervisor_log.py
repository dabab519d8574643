"""Writes the supervisor's log to stderr without a thread, and without waiting for a reader."""

import fcntl
import os
import select
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toolwire.config.settings import Settings
from toolwire.gateway.lifespan import choose_log_format
from toolwire.gateway.log import LEVELS, encode_log_line

MAX_UNWRITTEN = 64 * 1024
"""Maximum bytes that wait to be written; further lines are dropped."""
MAX_LINE = 4096
"""Maximum bytes of a line. A pipe accepts a write of this size whole or not at all."""


class SupervisorLog:
    """Writes lines as soon as stderr accepts them, under the lock that workers hold while they write."""

    def __init__(self, settings: Settings, lock: Path) -> None:
        self._settings = settings
        self._descriptor = sys.stderr.fileno()
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._unwritten: list[bytes] = []

    def use(self, settings: Settings) -> None:
        """Use the level and the format of these settings."""
        self._settings = settings

    def log(self, level: str, event: str, **facts: Any) -> None:
        """Write a line of the log."""
        if LEVELS.index(level) >= LEVELS.index(self._settings.debug.level):
            line = {"timestamp": datetime.now(UTC), "level": level, "event": event, **facts}
            self._add(encode_log_line(line, choose_log_format(self._settings)))

    def print(self, line: str) -> None:
        """Write a line of plain text."""
        self._add(line.encode("utf-8", "replace"))

    def _add(self, line: bytes) -> None:
        if sum(map(len, self._unwritten)) + len(line) < MAX_UNWRITTEN:
            self._unwritten.append(line[: MAX_LINE - 1] + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write what can be written without waiting."""
        if not self._unwritten:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            while self._unwritten and poll.poll(0):
                line = self._unwritten.pop(0)
                with suppress(OSError):  # stderr is closed
                    os.write(self._descriptor, line)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
