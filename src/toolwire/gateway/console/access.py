"""Authentication of viewers: by this user's token, or by a key whose settings allow it.

The token is in a file that only its owner may read. A browser that presents the token or a key gets a cookie: the
viewer, an expiry time, and a signature made with the token. All processes of the user know the token, so each of them
accepts the cookie, and no session has to be stored.
"""

import base64
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

import msgspec

from toolwire.config.settings import Server, Settings
from toolwire.core.errors import BadRequest
from toolwire.gateway.keys import Keys, find_key
from toolwire.gateway.origin_check import host_name
from toolwire.memory.private_files import find_state_folder, make_folders, open_private, read_file

TOKEN_FILE = "console-token"
MIN_TOKEN_LENGTH = 32
COOKIE_SECONDS = 12 * 3600
"""How long a cookie is valid."""
OWN_KEY_SECONDS = 1800
"""How long a key that the gateway makes for itself is valid."""
MAX_COOKIES = 100
"""Maximum number of cookies of one request that are checked."""
_OWN_KEY = "toolwire-own-"
_TOKEN_HOLDER = "*"
"""Stands for the holder of the token in a cookie. A key's name cannot equal it, because names are base64-encoded."""


class Viewer(msgspec.Struct, frozen=True):
    """An authenticated user of the console."""

    key: str = ""
    """The name of the viewer's key; empty with the token."""
    sees_all: bool = False
    by_cookie: bool = False

    def sees(self, key: str) -> bool:
        """Whether the turns of this key are shown."""
        return self.sees_all or key == self.key


@lru_cache(maxsize=1)
def load_token() -> str:
    """The token of this user, created if there is none. If it cannot be stored, it is valid only in this process
    and its children."""
    folder = find_state_folder()
    path = folder / TOKEN_FILE
    with suppress(OSError):
        make_folders(folder)
        if not path.exists():
            # Several processes may do this at once: the file appears complete, and the first one wins.
            own = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
            try:
                with open_private(own, "w") as file:
                    file.write(f"{secrets.token_urlsafe(32)}\n".encode())
                with suppress(FileExistsError):
                    os.link(own, path)
            finally:
                own.unlink(missing_ok=True)
        found = path.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            token = read_file(path).decode("ascii", "ignore").strip()
            if len(token) >= MIN_TOKEN_LENGTH:
                return token
    return secrets.token_urlsafe(32)


def make_console_line(settings: Settings, address: str) -> str:
    """The line with the console's link that a ready gateway prints; empty if the console is switched off."""
    return f"toolwire: console {address}/?token={load_token()}" if settings.console.enabled else ""


def cookie_name(port: int) -> str:
    """The name of a gateway's cookie. It has the port, because all ports of a host share cookies."""
    return f"toolwire_console_{port}"


class Access:
    """Recognises viewers."""

    def __init__(self, settings: Settings, keys: Keys, token: str) -> None:
        self._settings = settings
        self._keys = keys
        self._token = token.encode()
        own = {origin.lower() for origin in settings.server.origins} - {*Server().origins}
        self._origins = frozenset(origin for origin in own if origin.startswith(("http://", "https://")))

    def find_by_token(self, secret: bytes) -> Viewer | None:
        """The viewer who presents this token."""
        given = secret.strip()
        return Viewer(sees_all=True) if given and hmac.compare_digest(given, self._token) else None

    def find_by_secret(self, secret: bytes) -> Viewer | None:
        """The viewer who presents this token or key."""
        given = secret.strip()
        return self.find_by_token(secret) or (self._find_by_name(self._keys.find_name(given)) if given else None)

    def find_viewer(self, headers: Mapping[bytes, bytes], port: int) -> Viewer | None:
        """The viewer behind a request, by header or by cookie."""
        given = find_key(headers)
        if given:
            return self.find_by_secret(given)
        # A page on another port of the host may have set a cookie of the same name, so each is tried.
        for each in headers.get(b"cookie", b"").decode("latin-1").split(";")[:MAX_COOKIES]:
            name, _, value = each.strip().partition("=")
            claims, _, signature = value.rpartition(".")
            if name != cookie_name(port) or not claims:
                continue
            if hmac.compare_digest(signature.encode(), self._sign_cookie(claims, port).encode()):
                who, _, until = claims.partition(".")
                if int(until) < time.time():
                    continue
                viewer = Viewer(sees_all=True) if who == _TOKEN_HOLDER else self._find_by_name(_decode_name(who))
                if viewer is not None:
                    return msgspec.structs.replace(viewer, by_cookie=True)
        return None

    def make_cookie(self, viewer: Viewer, port: int) -> str:
        """The name and value of a cookie for a viewer."""
        name = base64.urlsafe_b64encode(viewer.key.encode()).decode().rstrip("=")
        claims = f"{name or _TOKEN_HOLDER}.{int(time.time()) + COOKIE_SECONDS}"
        return f"{cookie_name(port)}={claims}.{self._sign_cookie(claims, port)}"

    def make_own_key(self) -> str:
        """A short-lived key for this gateway's requests to itself, valid in all its processes."""
        until = int(time.time()) + OWN_KEY_SECONDS
        return f"{_OWN_KEY}{until}.{_sign(self._token, f'own:{until}')}"

    def check_origin(self, headers: Mapping[bytes, bytes], viewer: Viewer) -> None:
        """Raise `BadRequest` if another page sent this POST (CSRF): browsers add the cookie to it."""
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if origin:
            scheme, _, named = origin.partition("://")
            is_own = scheme in ("http", "https") and bool(host_name(host)) and named == host
            if is_own or origin in self._origins:
                return
        elif not viewer.by_cookie:
            return  # a program that sends a key in a header
        message = "Only the console's own page may send this. Behind a proxy, list its address in server.origins."
        raise BadRequest(message, code="forbidden", status=403)

    def _find_by_name(self, name: str) -> Viewer | None:
        for key in self._settings.keys:
            if key.name == name and key.console:
                return Viewer(name, sees_all=key.console == "all")
        return None

    def _sign_cookie(self, claims: str, port: int) -> str:
        """A signature for one port, valid while the key stays the same."""
        name = _decode_name(claims.partition(".")[0])
        values = [self._settings.key_of(key) for key in self._settings.keys if key.name == name]
        digest = hashlib.sha256("".join(values).encode(errors="replace")).hexdigest()
        return _sign(self._token, f"{port}:{digest}:{claims}")


def _sign(token: bytes, text: str) -> str:
    return hmac.new(token, b"console:" + text.encode(), hashlib.sha256).hexdigest()


def is_own_key(token: str, presented: bytes) -> bool:
    """Whether `Access.make_own_key` made this key with the token, and it has not expired."""
    text = presented.decode("latin-1")
    until, _, signature = text.removeprefix(_OWN_KEY).partition(".")
    is_signed = hmac.compare_digest(signature.encode(), _sign(token.encode(), f"own:{until}").encode())
    return text.startswith(_OWN_KEY) and is_signed and int(until) >= time.time()


def _decode_name(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return ""
