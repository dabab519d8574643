"""What a report shows of an exchange: text that can be read everywhere, and counts.

Whatever a model or a server wrote is hostile here: it may hold control characters, marks that turn the direction of
writing, and bytes that are no text at all.
"""

import re

from toolwire.check.exchange import Exchange
from toolwire.check.turns.rule import Finding

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_UNSEEN = re.compile(r"[\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""What no eye can see: controls beyond ASCII, marks of direction, and what is no character."""
_USER = re.compile(r"//[^/?#]*@")
_SECRET = re.compile(r"([?&][^=&#]*(?:key|token|secret|auth|pass|sig)[^=&#]*=)[^&#]*", re.IGNORECASE)


def exact(data: bytes) -> str:
    """Bytes as text. What is not UTF-8 is written `\\xff`."""
    return data.decode(errors="backslashreplace")


def valid(text: str) -> str:
    """A text that can be encoded: headers and names of files may hold bytes in the guise of surrogates."""
    return text.encode(errors="backslashreplace").decode()


def readable(text: str) -> str:
    """The same text with an escape for every character that cannot be seen, or that XML forbids."""
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cut(text: str, most: int) -> str:
    """The beginning of a long text, and how much is missing."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def address(url: str) -> str:
    """An address without what may be a key in it."""
    return readable(_SECRET.sub(r"\1…", _USER.sub("//", url)))


def proof(finding: Finding, exchange: Exchange) -> list[str]:
    """The bytes of the offending frames, or the beginning of an answer of which no frame is named."""
    return [exact(each.raw) for each in exchange.shown_by(finding)] or [exact(exchange.body[:8000])[:2000]]
