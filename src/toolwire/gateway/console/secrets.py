"""The secrets that this gateway knows, and the removal of these and others from everything that the console shows."""

import base64
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from urllib.parse import quote, unquote, urlsplit

import msgspec

from toolwire.config.settings import Settings
from toolwire.core.redact import is_secret_name
from toolwire.core.secret_patterns import find_secret_spans, merge_spans, remove_spans

MIN_SECRET_SIZE = 4
"""Minimum bytes of a key that is searched for."""
SLICE = 64 * 1024
"""Bytes that are searched at a time, so that a thread does not hold the interpreter's lock for long."""
MAX_SECRET_SIZE = 16 * 1024
"""Maximum bytes of a secret and its name. A longer one is removed up to the end of its JSON string."""
MAX_NAME_SIZE = 1024
"""Bytes between the beginning of a value's name and the value."""
MAX_SPANS = 10_000
"""Secrets of a text above which all of it is removed: real texts have fewer, and replacing them takes long."""
_IN_STRING = re.compile(rb'(?:[^"\\]|\\.)+', re.DOTALL)


def redact(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """The data without these secrets and without anything that looks like one, as in recordings."""
    return remove_spans(data, find_secrets(data, secrets))


def redact_text(text: str, secrets: tuple[bytes, ...]) -> str:
    """A short text without secrets."""
    data = text.encode(errors="replace")
    return remove_spans(data, find_secret_spans(data, secrets)).decode(errors="replace")


def find_secrets(data: bytes, secrets: tuple[bytes, ...]) -> list[tuple[int, int]]:
    """The spans of all secrets, in order.

    The search goes slice by slice. It looks beyond the end of a slice, so that no secret is cut in two, and a little
    before its beginning, so that no long value is separated from its name.
    """
    found: list[tuple[int, int]] = []
    start = 0
    while start < len(data):
        next_start = start + SLICE
        end = min(next_start + MAX_SECRET_SIZE, len(data))
        spans = find_secret_spans(data, secrets, max(0, start - MAX_NAME_SIZE), end)
        is_cut = end < len(data) and spans and spans[-1][1] >= end - 1  # or it ends before an escape
        if is_cut and spans[-1][0] < next_start:
            begin, at = spans[-1]
            while match := _IN_STRING.match(data, at, at + SLICE):
                at = match.end()
            spans.append((begin, at))
            next_start = max(next_start, at)
        found += spans
        start = next_start
        if len(found) > MAX_SPANS:
            return [(0, len(data))]
    return merge_spans(found)


def collect_secrets(settings: Settings, token: str) -> tuple[bytes, ...]:
    """Every key and password in the settings and their environment variables, in each form that a body may have it.

    Args:
        settings: The gateway's settings.
        token: The console's token.
    """
    texts = {os.environ.get(name, "") for name in settings.secret_variables}
    texts |= {settings.key_of(key) for key in settings.keys} | {token}
    backends = settings.backends
    for url in (settings.store.url, os.environ.get(settings.store.url_env, ""), *(each.base_url for each in backends)):
        texts |= _find_passwords(url)
    for backend in backends:
        given = (*backend.headers.items(), *backend.query.items())
        texts |= {value for name, value in given if is_secret_name(name)}
    forms = {form for text in texts for form in _list_forms(text)}
    return tuple(sorted((form for form in forms if len(form) >= MIN_SECRET_SIZE), key=len, reverse=True))


def _list_forms(text: str) -> Iterator[bytes]:
    """A secret as it is, as several libraries write it in JSON, in a URL, and in HTML."""
    yield text.encode(errors="replace")
    yield quote(text, safe="").encode()
    yield escape(text).encode(errors="replace")
    written = msgspec.json.encode(text)[1:-1].decode()
    yield written.encode()
    yield written.replace("/", "\\/").encode()
    for case in ("04x", "04X"):
        for escaped in (r"[+&<>'=/]", r"[+&<>']"):
            yield re.sub(escaped, lambda found, case=case: f"\\u{ord(found[0]):{case}}", written).encode()


def _find_passwords(url: str) -> set[str]:
    """The password in a URL: as written, decoded, and as a header has it."""
    with suppress(ValueError):
        found = urlsplit(url)
        user, password = found.username or "", found.password or ""
        login = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if password else ""
        return {password, unquote(password), login}
    return set()
