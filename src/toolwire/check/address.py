"""The address of an endpoint, and why it cannot be reached."""

import errno
import ipaddress
import re
import ssl
from urllib.parse import urlsplit

import aiohttp

_VERSION = re.compile(r"/v\d\w*(/|$)")
_SCHEME = re.compile(r"[a-zA-Z][\w+.-]*://")
_ODD_HOST = re.compile(r"\s|^\d+(:|$)")
"""A space, or a number, which is a port without a host."""
CONNECT_TIMEOUT = 10
"""Seconds to wait for a connection."""


def normalise_url(url: str) -> str:
    """The base URL of an endpoint; `/v1` is added where it is missing, and the path of an API is removed.

    Without a scheme it is http for an IP address or a local name, and https for any other host, so that no key is sent
    unencrypted over the internet by mistake. Raises `ValueError`.
    """
    given = url.strip()
    if not _SCHEME.match(given):
        given = f"{_choose_scheme(urlsplit(f'//{given}').hostname or '')}://{given}"
    parts = urlsplit(given)
    try:
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if parts.scheme not in ("http", "https") or not has_host or _ODD_HOST.search(parts.netloc):
        raise ValueError(f"{url!r} is not an address of an endpoint, such as 127.0.0.1:8787 or https://example.com/v1")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("the address of an endpoint has no query and no password; keys are given separately")
    path = re.sub(r"/models/.*:\w+$", "", parts.path.rstrip("/"))
    for ending in ("/chat/completions", "/responses", "/messages"):
        if path.endswith(ending):
            return f"{parts.scheme}://{parts.netloc}{path.removesuffix(ending)}"
    return f"{parts.scheme}://{parts.netloc}{path}{'' if _VERSION.search(path) else '/v1'}"


def _choose_scheme(host: str) -> str:
    """http for an IP address or a name that only this network knows, https for any other host."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "http" if "." not in host or host.endswith((".localhost", ".local", ".internal")) else "https"
    return "http"


_REASONS = {
    errno.ECONNREFUSED: "the connection was refused: is the server running, and is the port right?",
    errno.EHOSTUNREACH: "there is no route to this host",
    errno.ENETUNREACH: "there is no route to this network",
    errno.ETIMEDOUT: "the host does not answer",
}


def explain_failure(error: Exception) -> str:
    """The reason for a missing or incomplete answer."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection in {CONNECT_TIMEOUT} s: the host does not answer"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host!r} cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not trusted ({error.certificate_error})"
        case aiohttp.ClientConnectorSSLError():
            return f"it does not speak TLS: should its address begin with http://? ({_explain_tls(error)})"
        case aiohttp.ClientConnectorError():
            known = _REASONS.get(error.os_error.errno or 0)
            return known or f"no connection ({error.os_error.strerror or error.os_error})"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without an answer"
        case _:
            return f"{type(error).__name__}: {error}".removesuffix(": ")


def _explain_tls(error: aiohttp.ClientConnectorError) -> str:
    inner = error.os_error
    return (isinstance(inner, ssl.SSLError) and inner.reason) or str(inner)
