"""Authenticates clients. Keys are compared in constant time; only their names reach the log."""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import parse_qs

import msgspec

from toolwire.config.settings import CONSOLE_NAME, Settings
from toolwire.core.errors import BadRequest
from toolwire.gateway.issued_keys import IssuedKeys, Unauthorized
from toolwire.gateway.limits import Meter, Meters
from toolwire.memory.store import IssuedKey
from toolwire.protocols import dialects
from toolwire.turns.grants import Grant
from toolwire.upstream.credentials import NO_KEY

CALLER = "toolwire.caller"
"""Scope key for the caller of a request that this process makes itself; clients cannot set it."""


class Caller(msgspec.Struct, frozen=True):
    """The key's name, and the key to pass on to a backend that has none of its own."""

    name: str = ""
    upstream_key: str = ""
    acts_for: str | None = None
    """The tenant for which this process makes the request itself: a replay of the console, or a recovered run."""
    grant: Grant | None = None
    """What it may use, if that is not everything."""
    meter: Meter | None = None
    """The limits of the key, if it has any."""
    is_issued: bool = False
    """Whether the key was issued, so that it may be revoked during a turn."""

    @property
    def owner(self) -> str:
        """The tenant id: the key's name, or a hash of the client's own key."""
        if self.acts_for is not None:
            return self.acts_for
        return self.name if self.name or not self.upstream_key else _hash_key(self.upstream_key)


@lru_cache(maxsize=256)
def _hash_key(key: str) -> str:
    return "key:" + hashlib.sha256(b"toolwire owner:" + key.encode()).hexdigest()[:32]


_NO_KEY_SENT = "This gateway needs a key of its own: send `Authorization: Bearer KEY` or `x-api-key: KEY`."
_UNKNOWN_KEY = "This gateway does not know the key that was sent. It needs one of its own [[keys]]"


class Keys:
    """The keys of the settings, issued keys, and those that the console makes, which `is_of_console` recognizes."""

    def __init__(
        self,
        settings: Settings,
        is_of_console: Callable[[bytes], bool] | None = None,
        issued: IssuedKeys | None = None,
    ) -> None:
        self._keys = [(key.name, form) for key in settings.keys for form in settings.key_forms(key)]
        self._is_open = not settings.needs_key
        self._admin_key = settings.admin_key.encode()
        self._is_of_console = is_of_console
        self._meters = Meters()
        self._callers = {
            key.name: Caller(key.name, meter=self._meters.find(key.name, key.limits)) for key in settings.keys
        }
        self.issued = issued

    def check(self, headers: Mapping[bytes, bytes], query: bytes = b"") -> Caller:
        """The caller of a request. Without keys every client is admitted with its own key. Raises `Unauthorized`."""
        presented = find_key(headers, query)
        if self._is_open:
            if presented == NO_KEY.encode():
                return Caller()
            try:
                return Caller(upstream_key=presented.decode())  # upstream headers are written as UTF-8
            except UnicodeDecodeError:
                return Caller(upstream_key=presented.decode("latin-1"))
        name = self.find_name(presented)
        if not name and self._is_of_console is not None and self._is_of_console(presented):
            name = CONSOLE_NAME
        if name:
            return self._callers.get(name) or Caller(name)
        if self.issued is not None and presented and (key := self.issued.find(presented)) is not None:
            return msgspec.structs.replace(_make_caller(key), meter=self._meters.find(key.name, key.limits))
        rest = " or one that was issued." if self.issued is not None else "."
        raise Unauthorized(_UNKNOWN_KEY + rest if presented else _NO_KEY_SENT)

    def act_for(self, name: str, owner: str) -> Caller:
        """The caller of a turn that the key of this name began. Raises `Unauthorized` if it is not valid now."""
        key = self.issued.find_by_name(name) if self.issued is not None else None
        return msgspec.structs.replace(_make_caller(key) if key is not None else Caller(name), acts_for=owner)

    def find_team(self, name: str) -> str:
        """The team of the key of this name, if it was issued for one."""
        return self.issued.find_team(name) if self.issued is not None else ""

    def is_admitted(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request needs no key, or has one of the settings."""
        presented = find_key(headers)
        return self._is_open or bool(self.find_name(presented)) or self.is_admin(presented)

    def check_operator(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `BadRequest` for a request about all clients that has no key, or an issued one."""
        if not self.is_admitted(headers) and self.check(headers).is_issued:
            raise BadRequest("An issued key may not see what concerns all clients.", code="forbidden", status=403)

    def is_admin(self, presented: bytes) -> bool:
        """Whether this is the key of the admin API."""
        return bool(self._admin_key) and hmac.compare_digest(presented, self._admin_key)

    def find_name(self, presented: bytes) -> str:
        """The name of a key of the settings, or an empty string."""
        found = ""
        for name, key in self._keys:
            if hmac.compare_digest(presented, key):
                found = name
        return found


def _make_caller(key: IssuedKey) -> Caller:
    grant = Grant(key.name, key.models, key.backends) if key.models or key.backends else None
    return Caller(key.name, grant=grant, is_issued=True)


def find_key(headers: Mapping[bytes, bytes], query: bytes = b"") -> bytes:
    """The key that a client sends, in any place where a dialect expects one; the placeholder if there is no other."""
    found = b""
    for found in _presented_keys(headers, query):
        if found != NO_KEY.encode():
            break
    return found


def _presented_keys(headers: Mapping[bytes, bytes], query: bytes) -> Iterator[bytes]:
    authorization = headers.get(b"authorization", b"")
    if authorization[:7].lower() == b"bearer ":
        yield authorization[7:].strip()
    places = dialects().values()
    for place in places:
        if place.key_header != b"authorization" and (key := headers.get(place.key_header)):
            yield key.strip()
    for place in places:
        if query and place.key_parameter and (keys := parse_qs(query.decode("latin-1")).get(place.key_parameter)):
            yield keys[0].strip().encode()
