"""Text on its way into HTML. All that comes from elsewhere passes here."""

import re
from html import escape

from toolwire.check.report.evidence import readable


def text(words: str) -> str:
    """Any text, safe between tags and inside of quotes."""
    return escape(readable(words))


def prose(words: str) -> str:
    """The same, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(words))
