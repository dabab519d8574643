"""The hosts and web pages that may send requests to a gateway without keys.

Any web page can send requests to the machine on which its browser runs, also through a host name of its own that
resolves to that machine (DNS rebinding). Without keys only the headers `Host` and `Origin` tell such a page from the
user's own programs, so both must be known. With keys, only the key is checked.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from toolwire.config.settings import Settings, is_loopback
from toolwire.core.errors import Failure
from toolwire.gateway.http import EXPOSED, Headers

_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]{0,5})?")
MAX_CHECKED = 300
"""Maximum bytes of a host or an origin that is compared, or repeated in a refusal."""


_EXPOSED = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())
_ANY_ORIGIN = ((b"access-control-allow-origin", b"*"), _EXPOSED)


class OriginCheck:
    """Checks every request, upgrade and preflight before anything else does."""

    def __init__(self, settings: Settings) -> None:
        self.has_keys = settings.needs_key
        hosts = frozenset(map(host_name, settings.server.hosts))
        origins = frozenset(origin.lower() for origin in settings.server.origins)

        @lru_cache(maxsize=256)
        def is_own_host(value: bytes) -> bool:
            name = host_name(value.decode("latin-1"))
            return is_loopback(name) or name in hosts

        @lru_cache(maxsize=256)
        def is_own_origin(value: bytes) -> bool:
            origin = value.decode("latin-1").lower()
            scheme, _, host = origin.partition("://")
            return origin in origins or (scheme in ("http", "https") and is_loopback(host_name(host)))

        self._is_own_host = is_own_host
        self._is_own_origin = is_own_origin

    def find_refusal(self, headers: Headers) -> Failure | None:
        """The failure that refuses a request, or None if the request is allowed."""
        if self.has_keys:
            return None
        hosts, origins = ([value for name, value in headers if name == wanted] for wanted in (b"host", b"origin"))
        for host in hosts[-1:]:
            if len(host) > MAX_CHECKED or not self._is_own_host(host):
                return _refuse_foreign("Host", host, "server.hosts")
        for origin in origins[-1:]:
            if len(origin) > MAX_CHECKED or not self._is_own_origin(origin):
                return _refuse_foreign("Origin", origin, "server.origins")
        if len(hosts) != 1:
            return _refuse_count("Host", len(hosts), "server.hosts")
        if len(origins) > 1:
            return _refuse_count("Origin", 2, "server.origins")
        return None

    def make_cors_headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        """The headers with which a browser lets a page read the answer. Starlette answers preflights."""
        origin = headers.get(b"origin")
        if origin is None:
            return ()
        if self.has_keys:
            return _ANY_ORIGIN
        return (b"access-control-allow-origin", origin), (b"vary", b"Origin"), _EXPOSED


def host_name(value: str) -> str:
    """The name or address in a host with or without a port, for comparison; empty if it is neither."""
    found = _HOST.fullmatch(value)
    return (found[1] or found[2] or "").lower().removesuffix(".") if found else ""


def _refuse_foreign(header: str, value: bytes, setting: str) -> Failure:
    shown = ascii(value[:MAX_CHECKED].decode("latin-1"))
    message = f"{header}: {shown} is not this gateway's own. Without keys it accepts only loopback and {setting}."
    return Failure(403, "forbidden", message)


def _refuse_count(header: str, count: int, setting: str) -> Failure:
    found = f"There are several {header} headers" if count else f"There is no {header} header"
    message = f"{found}, and this gateway has no keys: it needs one that is loopback or in {setting}."
    return Failure(403, "forbidden", message)
