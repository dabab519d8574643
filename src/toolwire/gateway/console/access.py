"""Who may look at the console: whoever has the token of this machine's user, or a key that the settings allow it.

The token is in a file that only its owner may read. A browser that brings the token or a key gets a cookie in return:
who it is, until when, and a signature made with the token. All processes of the user know the token, so the cookie is
good in each of them, and nothing has to be kept.
"""

import base64
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from toolwire.config.settings import Server, Settings
from toolwire.core.errors import Failure
from toolwire.gateway.guard import host_name
from toolwire.gateway.keys import Keys, presented_key
from toolwire.memory.private_files import make_folders, make_private_file, read_file, state_folder

NAME = "console-token"
SECONDS = 12 * 3600
"""How long a browser is let in without the token."""
OWN_SECONDS = 1800
"""How long a key is good that a gateway makes for itself."""
MOST_COOKIES = 100
_OWN = "toolwire-own-"
_OWNER_OF_TOKEN = "*"
"""In a cookie: whoever had the token. No key has this name, for names of keys are encoded."""


class Viewer(msgspec.Struct, frozen=True):
    """Somebody who may look."""

    key: str = ""
    """The name of their key; empty with the token."""
    sees_all: bool = False
    by_cookie: bool = False

    def sees(self, key: str) -> bool:
        """Whether the turns of this key are shown."""
        return self.sees_all or key == self.key


@lru_cache(maxsize=1)
def load_token() -> str:
    """The token of this user, made if there is none. One that cannot be kept is good for this process and those that
    it forks."""
    folder = state_folder()
    path = folder / NAME
    with suppress(OSError):
        make_folders(folder)
        _make(path)
        found = path.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            token = read_file(path).decode("ascii", "ignore").strip()
            if len(token) >= 32:
                return token
    return secrets.token_urlsafe(32)


def console_line(settings: Settings, address: str) -> str:
    """What is said of the console when a gateway is ready; empty if it is switched off."""
    return f"toolwire: console {address}/?token={load_token()}" if settings.console.enabled else ""


def _make(path: Path) -> None:
    """Write a new token, unless there is one. It appears whole: several processes may look at once."""
    if path.exists():
        return
    mine = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = make_private_file(mine, os.O_WRONLY | os.O_EXCL)
    try:
        os.write(descriptor, f"{secrets.token_urlsafe(32)}\n".encode())
    finally:
        os.close(descriptor)
    try:
        with suppress(FileExistsError):
            os.link(mine, path)
    finally:
        mine.unlink()


class Access:
    """Lets people in."""

    def __init__(self, settings: Settings, keys: Keys, token: str) -> None:
        self._settings = settings
        self._keys = keys
        self._token = token.encode()
        own = {origin.lower() for origin in settings.server.origins} - {*Server().origins}
        self._origins = frozenset(origin for origin in own if origin.startswith(("http://", "https://")))

    def by_token(self, secret: str) -> Viewer | None:
        """Who brings this token."""
        given = secret.strip().encode(errors="replace")
        return Viewer(sees_all=True) if given and hmac.compare_digest(given, self._token) else None

    def by_secret(self, secret: str) -> Viewer | None:
        """Who brings this token or key."""
        given = secret.strip().encode(errors="replace")
        return self.by_token(secret) or (self._by_key(self._keys.name_of(given)) if given else None)

    def viewer(self, headers: Mapping[bytes, bytes], port: int) -> Viewer | None:
        """Who asks, by header or by cookie."""
        given = presented_key(headers)
        if given:
            return self.by_secret(given.decode("latin-1"))
        return self._by_cookie(headers.get(b"cookie", b"").decode("latin-1"), port)

    def cookie(self, viewer: Viewer, port: int) -> str:
        """The name and value of the cookie for a browser that was let in."""
        who = _OWNER_OF_TOKEN if not viewer.key else _encoded(viewer.key)
        said = f"{who}.{int(time.time()) + SECONDS}"
        return f"{cookie_name(port)}={said}.{self._signature(said, port)}"

    def _by_cookie(self, text: str, port: int) -> Viewer | None:
        for value in _cookies_in(text, cookie_name(port)):
            said, _, signature = value.rpartition(".")
            if said and hmac.compare_digest(signature.encode(), self._signature(said, port).encode()):
                return self._signed_in(said)
        return None

    def _signed_in(self, said: str) -> Viewer | None:
        who, _, until = said.partition(".")
        if int(until) < time.time():
            return None
        viewer = Viewer(sees_all=True) if who == _OWNER_OF_TOKEN else self._by_key(_decoded(who))
        return msgspec.structs.replace(viewer, by_cookie=True) if viewer is not None else None

    def own_key(self) -> str:
        """A key with which this gateway may ask itself for a while; every process of it knows it."""
        until = f"{int(time.time()) + OWN_SECONDS}"
        return f"{_OWN}{until}.{self._signed('own:' + until)}"

    def is_own_key(self, presented: bytes) -> bool:
        """Whether a key is one of those."""
        text = presented.decode("latin-1")
        until, _, signature = text.removeprefix(_OWN).partition(".")
        if not text.startswith(_OWN) or not hmac.compare_digest(
            signature.encode(), self._signed(f"own:{until}").encode()
        ):
            return False
        return int(until) >= time.time()

    def foreign_post(self, headers: Mapping[bytes, bytes], viewer: Viewer) -> Failure | None:
        """Why a request that changes something is not carried out: a cookie comes along whatever page asks."""
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if origin:
            scheme, _, named = origin.partition("://")
            is_own = scheme in ("http", "https") and bool(host_name(host)) and named == host
            if is_own or origin in self._origins:
                return None
        elif not viewer.by_cookie:
            return None  # a program that sends a key in a header
        message = "Only the console's own page may ask for this. Behind a proxy server.origins must list its address."
        return Failure(403, "forbidden", message)

    def _by_key(self, name: str) -> Viewer | None:
        for key in self._settings.keys:
            if key.name == name and key.console:
                return Viewer(name, sees_all=key.console == "all")
        return None

    def _signature(self, said: str, port: int) -> str:
        """Good for one port, and as long as the key stays the same."""
        name = _decoded(said.partition(".")[0])
        values = [
            self._settings.key_of(key).encode(errors="replace") for key in self._settings.keys if key.name == name
        ]
        digest = hashlib.sha256(b"".join(values)).hexdigest()
        return self._signed(f"{port}:{digest}:{said}")

    def _signed(self, said: str) -> str:
        return hmac.new(self._token, b"console:" + said.encode(), hashlib.sha256).hexdigest()


def _cookies_in(text: str, name: str) -> Iterator[str]:
    """The values of cookies of this name; a page on another port of the host may have set one too."""
    for each in text.split(";")[:MOST_COOKIES]:
        found, _, value = each.strip().partition("=")
        if found == name:
            yield value


def cookie_name(port: int) -> str:
    """Cookies are shared by all ports of a host, so each gateway has one of its own."""
    return f"toolwire_console_{port}"


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return ""
