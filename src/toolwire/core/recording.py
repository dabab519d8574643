"""Recordings: what a backend sent in one turn, as JSONL, and how such a file is played again.

    {"toolwire": 1, "kind": "responses", "model": "gpt-5", "content_type": "text/event-stream"}
    {"t": 0.213, "event": "response.created", "data": "{…}"}
    {"t": 4.871, "body": "{…}"}                              ← a plain reply or an error

A recording holds what the backend sent, which may repeat parts of the request; what looks like a key is blanked.
"""

import re
from collections.abc import Iterator

import msgspec

from toolwire.core import sse
from toolwire.core.backend import Refuse, Script, Step, Wait
from toolwire.core.jsonrpc import JSON_LINES

_SECRET = re.compile(rb"\b(sk-[\w-]{8,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+|Bearer\s+[\w.~+/-]{8,})")


class Head(msgspec.Struct, omit_defaults=True):
    """The first line of a recording: which backend, and the status and type of its reply."""

    toolwire: int
    kind: str
    model: str = ""
    status: int = 200
    content_type: str = ""


class Line(msgspec.Struct, omit_defaults=True):
    """One frame of a stream, or a body, and the seconds after which it came."""

    t: float = 0.0
    event: str = ""
    data: str = ""
    body: str = ""
    left_out: bool = False


class Recording(msgspec.Struct, frozen=True):
    """A recorded reply."""

    head: Head
    lines: list[Line]

    def script(self, *, timed: bool) -> Script:
        """The same reply as a script, with the recorded pauses or at once."""
        return Script(self._steps(timed), self.head.content_type or "text/event-stream")

    def _steps(self, timed: bool) -> Iterator[Step]:
        if not 200 <= self.head.status < 300:
            yield Refuse(self.head.status, "".join(line.body for line in self.lines).encode())
            return
        now = 0.0
        for line in self.lines:
            if timed and line.t > now:
                yield Wait(line.t - now)
                now = line.t
            yield line.body.encode() if line.body else self._frame(line)

    def _frame(self, line: Line) -> bytes:
        if self.head.content_type == JSON_LINES:
            return line.data.encode() + b"\n"
        return sse.write_named(line.event, line.data.replace("\n", "\ndata: ").encode())


def without_secrets(data: bytes, secrets: tuple[bytes, ...] = ()) -> str:
    """The data as text, without these secrets and without anything that looks like one."""
    for secret in secrets:
        data = data.replace(secret, b"[removed]")
    return _SECRET.sub(b"[removed]", data).decode("utf-8", "replace")


def read_recording(text: bytes) -> Recording:
    """Read a recording. Raises `ValueError` if the text is not one."""
    first, *rest = text.splitlines() or [b""]
    try:
        head = msgspec.json.decode(first, type=Head)
        lines = [msgspec.json.decode(line, type=Line) for line in rest if line.strip()]
    except msgspec.DecodeError as error:
        raise ValueError(f"not a Toolwire recording: {error}") from None
    if head.toolwire != 1:
        raise ValueError(f"a recording of version {head.toolwire}, which this Toolwire cannot read")
    return Recording(head, lines)
