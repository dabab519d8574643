"""Makes untrusted text safe to show: nothing in it controls a terminal, is invisible or reorders characters.

Models, tools and servers may send anything: escape sequences, control characters, marks that change the direction of
writing, and characters without a width.
"""

import re

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Direction marks, separators, fillers, tags and other characters without a width."""
_HARMLESS = "\u200c\u200d\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000"
"""Joiners, which words of some languages and many emoji need, and characters that look like a space."""

_REMOVED = re.compile(f"[{_CONTROLS}{_UNSEEN}]")
_ESCAPED = re.compile(f"[{_CONTROLS}{_UNSEEN}{_HARMLESS}]")


def clean(text: str) -> str:
    """The text without control sequences and invisible characters. Line ends and tabs stay."""
    return text if text.isascii() and text.isprintable() else _REMOVED.sub("", _ANSI.sub("", text))


def escaped(text: str) -> str:
    r"""The text with such characters, and unusual spaces, written like `\u202e`. JSON keeps its meaning."""
    return _ESCAPED.sub(_escape, text)


def _escape(found: "re.Match[str]") -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
