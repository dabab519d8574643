"""Which hosts and web pages may ask a gateway without keys.

A page on any web site can send requests to an address of the machine its browser runs on, also under a name of its own
that resolves to that address. Without keys the headers `Host` and `Origin` are all that tells such a page from the
user's own programs, so both must be known. With keys the key decides, and a page may have one.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from operator import itemgetter

from toolwire.config.settings import Settings, is_loopback
from toolwire.core.errors import Failure
from toolwire.gateway.http import EXPOSED, Headers

_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]{0,5})?")
_LONGEST = 300
"""Bytes of a host or an origin that can be our own, and of one that a refusal repeats."""

_name_of = itemgetter(0)

_EXPOSED = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())
_ANY_ORIGIN = ((b"access-control-allow-origin", b"*"), _EXPOSED)


class OriginCheck:
    """Looks at every request, upgrade and preflight before anything else does."""

    def __init__(self, settings: Settings) -> None:
        self.has_keys = bool(settings.keys)
        self._hosts = frozenset(map(host_name, settings.server.hosts))
        self._origins = frozenset(origin.lower() for origin in settings.server.origins)
        self._is_own_host = lru_cache(maxsize=256)(self._find_host)
        self._is_own_origin = lru_cache(maxsize=256)(self._find_origin)

    def _find_host(self, value: bytes) -> bool:
        name = host_name(value.decode("latin-1"))
        return is_loopback(name) or name in self._hosts

    def _find_origin(self, value: bytes) -> bool:
        origin = value.decode("latin-1").lower()
        scheme, _, host = origin.partition("://")
        return origin in self._origins or (scheme in ("http", "https") and is_loopback(host_name(host)))

    def refusal(self, headers: Headers) -> Failure | None:
        """Why a request is not answered, or None if it is."""
        if self.has_keys:
            return None
        given = dict(headers)
        host, origin = given.get(b"host"), given.get(b"origin")
        if host is not None and (len(host) > _LONGEST or not self._is_own_host(host)):
            return _foreign("Host", host, "server.hosts")
        if origin is not None and (len(origin) > _LONGEST or not self._is_own_origin(origin)):
            return _foreign("Origin", origin, "server.origins")
        names = list(map(_name_of, headers))
        if names.count(b"host") != 1:
            return _unclear("Host", names.count(b"host"), "server.hosts")
        if origin is not None and names.count(b"origin") > 1:
            return _unclear("Origin", 2, "server.origins")
        return None

    def cors(self, headers: Mapping[bytes, bytes]) -> Headers:
        """What the answer to a page needs so that the page may read it. Preflights are Starlette's."""
        origin = headers.get(b"origin")
        if origin is None:
            return ()
        if self.has_keys:
            return _ANY_ORIGIN
        return (b"access-control-allow-origin", origin), (b"vary", b"Origin"), _EXPOSED


def host_name(value: str) -> str:
    """The name or address in a host with or without a port, as it is compared; empty if it is neither."""
    found = _HOST.fullmatch(value)
    return (found[1] or found[2] or "").lower().removesuffix(".") if found else ""


def _foreign(header: str, value: bytes, setting: str) -> Failure:
    shown = ascii(value[:_LONGEST].decode("latin-1"))
    return _forbidden(
        f"{header}: {shown} is not this gateway's own. Without keys it answers loopback and what {setting} lists."
    )


def _unclear(header: str, count: int, setting: str) -> Failure:
    found = f"There are several {header} headers" if count else f"There is no {header} header"
    return _forbidden(f"{found}, and this gateway has no keys: it needs one that is loopback or in {setting}.")


def _forbidden(message: str) -> Failure:
    return Failure(403, "forbidden", message)
