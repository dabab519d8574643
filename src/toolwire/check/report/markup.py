"""Escapes text for HTML; everything that came from the server passes here."""

import re
from html import escape

from toolwire.check.report.evidence import readable


def text(value: str) -> str:
    """Any text, safe between tags and inside of quotes."""
    return escape(readable(value))


def prose(value: str) -> str:
    """The same, with text between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))
