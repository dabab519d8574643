"""The secrets that this gateway knows: they are removed from everything that the console keeps."""

import os
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import msgspec

from toolwire.turns.settings import Settings

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
    forms = {form for text in texts for form in (text.encode(errors="replace"), msgspec.json.encode(text)[1:-1])}
    return tuple(sorted((form for form in forms if len(form) >= SHORTEST_SECRET), key=len, reverse=True))


def _passwords(url: str) -> set[str]:
    """The password in a URL, as it stands there and as it is meant."""
    with suppress(ValueError):
        password = urlsplit(url).password or ""
        return {password, unquote(password)}
    return set()


def is_secret_name(name: str) -> bool:
    return any(word in name.lower() for word in ("key", "auth", "token", "secret", "cookie", "password"))
