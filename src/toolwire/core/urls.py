"""Addresses as they may be shown: without the user, the password and the query in them."""

from urllib.parse import urlsplit, urlunsplit

MASK = "***"
_HTTP = ("http://", "https://")


def bare_url(url: str) -> str:
    """An address without what may be a key.

    Of a database everything before the last @ is left out: a password with a / or ? in it would end the host too early.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url and MASK
    if "@" in rest and not url.lower().startswith(_HTTP):
        url = f"{scheme}://{rest.rpartition('@')[2]}"
    try:
        parsed = urlsplit(url)
    except ValueError:
        return MASK
    host = parsed.netloc.rpartition("@")[2]
    return urlunsplit((parsed.scheme, host, parsed.path, "", ""))
