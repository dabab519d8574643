"""Makes untrusted text and URLs safe to show.

Models, tools and servers may send escape sequences, control characters, direction marks and zero-width characters.
A URL may hold a password or a key.
"""

import re
from urllib.parse import urlsplit, urlunsplit

MASK = "***"

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Direction marks, separators, fillers, tags and other zero-width characters."""
_SPACE_LIKE = "\u200c\u200d\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000"
"""Joiners, which some languages and many emoji need, and characters that look like a space."""

_REMOVED = re.compile(f"[{_CONTROLS}{_INVISIBLE}]")
_ESCAPED = re.compile(f"[{_CONTROLS}{_INVISIBLE}{_SPACE_LIKE}]")


def clean(text: str) -> str:
    """Remove control sequences and invisible characters, except line feeds and tabs."""
    return text if text.isascii() and text.isprintable() else _REMOVED.sub("", _ANSI.sub("", text))


def escape_invisible(text: str) -> str:
    r"""Escape invisible characters and unusual spaces, like `\u202e`. JSON keeps its meaning."""

    def escape(found: "re.Match[str]") -> str:
        units = found[0].encode("utf-16-be").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    return _ESCAPED.sub(escape, text)


def redact_url(url: str) -> str:
    """Remove the user, the password and the query; a text that is not a URL is masked.

    For a database, everything before the last @ is removed: a password that contains / or ? would end the host early.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url and MASK
    if "@" in rest and not url.lower().startswith(("http://", "https://")):
        url = f"{scheme}://{rest.rpartition('@')[2]}"
    try:
        parsed = urlsplit(url)
    except ValueError:
        return MASK
    host = parsed.netloc.rpartition("@")[2]
    return urlunsplit((parsed.scheme, host, parsed.path, "", ""))
