"""Recordings: one turn as JSONL, from the client's request to the backend's reply, which can be replayed.

    {"toolwire": 1, "kind": "responses", "model": "gpt-5", "dialect": "chat", "content_type": "text/event-stream", …}
    {"request": "{…}"}                                       ← the body of the client's request
    {"attempt": {"backend": "first", "status": 503, …}}      ← an attempt before this one, which failed
    {"path": "/responses", "sent": "{…}"}                    ← the request to the backend
    {"t": 0.213, "event": "response.created", "data": "{…}"}
    {"t": 4.871, "body": "{…}"}                              ← a plain reply or an error

Headers are not recorded. In bodies, `secret_patterns.py` removes keys and passwords.
"""

from collections.abc import Iterator

import msgspec

from toolwire.core import sse
from toolwire.core.backend import Break, Refuse, Script, Step, Wait
from toolwire.core.jsonrpc import JSON_LINES


class Head(msgspec.Struct, omit_defaults=True):
    """The first line of a recording: which backend, and the status and type of its reply."""

    toolwire: int
    kind: str
    model: str = ""
    status: int = 200
    """0 if there was no reply."""
    content_type: str = ""
    dialect: str = ""
    """The client's; empty if it is not known."""
    at: str = ""
    """When the backend was asked, as an ISO 8601 time in UTC."""


class Sent(msgspec.Struct, omit_defaults=True):
    """A request to a backend."""

    path: str
    body: str


class Attempt(msgspec.Struct, omit_defaults=True):
    """A failed attempt that was followed by another."""

    backend: str
    kind: str
    model: str = ""
    status: int = 0
    """0 if there was no reply."""
    sent: list[Sent] = []
    reply: str = ""


class Line(msgspec.Struct, omit_defaults=True):
    """A request, an attempt, one frame of a stream, or a body; `t` is in seconds from the start of the reply."""

    t: float = 0.0
    request: str = ""
    """The body of the client's request."""
    path: str = ""
    sent: str = ""
    """The body of the request to the backend."""
    attempt: Attempt | None = None
    """An earlier attempt, which failed."""
    event: str = ""
    data: str = ""
    body: str = ""
    left_out: bool = False
    """The rest is missing, because it was too long."""

    @property
    def is_reply(self) -> bool:
        """Whether it is part of the backend's reply."""
        return bool(self.event or self.data or self.body)


class Recording(msgspec.Struct, frozen=True):
    """A recorded turn."""

    head: Head
    lines: list[Line]

    def script(self, *, timed: bool) -> Script:
        """The same reply as a script, with or without the recorded pauses."""
        return Script(self._steps(timed), self.head.content_type or "text/event-stream")

    @property
    def reply(self) -> list[Line]:
        """The lines of the backend's reply."""
        return [line for line in self.lines if line.is_reply]

    def _steps(self, timed: bool) -> Iterator[Step]:
        if not self.head.status:
            yield Break()
            return
        if not 200 <= self.head.status < 300:
            yield Refuse(self.head.status, "".join(line.body for line in self.lines).encode())
            return
        now = 0.0
        for line in self.reply:
            if timed and line.t > now:
                yield Wait(line.t - now)
                now = line.t
            yield line.body.encode() if line.body else self.frame(line)

    def frame(self, line: Line) -> bytes:
        """The bytes of a frame as they were received."""
        if self.head.content_type == JSON_LINES:
            return line.data.encode() + b"\n"
        return sse.write_named(line.event, line.data.replace("\n", "\ndata: ").encode())


def read_recording(text: bytes) -> Recording:
    """Read a recording. Raises `ValueError` if the text is not one."""
    first, *rest = text.splitlines() or [b""]
    try:
        head = msgspec.json.decode(first, type=Head)
        lines = [msgspec.json.decode(line, type=Line) for line in rest if line.strip()]
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a Toolwire recording: {error}") from None
    if head.toolwire != 1:
        raise ValueError(f"a recording of version {head.toolwire}, which this Toolwire cannot read")
    return Recording(head, lines)
