"""Recordings: one turn as JSONL, from the client's request to the backend's reply, which can be replayed.

    {"toolwire": 1, "kind": "responses", "model": "gpt-5", "dialect": "chat", "content_type": "text/event-stream", …}
    {"request": "{…}"}                                       ← the body of the client's request
    {"attempt": {"backend": "first", "status": 503, …}}      ← an attempt before this one, which failed
    {"path": "/responses", "sent": "{…}"}                    ← the request to the backend
    {"t": 0.213, "event": "response.created", "data": "{…}"}
    {"t": 4.871, "body": "{…}"}                              ← a plain reply or an error
    {"case": {"expected": {"calls": […], …}, …}}             ← what the client must get, in a test case

Headers are not recorded. In bodies, `secret_patterns.py` removes keys and passwords.
"""

from collections.abc import Iterator, Mapping

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


class ExpectedCall(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A call that the client must get."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """A JSON object; a string if they are anything else."""
    id: str = ""
    """Any id, if this is empty."""
    namespace: str = ""
    complete: bool = True


class Expectation(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What the client of a turn must get. A field that is None is not compared."""

    calls: list[ExpectedCall] | None = None
    text: str | None = None
    finish: str | None = None
    """The finish reason in the words of the client's dialect, or `failed: CODE`."""
    notes: list[str] | None = None


class Case(msgspec.Struct, omit_defaults=True):
    """What a test case adds to a recording: what the client must get, and the settings that it depends on."""

    expected: Expectation
    seed: str = ""
    """The ids of the turn are derived from it."""
    is_plain: bool = False
    """Whether the client got the answer in one piece."""
    rules: Mapping[str, object] = {}
    """How tool calls were carried, as in `[tools]` of the settings; without defaults."""
    profile: Mapping[str, object] = {}
    """The profile of the backend, as in the settings."""
    login: str = ""
    """The `auth` of the backend."""


class Line(msgspec.Struct, omit_defaults=True):
    """A request, an attempt, one frame of a stream, a body, or a case; `t` is the seconds since the reply began."""

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
    case: Case | None = None

    @property
    def is_reply(self) -> bool:
        """Whether it is part of the backend's reply."""
        return bool(self.event or self.data or self.body)


class Recording(msgspec.Struct, frozen=True):
    """A recorded turn."""

    head: Head
    lines: list[Line]

    def make_script(self, *, timed: bool) -> Script:
        """The same reply as a script, with or without the recorded pauses."""
        return Script(self._steps(timed), self.head.content_type or "text/event-stream")

    @property
    def request(self) -> str:
        """The body of the client's request; empty if it was not recorded."""
        return next((line.request for line in self.lines if line.request), "")

    @property
    def case(self) -> Case | None:
        return next((line.case for line in self.lines if line.case is not None), None)

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
            yield line.body.encode() if line.body else self.encode_frame(line)

    def encode_frame(self, line: Line) -> bytes:
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
