"""Blanks credentials in what a server sends back.

Some servers repeat the key that they were sent: in error messages, in headers, in text. A key is found as it is, as
JSON and URLs write it, in base64 and in hexadecimal. A stage finds it in any chunking.

Nearly no chunk holds one, so each is only tested for a few fixed strings, one for each form: the longer they are, the
faster. The pattern that knows all spellings is used where one of them was found.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from html import escape
from urllib.parse import quote

import msgspec

from toolwire.core.cache import BoundedDict, size_of
from toolwire.core.recording import REMOVED

SHORTEST, SHORTEST_WORD = 8, 16
"""Characters from which a credential is blanked: with letters and digits, and without one of them, as placeholders such
as `lm-studio` and numbers are, which occur in texts too."""
LONGEST = 16 * 1024
"""Bytes of a credential that are looked at; a client may present as much as the headers of a request may have."""
LONGEST_PATTERN = 256
"""Bytes of a credential that a pattern spells out, because compiling it takes long; what follows goes with them."""
LONGEST_ANCHOR = 64
"""Most bytes of the strings that a chunk is tested for."""
BEGINNING = 8
"""Bytes by which the beginning of a credential is looked for at the end of a chunk."""
MOST_BEGINNINGS = 64
"""Places that are compared with a credential; a key of one repeated letter begins at every byte."""
_ESCAPES = (b"%", rb"\u00")
"""What hexadecimal digits of a byte stand behind in URLs and in JSON."""
_SPELLINGS = 36
"""How many times a credential is kept, in its spellings."""

_SECRET_WORDS = ("key", "auth", "token", "secret", "cookie", "password")
_PLAIN = re.compile(rb"[A-Za-z0-9]+")
"""What is usually written as it is, and what both alphabets of base64 have."""


def is_secret_name(name: str) -> bool:
    """Whether a header or a parameter holds a secret, by its name."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def credentials_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The credentials in headers: the values without the name of a scheme, the password of a login, each cookie."""
    found: list[str] = []
    for name, value in headers.items():
        if name.lower() == "cookie":
            found += (each.partition("=")[2].strip() for each in value.split(";"))
            continue
        scheme, _, token = value.strip().partition(" ")
        found.append(token.strip() or scheme)
        if scheme.lower() == "basic":
            with suppress(ValueError):
                found.append(base64.b64decode(token).decode().partition(":")[2])
    return tuple(found)


class Blanks:
    """Finds some credentials."""

    def __init__(self, credentials: Iterable[str]) -> None:
        self._secrets = {each.encode(errors="surrogateescape")[:LONGEST] for each in credentials if _is_long(each)}
        self._anchors: tuple[bytes, ...] = ()
        self._escapes: tuple[bytes, ...] = ()  # the beginnings of those of which every byte is escaped
        self._beginnings: tuple[bytes, ...] = ()
        for each in self._secrets:
            self._anchors += tuple(_anchors(each))
            self._escapes += tuple(_escape(digits, by) for digits in _in_hex(each[:4]) for by in _ESCAPES)
            self._beginnings += tuple(dict.fromkeys(_spellings(each)))
        self._last_bytes = frozenset(b"".join(each[:-1] for each in self._beginnings))

    def __bool__(self) -> bool:
        """Whether there is anything to find."""
        return bool(self._secrets)

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        """Matches every spelling, the longer ones first: a credential may be a part of another."""
        patterns = [pattern for each in self._secrets for pattern in _patterns(each)]
        return re.compile(b"|".join(sorted(patterns, key=len, reverse=True)))

    def clean(self, data: bytes) -> bytes:
        """The data without credentials."""
        return self._pattern.sub(REMOVED, data) if self._may_be_in(data) else data

    def _may_be_in(self, data: bytes) -> bool:
        for anchor in self._anchors:
            if anchor in data:
                return True
        return (b"%" in data or b"\\u00" in data) and any(escape in data for escape in self._escapes)

    def clean_text(self, text: str) -> str:
        """The text without credentials."""
        return self.clean(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    def cut(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a credential."""
        if not data or data[-1] not in self._last_bytes:
            return 0
        at = len(data) - max(_overlap(data, spelling) for spelling in self._beginnings)
        if at < len(data) and self._may_be_in(data):  # a whole one whose end is also the beginning of one is not cut
            at = next((found.start() for found in self._pattern.finditer(data) if found.start() < at < found.end()), at)
        return len(data) - at


_known: BoundedDict[tuple[str, ...], Blanks] = BoundedDict(lambda key, _: _SPELLINGS * size_of(key))


def blanks_for(credentials: tuple[str, ...]) -> Blanks:
    """Return what finds these credentials; the next requests are likely to be sent with them too."""
    blanks = _known.find(credentials)
    if blanks is None:
        blanks = Blanks(credentials)
        _known.keep(credentials, blanks)
    return blanks


class BlankCredentials:
    """A stage that blanks credentials in bytes. What may be the beginning of one waits for the next bytes."""

    def __init__(self, blanks: Blanks) -> None:
        self._blanks = blanks
        self._rest = b""

    @property
    def holds(self) -> bool:
        """Whether some bytes wait."""
        return bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """The bytes without credentials; what may be the beginning of one is held back."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        held = self._blanks.cut(data)
        if held:
            self._rest, data = data[-held:], data[:-held]
        return self._blanks.clean(data)

    def end(self) -> bytes:
        """What was held back."""
        rest, self._rest = self._rest, b""
        return self._blanks.clean(rest)


def _is_long(credential: str) -> bool:
    is_mixed = any(map(str.isdigit, credential)) and any(map(str.isalpha, credential))
    return len(credential) >= (SHORTEST if is_mixed else SHORTEST_WORD)


def _overlap(data: bytes, spelling: bytes) -> int:
    """How many bytes the data ends with that the spelling begins with, if that is not all of it."""
    beginning, start = spelling[:BEGINNING], max(0, len(data) - len(spelling) + 1)
    first = at = data.find(beginning, start)
    for _ in range(MOST_BEGINNINGS):
        if at < 0:
            lengths = range(min(BEGINNING, len(spelling), len(data) + 1) - 1, 0, -1)
            return next((length for length in lengths if data.endswith(beginning[:length])), 0)
        if spelling.startswith(data[at:]):
            return len(data) - at
        at = data.find(beginning, at + 1)
    return len(data) - first  # more than necessary, perhaps


def _in_base64(secret: bytes) -> Iterator[bytes]:
    """The digits of a secret in base64 that no neighbour changes, wherever in a group of three bytes it begins."""
    for before, first in enumerate((0, 2, 3)):
        digits = base64.b64encode(bytes(before) + secret)
        yield digits[first : (before + len(secret)) * 8 // 6]


def _patterns(secret: bytes) -> Iterator[bytes]:
    """Patterns for every spelling of a secret."""
    rest = rb"(?:[\w.~+/=%-]|\\/|\\u00\w\w)*" if len(secret) > LONGEST_PATTERN else b""
    secret = secret[:LONGEST_PATTERN]
    yield b"".join(map(_byte_pattern, secret)) + rest
    yield rb"(?i:%s)" % secret.hex().encode() + rest
    for digits in _in_base64(secret):
        found = re.escape(digits).replace(rb"\+", rb"(?:[+-]|(?i:%2b|\\u002b))")
        found = found.replace(b"/", rb"(?:\\?/|_|(?i:%2f|\\u002f))")
        yield found + (rest or rb"(?:=|(?i:%3d|\\u003d)){0,2}")


def _byte_pattern(byte: int) -> bytes:
    char = chr(byte)
    spellings = {bytes((byte,)), b"\\" + bytes((byte,))} if char in '"\\/' else {bytes((byte,))}
    if byte < 128:
        spellings.add(escape(char).encode())
    written = b"|".join(re.escape(each) for each in sorted(spellings, key=len, reverse=True))
    return rb"(?:%s|(?i:%%%02x|\\u00%02x))" % (written, byte, byte)


def _spellings(secret: bytes) -> Iterator[bytes]:
    """The usual spellings of a secret, of which a chunk may end with the beginning."""
    yield secret
    quoted = quote(secret, safe="")
    yield quoted.encode()
    yield re.sub(r"%..", lambda found: found[0].lower(), quoted).encode()
    with suppress(UnicodeDecodeError):
        text = secret.decode()
        written = msgspec.json.encode(text)[1:-1]
        yield from (written, written.replace(b"/", rb"\/"), escape(text).encode())
    for by, form in ((b"%", b"%02x"), (b"%", b"%02X"), (_ESCAPES[1], b"%02x")):
        yield re.sub(rb"[^A-Za-z0-9]", lambda found, by=by, form=form: by + form % found[0][0], secret)
    for each in _in_hex(secret):
        yield from (each, *(_escape(each, by) for by in _ESCAPES))
    for each in _in_base64(secret):
        yield from (each, each.translate(bytes.maketrans(b"+/", b"-_")))


def _anchors(secret: bytes) -> Iterator[bytes]:
    """Strings of which one is in every spelling of a secret, unless all of its bytes are escaped."""
    secret = secret[:LONGEST_PATTERN]
    yield _longest_plain(secret)[-LONGEST_ANCHOR:]  # keys of one vendor begin alike
    yield from (each[-LONGEST_ANCHOR:] for each in _in_hex(secret))
    yield from (_longest_plain(each)[-LONGEST_ANCHOR:] for each in _in_base64(secret))


def _longest_plain(text: bytes) -> bytes:
    return max(_PLAIN.findall(text), key=len, default=b"")


def _in_hex(secret: bytes) -> tuple[bytes, bytes]:
    digits = secret.hex().encode()
    return digits, digits.upper()


def _escape(digits: bytes, by: bytes) -> bytes:
    return b"".join(by + digits[at : at + 2] for at in range(0, len(digits), 2))
