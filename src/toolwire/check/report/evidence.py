"""Makes text from servers safe to show in a report.

It is untrusted: it may contain control characters, marks that change the writing direction, and invalid UTF-8.
"""

import html
import re

from toolwire.check.exchange import Exchange
from toolwire.check.turns.rule import Finding

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_INVISIBLE = re.compile(r"[\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Invisible characters: controls beyond ASCII, direction marks, and noncharacters."""
_USER = re.compile(r"//[^/?#]*@")
_SECRET = re.compile(r"([?&][^=&#]*(?:key|token|secret|auth|pass|sig)[^=&#]*=)[^&#]*", re.IGNORECASE)


def decode(data: bytes) -> str:
    """Bytes as text; invalid UTF-8 is written `\\xff`."""
    return data.decode(errors="backslashreplace")


def escape_surrogates(text: str) -> str:
    """The text with surrogates escaped so that it can be encoded; headers and file names may contain them."""
    return text.encode(errors="backslashreplace").decode()


def escape_invisible(text: str) -> str:
    """The text with invisible characters, and those that XML forbids, escaped."""
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def truncate(text: str, limit: int) -> str:
    """The beginning of a long text, and the number of missing characters."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def mask_url(url: str) -> str:
    """A URL without passwords and keys."""
    return escape_invisible(_SECRET.sub(r"\1…", _USER.sub("//", url)))


def find_proof(finding: Finding, exchange: Exchange) -> list[str]:
    """The frames that show a finding, or the beginning of the answer if it names none."""
    return [decode(each.raw) for each in exchange.find_frames(finding)] or [decode(exchange.body[:8000])[:2000]]


def escape(value: str) -> str:
    """The text escaped for HTML, including quotes."""
    return html.escape(escape_invisible(value))


def format_prose(value: str) -> str:
    """The text escaped for HTML, with text between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(value))
