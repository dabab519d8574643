"""Blanks our own credentials in a server's reply.

Some servers repeat the key that they received, in error messages, headers or text. It is found unescaped, escaped as in
JSON, HTML and URLs, in base64 and in hexadecimal, and in any chunking.

Few chunks hold one, so each chunk is first searched for a few fixed strings, the anchors: one for each form. The
pattern of all spellings is used only if an anchor was found.
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
from toolwire.core.secret_patterns import REMOVED

MIN_MIXED_CHARS, MIN_PLAIN_CHARS = 8, 16
"""Minimum length of a credential with both letters and digits, and of any other: numbers, and placeholders such as
`lm-studio`, occur in other text too."""
MAX_CREDENTIAL_BYTES = 16 * 1024
"""Bytes of a credential that are searched for; a client's headers may hold more."""
MAX_PATTERN_BYTES = 256
"""Bytes of a credential in the pattern, which is slow to compile. The rest of a longer credential is blanked too."""
MAX_ANCHOR_BYTES = 64
PREFIX_BYTES = 8
"""Bytes of a credential that are searched for at the end of a chunk."""
MAX_PREFIX_MATCHES = 64
"""Maximum offsets that are compared with a credential; a key of one repeated letter matches at every byte."""
_ESCAPES = (b"%", rb"\u00")
"""The escapes before the hexadecimal digits of a byte, in URLs and in JSON."""
_SPELLINGS = 36
"""Number of spellings of a credential, for the size of a cached filter."""

_SECRET_WORDS = ("key", "auth", "token", "secret", "cookie", "password")
_PLAIN = re.compile(rb"[A-Za-z0-9]+")
"""Characters that are rarely escaped and that occur in both base64 alphabets."""


def is_secret_name(name: str) -> bool:
    """Whether a header or a parameter holds a secret, by its name."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def find_credentials(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The credentials in headers: values without their scheme, the password of basic authentication, each cookie."""
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


class CredentialFilter:
    """Finds and blanks these credentials."""

    def __init__(self, credentials: Iterable[str]) -> None:
        self._secrets: set[bytes] = set()
        for each in credentials:
            is_mixed = any(map(str.isdigit, each)) and any(map(str.isalpha, each))
            if len(each) >= (MIN_MIXED_CHARS if is_mixed else MIN_PLAIN_CHARS):
                self._secrets.add(each.encode(errors="surrogateescape")[:MAX_CREDENTIAL_BYTES])
        self._anchors: tuple[bytes, ...] = ()
        self._escapes: tuple[bytes, ...] = ()  # the beginnings of credentials with every byte escaped
        self._beginnings: tuple[bytes, ...] = ()
        for each in self._secrets:
            self._anchors += tuple(_find_anchors(each))
            self._escapes += tuple(_escape(digits, by) for digits in _encode_hex(each[:4]) for by in _ESCAPES)
            self._beginnings += tuple(dict.fromkeys(_list_spellings(each)))
        self._last_bytes = frozenset(b"".join(each[:-1] for each in self._beginnings))

    def __bool__(self) -> bool:
        """Whether there is anything to find."""
        return bool(self._secrets)

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        """Matches every spelling, longer ones first, because a credential may be part of another."""
        patterns = [pattern for each in self._secrets for pattern in _make_patterns(each)]
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

    def measure_beginning(self, data: bytes) -> int:
        """The number of bytes at the end that may be the beginning of a credential."""
        if not data or data[-1] not in self._last_bytes:
            return 0
        at = len(data) - max(_measure_overlap(data, spelling) for spelling in self._beginnings)
        if at < len(data) and self._may_be_in(data):  # do not cut a whole credential
            at = next((found.start() for found in self._pattern.finditer(data) if found.start() < at < found.end()), at)
        return len(data) - at


_known: BoundedDict[tuple[str, ...], CredentialFilter] = BoundedDict(lambda key, _: _SPELLINGS * size_of(key))


def find_filter(credentials: tuple[str, ...]) -> CredentialFilter:
    """The filter of these credentials, cached because the next requests are likely to use them too."""
    known = _known.find(credentials)
    if known is None:
        known = CredentialFilter(credentials)
        _known.keep(credentials, known)
    return known


class BlankCredentials:
    """A stage that blanks credentials in bytes. A possible beginning of one is held back until the next bytes."""

    def __init__(self, filter: CredentialFilter) -> None:
        self._filter = filter
        self._rest = b""

    @property
    def holds(self) -> bool:
        """Whether bytes are held back."""
        return bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """The bytes without credentials; a possible beginning of one is held back."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        held = self._filter.measure_beginning(data)
        if held:
            self._rest, data = data[-held:], data[:-held]
        return self._filter.clean(data)

    def end(self) -> bytes:
        """The bytes that were held back."""
        rest, self._rest = self._rest, b""
        return self._filter.clean(rest)


def _measure_overlap(data: bytes, spelling: bytes) -> int:
    """The length of the end of the data that is a proper prefix of the spelling."""
    beginning, start = spelling[:PREFIX_BYTES], max(0, len(data) - len(spelling) + 1)
    first = at = data.find(beginning, start)
    for _ in range(MAX_PREFIX_MATCHES):
        if at < 0:
            lengths = range(min(PREFIX_BYTES, len(spelling), len(data) + 1) - 1, 0, -1)
            return next((length for length in lengths if data.endswith(beginning[:length])), 0)
        if spelling.startswith(data[at:]):
            return len(data) - at
        at = data.find(beginning, at + 1)
    return len(data) - first  # may be more than necessary


def _encode_base64(secret: bytes) -> Iterator[bytes]:
    """The base64 digits of a secret that its neighbours do not change, for each offset in a group of three bytes."""
    for before, first in enumerate((0, 2, 3)):
        digits = base64.b64encode(bytes(before) + secret)
        yield digits[first : (before + len(secret)) * 8 // 6]


def _make_patterns(secret: bytes) -> Iterator[bytes]:
    """Patterns for every spelling of a secret."""
    rest = rb"(?:[\w.~+/=%-]|\\/|\\u00\w\w)*" if len(secret) > MAX_PATTERN_BYTES else b""
    secret = secret[:MAX_PATTERN_BYTES]
    pattern = b""
    for byte in secret:
        char = bytes((byte,))
        spellings = {char, b"\\" + char} if char in b'"\\/' else {char}
        if byte < 128:
            spellings.add(escape(chr(byte)).encode())
        written = b"|".join(re.escape(each) for each in sorted(spellings, key=len, reverse=True))
        pattern += rb"(?:%s|(?i:%%%02x|\\u00%02x))" % (written, byte, byte)
    yield pattern + rest
    yield rb"(?i:%s)" % secret.hex().encode() + rest
    for digits in _encode_base64(secret):
        found = re.escape(digits).replace(rb"\+", rb"(?:[+-]|(?i:%2b|\\u002b))")
        found = found.replace(b"/", rb"(?:\\?/|_|(?i:%2f|\\u002f))")
        yield found + (rest or rb"(?:=|(?i:%3d|\\u003d)){0,2}")


def _list_spellings(secret: bytes) -> Iterator[bytes]:
    """The usual spellings of a secret; a chunk may end with the beginning of one."""
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
    for each in _encode_hex(secret):
        yield from (each, *(_escape(each, by) for by in _ESCAPES))
    for each in _encode_base64(secret):
        yield from (each, each.translate(bytes.maketrans(b"+/", b"-_")))


def _find_anchors(secret: bytes) -> Iterator[bytes]:
    """Strings such that every spelling of a secret contains one of them, unless all its bytes are escaped."""
    secret = secret[:MAX_PATTERN_BYTES]
    yield _find_longest_plain(secret)[-MAX_ANCHOR_BYTES:]  # keys of one vendor begin alike
    yield from (each[-MAX_ANCHOR_BYTES:] for each in _encode_hex(secret))
    yield from (_find_longest_plain(each)[-MAX_ANCHOR_BYTES:] for each in _encode_base64(secret))


def _find_longest_plain(text: bytes) -> bytes:
    return max(_PLAIN.findall(text), key=len, default=b"")


def _encode_hex(secret: bytes) -> tuple[bytes, bytes]:
    digits = secret.hex().encode()
    return digits, digits.upper()


def _escape(digits: bytes, by: bytes) -> bytes:
    return b"".join(by + digits[at : at + 2] for at in range(0, len(digits), 2))
