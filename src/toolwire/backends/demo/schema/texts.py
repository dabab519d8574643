"""Strings for a schema: of its format, its pattern and its length."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time
from itertools import islice, zip_longest

from toolwire.adapt.schemas_walk import Schema
from toolwire.core import regex
from toolwire.core.regex import Budget

LONGEST = 64 * 1024
"""Most characters of a string that a schema can ask for."""

_SAMPLES = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    **dict.fromkeys(("email", "idn-email"), "demo@example.com"),
    **dict.fromkeys(("hostname", "idn-hostname"), "example.com"),
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    **dict.fromkeys(("uri", "url", "uri-reference", "iri", "iri-reference", "uri-template"), "https://example.com/"),
    "uuid": "6f1c0f0e-3f0b-4d6c-9a57-1f1f3c2b7a10",
    "json-pointer": "/demo",
    "relative-json-pointer": "0",
    "regex": "demo",
}


def _written(pattern: str, read: Callable[[str], object] = str) -> Callable[[str], bool]:
    """Whether a text is written like this, and can be read."""
    whole = re.compile(pattern, re.ASCII).fullmatch

    def is_read(text: str) -> bool:
        try:
            return whole(text) is not None and read(text) is not None
        except ValueError:
            return False

    return is_read


_ZONE = r"(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_READERS: dict[str, Callable[[str], bool]] = {
    "date": _written(r"\d{4}-\d\d-\d\d", date.fromisoformat),
    "date-time": _written(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d{_ZONE}", datetime.fromisoformat),
    "time": _written(rf"\d\d:\d\d:\d\d{_ZONE}", time.fromisoformat),
    "email": _written(rf"[\w.+-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{1,8}}"),
    "hostname": _written(rf"{_LABEL}(?:\.{_LABEL}){{1,8}}"),
    "ipv4": _written(rf"{_OCTET}(?:\.{_OCTET}){{3}}"),
    "uri": _written(r"[A-Za-z][A-Za-z0-9+.-]{1,20}:[^\s\"<>\\^`{|}]+"),
    "uuid": _written(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
}
_READERS_ALIKE = {"idn-email": "email", "idn-hostname": "hostname", "url": "uri", "iri": "uri"}


def has_format(text: str, format: str) -> bool:
    """Whether a text of the prompt has a format; of those that are not read here only our own samples do."""
    if format not in _SAMPLES:
        return True
    reader = _READERS.get(_READERS_ALIKE.get(format, format))
    return text == _SAMPLES[format] or bool(reader is not None and reader(text))


def strings(schema: Schema, suggested: Sequence[str], shortest: int, longest: int, budget: Budget) -> Iterator[str]:
    """Strings that may fit, each once: those that are suggested, some of the format and the pattern, any others."""
    seen: set[str] = set()
    for text in _texts(schema, suggested, shortest, budget):
        padded = text + "." * (min(shortest, LONGEST) - len(text))
        for each in (text, padded[:longest]):
            if each not in seen and len(each) <= longest:
                seen.add(each)
                yield each


def _texts(schema: Schema, suggested: Sequence[str], shortest: int, budget: Budget) -> Iterator[str]:
    formats = [format for format in schema.get("format", ()) if format in _SAMPLES]
    if formats:
        yield from (text for text in suggested if all(has_format(text, format) for format in formats))
        yield from (_SAMPLES[format] for format in formats)
    yield from suggested
    nodes = [node for pattern in schema.get("pattern", ()) if (node := regex.read(pattern)) is not None]
    for texts in zip_longest(*(regex.texts(node, min(shortest, regex.LONGEST), budget) for node in nodes)):
        yield from (text for text in texts if text is not None)
    bases = [text for node in nodes for text in islice(regex.texts(node, 0, budget), 1)]
    yield from (f"{base}{number}" for number in range(1, 17) for base in bases)
    yield from (f"{number or ''}demo" for number in range(64))
