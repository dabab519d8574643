"""Writes recordings, which only their owner may read; `toolwire.core.recording` has the format."""

import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from toolwire.core.recording import Head, Line, without_secrets
from toolwire.core.sse import Frame
from toolwire.memory.private import make_folders, open_private

LIMIT = 64 * 1024 * 1024
"""The most bytes of one recording; the rest of the turn is left out, and the file says so."""


class Recorder:
    """Writes one turn to one file."""

    def __init__(self, directory: str, name: str, kind: str, model: str, secrets: tuple[str, ...] = ()) -> None:
        self._path = Path(directory) / f"{name}.jsonl"
        self._head = Head(1, kind, model)
        self._secrets = tuple(secret.encode() for secret in secrets if secret)
        self._file: BinaryIO | None = None
        self._left = LIMIT
        self._started = 0.0

    def start(self, now: float, status: int, content_type: str) -> None:
        """A reply has begun; the lines of an earlier attempt are dropped."""
        self.close()
        try:
            make_folders(self._path.parent)
            self._file = open_private(self._path, "w")
        except OSError as error:  # the turn goes on without its recording
            print(f"toolwire: cannot record to {self._path}: {error.strerror}", file=sys.stderr)
        self._started = now
        self._write(msgspec.json.encode(msgspec.structs.replace(self._head, status=status, content_type=content_type)))

    def frame(self, now: float, frame: Frame) -> None:
        """Record a frame of a stream."""
        event = frame.event.decode("utf-8", "replace")
        self._line(Line(self._since(now), event=event, data=without_secrets(frame.data, self._secrets)))

    def body(self, now: float, body: bytes) -> None:
        """Record a plain body."""
        self._line(Line(self._since(now), body=without_secrets(body, self._secrets)))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _since(self, now: float) -> float:
        return round(now - self._started, 4)

    def _line(self, line: Line) -> None:
        if self._left <= 0:
            return
        encoded = msgspec.json.encode(line)
        self._left -= len(encoded)
        self._write(encoded if self._left > 0 else msgspec.json.encode(Line(line.t, left_out=True)))

    def _write(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line + b"\n")
        except OSError:
            self.close()
