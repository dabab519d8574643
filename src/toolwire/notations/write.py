r"""Helpers for all notations that write calls as text into a prompt.

Text that would be taken for a marker is escaped. JSON keeps its meaning: `\u003ctool_call>` is `<tool_call>`.
Plain text gets one more backslash after a marker's first character, `<\tool_call>`, which can be undone.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from toolwire.core.raw import fields_of, text_of


class WrittenCall(msgspec.Struct, frozen=True):
    """The block of one call, and the parameters whose values had to be changed."""

    text: str
    changed: tuple[str, ...] = ()


Write: TypeAlias = Callable[[str, str], WrittenCall]
"""Writes a call by its name and its arguments, which are the text of a JSON object."""

_INVALID_CHARS = re.compile(r"[\"'<>\s]+")


def escape_markers(text: str, markers: Sequence[str]) -> str:
    """Add a backslash to each of these markers."""
    return _marker_pattern(tuple(markers)).sub(lambda found: f"{found[0][0]}\\{found[0][1:]}", text)


@lru_cache(maxsize=64)
def _marker_pattern(markers: tuple[str, ...]) -> re.Pattern[str]:
    """A marker with any number of backslashes after its first character."""
    return re.compile("|".join(rf"{re.escape(marker[0])}\\*{re.escape(marker[1:])}" for marker in markers))


def escape_markers_in_json(text: str, markers: Sequence[str]) -> str:
    """Escape these markers in the strings of a JSON text, which keeps its meaning."""
    for marker in markers:
        text = text.replace(marker, f"\\u{ord(marker[0]):04x}{marker[1:]}")
    return text


def write_values(arguments: str, markers: Sequence[str]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Each parameter with its value as text (strings raw, the rest as JSON), and those that had to be changed."""
    values: list[tuple[str, str]] = []
    changed: list[str] = []
    for parameter, raw in fields_of(arguments).items():
        key = _INVALID_CHARS.sub("_", parameter)
        text = bytes(raw).decode()
        if text.startswith('"'):
            plain = text_of(raw)
            text = escape_markers(plain, markers)
            same = text == plain
        else:
            text, same = escape_markers_in_json(text, markers), True
        if not same or key != parameter:
            changed.append(parameter)
        values.append((key, text))
    return values, tuple(changed)


def pad_value(text: str) -> str:
    """Pad a value between two tags, where a reader removes one line end on each side."""
    if not text.startswith(("\n", "\r\n")) and not text.endswith("\n"):
        return text
    return "\n" + text + ("\r\n" if text.endswith("\r") else "\n")
