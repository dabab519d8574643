"""Recordings: one turn as JSONL, from the client's request to the backend's reply, and how it is played again.

    {"toolwire": 1, "kind": "responses", "model": "gpt-5", "dialect": "chat", "content_type": "text/event-stream", …}
    {"request": "{…}"}                                       ← the body of the client's request
    {"path": "/responses", "sent": "{…}"}                    ← what was sent to the backend
    {"t": 0.213, "event": "response.created", "data": "{…}"}
    {"t": 4.871, "body": "{…}"}                              ← a plain reply or an error

Headers are not recorded. In bodies, what looks like a key or a password is blanked.
"""

import re
from collections.abc import Iterator

import msgspec

from toolwire.core import sse
from toolwire.core.backend import Break, Refuse, Script, Step, Wait
from toolwire.core.jsonrpc import JSON_LINES

_SECRET = re.compile(
    rb"(?<![\w-])eyJ[\w-]{10,}\.[\w-]+\.[\w-]+|\b(?:sk-[\w-]{8,}|Bearer\s+[\w.~+/=-]{8,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}"
    rb"|gh[pousr]_\w{20,}|github_pat_\w{20,}|gsk_\w{20,}|hf_\w{20,}|xox[abprs]-[\w-]{10,})"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-(?!----))*-----END [A-Z ]*PRIVATE KEY-----"
    rb"|(?<=://)[^/\s\"\\@]+(?=@)"
)
"""Keys of vendors, tokens, private keys, and the user of a URL. No text is looked at more than a few times."""
_NAMES = (
    rb"(?:[\w-]*api[_-]?key|(?:proxy-)?authorization|pass(?:word|wd|phrase)|(?:client_)?secret"
    rb"|(?:access|refresh|id|auth|session)[_-]token|cookie|private_key)"
)
_NAMED = re.compile(rb'("' + _NAMES + rb'"\s*:\s*")(?:[^"\\]|\\.)+', re.IGNORECASE)
_NAMED_INSIDE = re.compile(rb'(\\"' + _NAMES + rb'\\"\s*:\s*\\")(?:(?!(?<!\\)\\").)+', re.IGNORECASE)
"""Fields that hold a secret by their name, and the same in JSON inside of a text."""
_HEADERS = re.compile(rb'"headers"\s*:\s*\{[^{}]*\}')
_HEADER = re.compile(rb'(:\s*")(?:[^"\\]|\\.)*')
"""All headers that a client declares for an MCP server."""


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


class Line(msgspec.Struct, omit_defaults=True):
    """A request, one frame of a stream, or a body, and how many seconds after the start of the reply it came."""

    t: float = 0.0
    request: str = ""
    """The body of the client's request."""
    path: str = ""
    sent: str = ""
    """What was sent to the backend."""
    event: str = ""
    data: str = ""
    body: str = ""
    left_out: bool = False
    """The rest is missing, because it was too long."""

    @property
    def is_reply(self) -> bool:
        """Whether the backend said it."""
        return bool(self.event or self.data or self.body)


class Recording(msgspec.Struct, frozen=True):
    """A recorded turn."""

    head: Head
    lines: list[Line]

    def script(self, *, timed: bool) -> Script:
        """The same reply as a script, with the recorded pauses or at once."""
        return Script(self._steps(timed), self.head.content_type or "text/event-stream")

    @property
    def reply(self) -> list[Line]:
        """What the backend said."""
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
        """The bytes of a frame as they came."""
        if self.head.content_type == JSON_LINES:
            return line.data.encode() + b"\n"
        return sse.write_named(line.event, line.data.replace("\n", "\ndata: ").encode())


def without_secrets(data: bytes, secrets: tuple[bytes, ...] = ()) -> str:
    """The data as text, without these secrets and without anything that looks like one."""
    for secret in secrets:
        data = data.replace(secret, b"[removed]")
    data = _HEADERS.sub(lambda found: _HEADER.sub(rb"\1[removed]", found[0]), data)
    for named in (_NAMED, _NAMED_INSIDE):
        data = named.sub(rb"\1[removed]", data)
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
