"""Writes recordings as private files; `toolwire.core.recording` has the format."""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from toolwire.core.backend import Ask, Dialogue, Opening, Post
from toolwire.core.recording import Head, Line
from toolwire.core.secret_patterns import remove_secrets
from toolwire.core.sse import Frame
from toolwire.memory.private_files import make_folders, open_private

MAX_RECORDING_BYTES = 64 * 1024 * 1024
"""Maximum bytes of one recording; the rest of the turn is left out, and the file says so."""
MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a recorded request: the client's, and each that is sent to the backend."""
MAX_SECRET_BYTES = 16 * 1024
"""Maximum bytes of a secret."""


class Recorder:
    """Writes one turn to one file: once the reply begins, or when the turn ends without one."""

    def __init__(
        self, directory: str, name: str, head: Head, request: bytes = b"", secrets: Sequence[str] = ()
    ) -> None:
        self._path = Path(directory) / f"{name}.jsonl"
        self._head = head
        self._request = request
        self._asked: list[Line] = []
        """The messages to the backend before its reply began."""
        self._has_begun = False
        self._secrets = tuple(secret.encode() for secret in secrets if secret)
        self._file: BinaryIO | None = None
        self._left = MAX_RECORDING_BYTES
        self._started = 0.0

    def record_opening(self, opening: Opening) -> None:
        """Record the opening of the conversation, and its time."""
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        self._head = msgspec.structs.replace(self._head, at=at)
        if isinstance(opening, Post):
            self._asked.append(self._add_body(Line(path=opening.path), "sent", opening.body))
        elif isinstance(opening, Dialogue):
            self._asked += map(self._make_line, opening.outbox)

    def record_messages(self, now: float, messages: Sequence[Ask | bytes]) -> None:
        """Record what is sent to a worker while it replies."""
        for each in messages:
            self._write_line(msgspec.structs.replace(self._make_line(each), t=self._seconds_since(now)))

    def _make_line(self, message: Ask | bytes) -> Line:
        if isinstance(message, bytes):
            return self._add_body(Line(), "sent", message.strip())
        return self._add_body(Line(path=message.method), "sent", msgspec.json.encode(message.params))

    def _add_body(self, line: Line, field: str, body: bytes) -> Line:
        """The line with a body. Secrets are removed before it is truncated, so that none is cut in two."""
        kept = remove_secrets(body[: MAX_REQUEST_BYTES + MAX_SECRET_BYTES], self._secrets).encode()[:MAX_REQUEST_BYTES]
        values = {field: kept.decode(errors="ignore"), "left_out": len(body) > MAX_REQUEST_BYTES}
        return msgspec.structs.replace(line, **values)

    def start(self, now: float, status: int, content_type: str) -> None:
        """A reply has begun; the lines of an earlier attempt are dropped."""
        self._end()
        self._has_begun = True
        self._left = MAX_RECORDING_BYTES
        try:
            make_folders(self._path.parent)
            self._file = open_private(self._path, "w")
        except OSError as error:  # the turn goes on without its recording
            print(f"toolwire: cannot record to {self._path}: {error.strerror}", file=sys.stderr)
        self._started = now
        self._write(msgspec.json.encode(msgspec.structs.replace(self._head, status=status, content_type=content_type)))
        if self._request:
            self._write_line(self._add_body(Line(), "request", self._request))
        for line in self._asked:
            self._write_line(line)

    def record_frame(self, now: float, frame: Frame) -> None:
        """Record a frame of a stream."""
        event = frame.event.decode("utf-8", "replace")
        self._write_line(Line(self._seconds_since(now), event=event, data=remove_secrets(frame.data, self._secrets)))

    def record_body(self, now: float, body: bytes) -> None:
        """Record a plain body."""
        self._write_line(Line(self._seconds_since(now), body=remove_secrets(body, self._secrets)))

    def close(self) -> None:
        """Close the file; a turn without a reply is written now."""
        if self._asked and not self._has_begun:
            self.start(0.0, 0, "")
        self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _seconds_since(self, now: float) -> float:
        return round(now - self._started, 4)

    def _write_line(self, line: Line) -> None:
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
