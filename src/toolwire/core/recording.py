"""Recordings: one turn as JSONL, from the client's request to the backend's reply, and how it is played again.

    {"toolwire": 1, "kind": "responses", "model": "gpt-5", "dialect": "chat", "content_type": "text/event-stream", …}
    {"request": "{…}"}                                       ← the body of the client's request
    {"attempt": {"backend": "first", "status": 503, …}}      ← an attempt before this one, which failed
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

_VALUE = rb"(?:\\?[\"'])?([^\s\"'\\&;,(){}\[\]<>$`]{%d,})"
"""What stands behind an equals sign, with or without quotes. What begins with a dollar names a variable."""


def _key(beginning: bytes, rest: bytes) -> tuple[bytes, re.Pattern[bytes]]:
    """A key of a vendor, which begins a word."""
    return beginning, re.compile(rb"\b" + beginning + rest)


def _set(beginning: bytes, shortest: int) -> tuple[bytes, re.Pattern[bytes]]:
    """A value that is given to a name, of which this is the end."""
    return beginning, re.compile(re.escape(beginning) + _VALUE % shortest)


_SECRETS = (
    (b"eyJ", re.compile(rb"(?<![\w-])eyJ[\w-]{10,}\.[\w-]+\.[\w-]+")),
    _key(b"sk-", rb"[\w-]{8,}"),
    _key(b"Bearer", rb"\s+[\w.~+/=-]{8,}"),
    _key(b"AKIA", rb"[0-9A-Z]{16}"),
    _key(b"AIza", rb"[\w-]{30,}"),
    *(
        _key(name, rb"\w{20,}")
        for name in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"gsk_", b"hf_")
    ),
    *(_key(name, rb"\w{10,}") for name in (b"sk_live_", b"sk_test_", b"rk_live_", b"rk_test_")),
    _key(b"glpat-", rb"[\w-]{16,}"),
    _key(b"xox", rb"[abprs]-[\w-]{10,}"),
    (
        b"-----BEGIN",
        re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-\"]|-(?!----))*(?:-----END [A-Z ]*PRIVATE KEY-----)?"),
    ),
    (b"://", re.compile(rb"://([^/\s\"\\@]+)(?=@)")),
    (b":\\/\\/", re.compile(rb":\\/\\/([^/\s\"\\@]+)(?=@)")),
)
"""Keys of vendors, tokens, private keys and the user of a URL, each with how it begins: looking for that is many times
faster than any pattern, and most texts have none. No text is looked at more than a few times."""
_GIVEN = (
    (b"uthorization: ", re.compile(rb"uthorization: +(?i:basic|bearer|token|digest|apikey) +([^\s\"'\\]{6,})")),
    *((name, re.compile(name + rb" *([^\s\"'\\]{8,})")) for name in (b"pi-key: ", b"pi-Key: ", b"PI-Key: ")),
    (b"ookie: ", re.compile(rb"ookie: ([\w.-]+=[^\"'\\\r\n]{4,})")),
    *(_set(name, 8) for name in (b"SECRET=", b"TOKEN=", b"_KEY=", b"PASSWORD=", b"PASSWD=")),
    *(_set(name, 6) for name in (b"password=", b"passwd=", b"pwd=")),
    *(_set(name, 8) for name in (b"api_key=", b"apikey=", b"api-key=", b"secret=", b"access_token=", b"auth_token=")),
    *(_set(mark + name, 8) for mark in (b"?", b"&") for name in (b"token=", b"key=", b"sig=")),
)
"""Lines of headers, variables and parameters that hold a secret by their name."""
_GIVEN_MARKS = (
    b"ion: ",
    b"key: ",
    b"kie: ",
    b"secret=",
    b"token=",
    b"key=",
    b"password=",
    b"passwd=",
    b"pwd=",
    b"sig=",
)
"""One of these stands wherever there is such a line, in small letters."""
_NAME_ENDS = (
    b"key", b"authorization", b"password", b"passwd", b"passphrase", b"pwd", b"secret", b"token", b"cookie",
    b"credentials",
)  # fmt: skip
"""How the names of fields end that hold a secret, in small letters."""
_NAME = re.compile(
    rb"[\w-]*(?:api|secret|access|private)[_-]?key|(?:proxy-)?authorization|[\w-]*pass(?:word|wd|phrase)|pwd"
    rb"|(?:[\w-]+[_-])?secret|client_?secret|[\w-]*(?:access|refresh|id|auth|session|bearer|csrf)[_-]?token"
    rb"|(?:set-)?cookie|credentials|token"
)
"""These names."""
_LONGEST_NAME = 100
_HARMLESS = {
    b"credentials": re.compile(rb"include|omit|same-origin"),
    b"token": re.compile(rb"\D*|[^A-Za-z]*|.{0,19}|.*[^\w.~+/=:-].*", re.DOTALL),
}
"""Values that are no secret, though the name is one: how a page is fetched, and a piece of a model's text. A token that
opens something is long, has letters and digits, and no space."""
_FIELDS = (
    (b'"', b'"', re.compile(rb'"\s*:\s*"((?:[^"\\]|\\.)+)')),
    (b'\\"', b'\\"', re.compile(rb'\\"\s*:\s*\\"((?:(?!(?<!\\)\\").)+)')),
    (b"':", b"'", re.compile(rb"'\s*:\s*'((?:[^'\\]|\\.)+)")),
)
"""Fields in JSON, in JSON inside of a text, and as Python prints them: what such a text has in it, its quote, and what
stands behind a name."""
_HEADERS = re.compile(rb'"headers"\s*+:\s*+\{(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_HEADER = re.compile(rb'(:\s*")(?:[^"\\]|\\.)*')
"""All headers that a client declares for an MCP server. The object need not end, for a pattern that wants its end looks
at hostile text again and again."""


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
    """What a backend was sent."""

    path: str
    body: str


class Attempt(msgspec.Struct, omit_defaults=True):
    """An attempt that failed, so that another followed."""

    backend: str
    kind: str
    model: str = ""
    status: int = 0
    """0 if there was no reply."""
    sent: list[Sent] = []
    reply: str = ""


class Line(msgspec.Struct, omit_defaults=True):
    """A request, one frame of a stream, or a body, and how many seconds after the start of the reply it came."""

    t: float = 0.0
    request: str = ""
    """The body of the client's request."""
    path: str = ""
    sent: str = ""
    """What was sent to the backend."""
    attempt: Attempt | None = None
    """An earlier attempt, which failed."""
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
    for mark, quote, rest in _FIELDS:
        if mark in small:
            found += _named(data, small, start, end, quote, rest)
    kinds = (*_SECRETS, *_GIVEN) if any(mark in small for mark in _GIVEN_MARKS) else _SECRETS
    for beginning, pattern in kinds:
        found += _each(beginning, pattern, data, start, end)
    return merged(found)


def _named(
    data: bytes, small: bytes, start: int, end: int, quote: bytes, rest: re.Pattern[bytes]
) -> Iterator[tuple[int, int]]:
    """The values of fields that hold a secret by their name; `small` is what is looked at, in small letters."""
    for name_end in _NAME_ENDS:
        at = small.find(name_end + quote)
        while at >= 0:
            behind = at + len(name_end)
            match = rest.match(data, start + behind, end)
            if match and _is_secret(small, behind, quote, match[1]):
                yield match.span(1)
            at = small.find(name_end + quote, match.end() - start if match else behind)


def _is_secret(small: bytes, name_end: int, quote: bytes, value: bytes) -> bool:
    """Whether the name that ends here says that the value is a secret."""
    name = small[max(0, name_end - _LONGEST_NAME) : name_end].rpartition(quote)[2]
    harmless = _HARMLESS.get(name)
    return _NAME.fullmatch(name) is not None and not (harmless and harmless.fullmatch(value))


def _each(beginning: bytes, pattern: re.Pattern[bytes], data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = data.find(beginning, start, end)
    while at >= 0:
        match = pattern.match(data, at, end)
        if match:
            yield match.span(pattern.groups)
        at = data.find(beginning, match.end() if match else at + len(beginning), end)


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
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
