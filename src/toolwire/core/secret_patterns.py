"""Finds text that looks like a key or a password, and removes it. `redact.py` removes credentials that are known."""

import re
import sys
from collections.abc import Iterable, Iterator

_VALUE = rb"(?:\\?[\"'])?([^\s\"'\\&;,(){}\[\]<>$`]{%d,})"
"""The value after an equals sign, with or without quotes. A value that begins with a dollar is a variable."""


def _make_key_row(beginning: bytes, rest: bytes) -> tuple[bytes, re.Pattern[bytes]]:
    """A vendor's key, at the beginning of a word."""
    return beginning, re.compile(rb"\b" + beginning + rest)


def _make_assignment_row(beginning: bytes, shortest: int) -> tuple[bytes, re.Pattern[bytes]]:
    """A value that is assigned to a name with this ending."""
    return beginning, re.compile(re.escape(beginning) + _VALUE % shortest)


_SECRETS = (
    (b"eyJ", re.compile(rb"(?<![\w-])eyJ[\w-]{10,}\.[\w-]+\.[\w-]+")),
    _make_key_row(b"sk-", rb"[\w-]{8,}"),
    _make_key_row(b"Bearer", rb"\s+[\w.~+/=-]{8,}"),
    _make_key_row(b"AKIA", rb"[0-9A-Z]{16}"),
    _make_key_row(b"AIza", rb"[\w-]{30,}"),
    _make_key_row(b"ya29.", rb"[\w-]{20,}"),
    *(
        _make_key_row(name, rb"\w{20,}")
        for name in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"gsk_", b"hf_")
    ),
    *(_make_key_row(name, rb"\w{10,}") for name in (b"sk_live_", b"sk_test_", b"rk_live_", b"rk_test_")),
    _make_key_row(b"glpat-", rb"[\w-]{16,}"),
    _make_key_row(b"xox", rb"[abprs]-[\w-]{10,}"),
    (
        b"-----BEGIN",
        re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-\"]|-(?!----))*(?:-----END [A-Z ]*PRIVATE KEY-----)?"),
    ),
    (b"://", re.compile(rb"://([^/\s\"\\@]+)(?=@)")),
    (b":\\/\\/", re.compile(rb":\\/\\/([^/\s\"\\@]+)(?=@)")),
)
"""Vendors' keys, tokens, private keys and the user of a URL, each with its beginning. Searching for the beginning is
many times faster than matching the pattern, and most texts have none. The cost is linear in the text."""
_NAMED_SECRETS = (
    (b"uthorization: ", re.compile(rb"uthorization: +(?i:basic|bearer|token|digest|apikey) +([^\s\"'\\]{6,})")),
    *((name, re.compile(name + rb" *([^\s\"'\\]{8,})")) for name in (b"pi-key: ", b"pi-Key: ", b"PI-Key: ")),
    (b"ookie: ", re.compile(rb"ookie: ([\w.-]+=[^\"'\\\r\n]{4,})")),
    *(_make_assignment_row(name, 8) for name in (b"SECRET=", b"TOKEN=", b"_KEY=", b"PASSWORD=", b"PASSWD=")),
    *(_make_assignment_row(name, 6) for name in (b"password=", b"passwd=", b"pwd=")),
    *(
        _make_assignment_row(name, 8)
        for name in (b"api_key=", b"apikey=", b"api-key=", b"secret=", b"access_token=", b"auth_token=")
    ),
    *(_make_assignment_row(mark + name, 8) for mark in (b"?", b"&") for name in (b"token=", b"key=", b"sig=")),
)
"""Header lines, variables and parameters that hold a secret according to their name."""
_NAMED_MARKS = (
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
"""Every named secret contains one of these, in lower case."""
_NAME_ENDS = (
    b"key", b"authorization", b"password", b"passwd", b"passphrase", b"pwd", b"secret", b"token", b"cookie",
    b"credentials",
)  # fmt: skip
"""Endings of the names of fields that hold a secret, in lower case."""
_NAME = re.compile(
    rb"[\w-]*(?:api|secret|access|private)[_-]?key|(?:proxy-)?authorization|[\w-]*pass(?:word|wd|phrase)|pwd"
    rb"|(?:[\w-]+[_-])?secret|client_?secret|[\w-]*(?:access|refresh|id|auth|session|bearer|csrf)[_-]?token"
    rb"|(?:set-)?cookie|credentials|token"
)
"""The names of fields that hold a secret."""
_MAX_NAME_CHARS = 100
_HARMLESS = {
    b"credentials": re.compile(rb"include|omit|same-origin"),
    b"token": re.compile(rb"\D*|[^A-Za-z]*|.{0,19}|.*[^\w.~+/=:-].*", re.DOTALL),
}
"""Values of such fields that are not secret: a fetch mode, and a piece of a model's text. A real token is long, has
letters and digits, and no space."""
_FIELDS = (
    (b'"', b'"', re.compile(rb'"\s*:\s*"((?:[^"\\]|\\.)+)')),
    (b'\\"', b'\\"', re.compile(rb'\\"\s*:\s*\\"((?:(?!(?<!\\)\\").)+)')),
    (b"':", b"'", re.compile(rb"'\s*:\s*'((?:[^'\\]|\\.)+)")),
)
"""Fields in JSON, in JSON inside a string, and as Python prints them: a mark of such a text, its quote, and a pattern
for the part after the name."""
_HEADERS = re.compile(rb'"headers"\s*+:\s*+\{(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_HEADER = re.compile(rb'(:\s*")(?:[^"\\]|\\.)*')
"""All headers that a client declares for an MCP server. The end of the object is not part of the pattern, so that
hostile text is not searched repeatedly."""

REMOVED = b"[removed]"
"""The replacement of a secret."""


def remove_secrets(data: bytes, secrets: tuple[bytes, ...] = ()) -> str:
    """The data as text, without these secrets or anything that looks like one."""
    return remove_spans(data, find_secret_spans(data, secrets)).decode("utf-8", "replace")


def find_secret_spans(
    data: bytes, secrets: tuple[bytes, ...] = (), start: int = 0, end: int = sys.maxsize
) -> list[tuple[int, int]]:
    """The spans of these secrets, and of anything that looks like one, in order and without overlaps.

    Only spans that begin and end within these bounds.
    """
    end = min(end, len(data))
    found: list[tuple[int, int]] = []
    for secret in secrets:
        at = data.find(secret, start, end)
        while at >= 0:
            found.append((at, at + len(secret)))
            at = data.find(secret, at + len(secret), end)
    for headers in _HEADERS.finditer(data, start, end):
        found += [(each.end(1), each.end()) for each in _HEADER.finditer(data, *headers.span())]
    lowered = data[start:end].lower()
    for mark, quote, rest in _FIELDS:
        if mark in lowered:
            found += _find_fields(data, lowered, start, end, quote, rest)
    kinds = (*_SECRETS, *_NAMED_SECRETS) if any(mark in lowered for mark in _NAMED_MARKS) else _SECRETS
    for beginning, pattern in kinds:
        at = data.find(beginning, start, end)
        while at >= 0:
            match = pattern.match(data, at, end)
            if match:
                found.append(match.span(pattern.groups))
            at = data.find(beginning, match.end() if match else at + len(beginning), end)
    return merge_spans(found)


def _find_fields(
    data: bytes, lowered: bytes, start: int, end: int, quote: bytes, rest: re.Pattern[bytes]
) -> Iterator[tuple[int, int]]:
    """The values of fields that hold a secret according to their name; `lowered` is the data within the bounds."""
    for name_end in _NAME_ENDS:
        at = lowered.find(name_end + quote)
        while at >= 0:
            behind = at + len(name_end)
            match = rest.match(data, start + behind, end)
            if match:
                name = lowered[max(0, behind - _MAX_NAME_CHARS) : behind].rpartition(quote)[2]
                harmless = _HARMLESS.get(name)
                if _NAME.fullmatch(name) and not (harmless and harmless.fullmatch(match[1])):
                    yield match.span(1)
            at = lowered.find(name_end + quote, match.end() - start if match else behind)


def merge_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, with overlapping ones merged."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def remove_spans(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """Replace each of these spans, which are in order, with a mark."""
    pieces: list[bytes] = []
    done = 0
    for start, end in spans:
        pieces += (data[done:start], REMOVED)
        done = end
    return b"".join((*pieces, data[done:])) if pieces else data
