"""Recordings: one turn as JSONL, from the client's request to the backend's reply, and how it is played again.

    {"toolwire": 1, "kind": "responses", "model": "gpt-5", "dialect": "chat", "content_type": "text/event-stream", …}
    {"request": "{…}"}                                       ← the body of the client's request
    {"path": "/responses", "sent": "{…}"}                    ← what was sent to the backend
    {"t": 0.213, "event": "response.created", "data": "{…}"}
    {"t": 4.871, "body": "{…}"}                              ← a plain reply or an error

Headers are not recorded. In bodies, what looks like a key or a password is blanked.
"""

import re
import sys
from collections.abc import Iterable, Iterator

import msgspec

from toolwire.core import sse
from toolwire.core.backend import Break, Refuse, Script, Step, Wait
from toolwire.core.jsonrpc import JSON_LINES

_SECRETS = (
    (b"eyJ", re.compile(rb"(?<![\w-])eyJ[\w-]{10,}\.[\w-]+\.[\w-]+")),
    (b"sk-", re.compile(rb"\bsk-[\w-]{8,}")),
    (b"Bearer", re.compile(rb"\bBearer\s+[\w.~+/=-]{8,}")),
    (b"AKIA", re.compile(rb"\bAKIA[0-9A-Z]{16}")),
    (b"AIza", re.compile(rb"\bAIza[\w-]{30,}")),
    *((name, re.compile(rb"\b" + name + rb"\w{20,}")) for name in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")),
    *((name, re.compile(rb"\b" + name + rb"\w{20,}")) for name in (b"github_pat_", b"gsk_", b"hf_")),
    (b"xox", re.compile(rb"\bxox[abprs]-[\w-]{10,}")),
    (
        b"-----BEGIN",
        re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-(?!----))*-----END [A-Z ]*PRIVATE KEY-----"),
    ),
    (b"://", re.compile(rb"://([^/\s\"\\@]+)(?=@)")),
)
"""Keys of vendors, tokens, private keys, and the user of a URL, each with how it begins: looking for that is many times
faster than any pattern, and most texts have none. No text is looked at more than a few times."""
_NAMES = (
    rb"(?:[\w-]*api[_-]?key|(?:proxy-)?authorization|pass(?:word|wd|phrase)|(?:client_)?secret"
    rb"|(?:access|refresh|id|auth|session)[_-]token|cookie|private_key)"
)
_NAMED = re.compile(rb'("' + _NAMES + rb'"\s*:\s*")(?:[^"\\]|\\.)+', re.IGNORECASE)
_NAMED_INSIDE = re.compile(rb'(\\"' + _NAMES + rb'\\"\s*:\s*\\")(?:(?!(?<!\\)\\").)+', re.IGNORECASE)
"""Fields that hold a secret by their name, and the same in JSON inside of a text."""
_NAME_ENDS = (b"key", b"authorization", b"password", b"passwd", b"passphrase", b"secret", b"token", b"cookie")
_NAME_MARKS = tuple(end + quote for end in _NAME_ENDS for quote in (b'"', b'\\"'))
"""One of these stands wherever there is such a field, in small letters."""
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


REMOVED = b"[removed]"
"""What stands where a secret was."""


def without_secrets(data: bytes, secrets: tuple[bytes, ...] = ()) -> str:
    """The data as text, without these secrets and without anything that looks like one."""
    return without_spans(data, secret_spans(data, secrets)).decode("utf-8", "replace")


def secret_spans(
    data: bytes, secrets: tuple[bytes, ...] = (), start: int = 0, end: int = sys.maxsize
) -> list[tuple[int, int]]:
    """Where these secrets stand, and what looks like one, in order and without overlaps; only what begins and ends
    within these bounds."""
    end = min(end, len(data))
    found: list[tuple[int, int]] = []
    for secret in secrets:
        at = data.find(secret, start, end)
        while at >= 0:
            found.append((at, at + len(secret)))
            at = data.find(secret, at + len(secret), end)
    for headers in _HEADERS.finditer(data, start, end):
        found += [(each.end(1), each.end()) for each in _HEADER.finditer(data, *headers.span())]
    small = data[start:end].lower()
    if any(mark in small for mark in _NAME_MARKS):
        for named in (_NAMED, _NAMED_INSIDE):
            found += [(each.end(1), each.end()) for each in named.finditer(data, start, end)]
    for beginning, pattern in _SECRETS:
        at = data.find(beginning, start, end)
        while at >= 0:
            match = pattern.match(data, at, end)
            if match:
                found.append(match.span(pattern.groups))
            at = data.find(beginning, match.end() if match else at + len(beginning), end)
    return _merged(found)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def without_spans(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """The data with a mark in place of each of these spans, which are in order."""
    pieces: list[bytes] = []
    done = 0
    for start, end in spans:
        pieces += (data[done:start], REMOVED)
        done = end
    return b"".join((*pieces, data[done:])) if pieces else data


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
