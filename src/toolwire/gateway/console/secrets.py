"""The secrets that this gateway knows: they are removed from everything that the console keeps."""

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

SHORTEST_SECRET = 4
"""Bytes from which a key is looked for in what was said."""


def known_secrets(settings: Settings, token: str) -> tuple[bytes, ...]:
    """Every key that this gateway knows, as it may stand in a body."""
    texts = {os.environ.get(name, "") for name in settings.secret_variables}
    texts |= {settings.key_of(key) for key in settings.keys} | {token}
    for url in (
        settings.store.url,
        os.environ.get(settings.store.url_env, ""),
        *(each.base_url for each in settings.backends),
    ):
        texts |= _passwords(url)
    for backend in settings.backends:
        texts |= {value for name, value in backend.headers.items() if is_secret_name(name)}
        texts |= {value for name, value in backend.query.items() if is_secret_name(name)}
    forms = {form for text in texts for form in _forms(text)}
    return tuple(sorted((form for form in forms if len(form) >= SHORTEST_SECRET), key=len, reverse=True))


def _forms(text: str) -> Iterator[bytes]:
    """A secret as it may stand in a body: as it is, in JSON as several libraries write it, in a URL, and in a page."""
    yield text.encode(errors="replace")
    yield quote(text, safe="").encode()
    yield escape(text).encode(errors="replace")
    written = msgspec.json.encode(text)[1:-1].decode()
    yield written.encode()
    yield written.replace("/", "\\/").encode()
    for case in ("04x", "04X"):
        yield re.sub(r"[+&<>'=/]", lambda found, case=case: f"\\u{ord(found[0]):{case}}", written).encode()
        yield re.sub(r"[+&<>']", lambda found, case=case: f"\\u{ord(found[0]):{case}}", written).encode()


def _passwords(url: str) -> set[str]:
    """The password in a URL, as it stands there, as it is meant, and as a header has it."""
    with suppress(ValueError):
        found = urlsplit(url)
        user, password = found.username or "", found.password or ""
        login = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if password else ""
        return {password, unquote(password), login}
    return set()
