r"""Helpers for all notations that write calls as text into a prompt.

Text that would be taken for a marker is escaped. JSON keeps its meaning: `\u003ctool_call>` is `<tool_call>`.
Plain text gets one more backslash after a marker's first character, `<\tool_call>`, which can be undone.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from toolwire.core.raw import Fields, fields_of, text_of, to_raw
from toolwire.core.text import join_surrogates, replace_lone_surrogates


class WrittenCall(msgspec.Struct, frozen=True):
    """The block of one call, and the parameters whose values had to be changed."""

    text: str
    changed: tuple[str, ...] = ()


Write: TypeAlias = Callable[[str, str], WrittenCall]
"""Writes a call by its name and its arguments, which are the text of a JSON object."""

_INVALID_CHARS = re.compile(r"[\"'<>\s]+")


def escape_markers(text: str, markers: Sequence[str]) -> str:
    """Add a backslash to each of these markers."""
    return _compile_markers(tuple(markers)).sub(lambda found: f"{found[0][0]}\\{found[0][1:]}", text)


@lru_cache(maxsize=64)
def _compile_markers(markers: tuple[str, ...]) -> re.Pattern[str]:
    """A marker with any number of backslashes after its first character."""
    return re.compile("|".join(rf"{re.escape(marker[0])}\\*{re.escape(marker[1:])}" for marker in markers))


def escape_markers_in_json(text: str, markers: Sequence[str]) -> str:
    """Escape these markers in the strings of a JSON text, which keeps its meaning."""
    for marker in markers:
        text = text.replace(marker, f"\\u{ord(marker[0]):04x}{marker[1:]}")
    return text


def read_parameters(arguments: str) -> tuple[Fields, set[str]]:
    """The parameters of a call, and those in which a lone surrogate was replaced.

    Arguments that are not an object, or are nested too deeply, are one parameter.
    """
    whole = replace_lone_surrogates(join_surrogates(arguments))
    try:
        parameters = fields_of(whole)
    except (msgspec.DecodeError, RecursionError):
        parameters = {"args": to_raw(whole)} if whole.strip() else Fields()
    texts = {name: bytes(raw).decode() for name, raw in parameters.items()} if whole != arguments else {}
    return parameters, {name for name, text in texts.items() if "\ufffd" in text or "\\ufffd" in text}


def write_values(arguments: str, markers: Sequence[str]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Each parameter with its value as text (strings raw, the rest as JSON), and those that had to be changed."""
    parameters, changed = read_parameters(arguments)
    values: list[tuple[str, str]] = []
    for parameter, raw in parameters.items():
        key = _INVALID_CHARS.sub("_", parameter)
        text = bytes(raw).decode()
        if text.startswith('"'):
            plain = text_of(raw)
            text = escape_markers(plain, markers)
            same = text == plain
        else:
            text, same = escape_markers_in_json(text, markers), True
        if not same or key != parameter:
            changed.add(parameter)
        values.append((key, text))
    return values, tuple(name for name in parameters if name in changed)


def pad_value(text: str) -> str:
    """Pad a value between two tags, where a reader removes one line end on each side."""
    if not text.startswith(("\n", "\r\n")) and not text.endswith("\n"):
        return text
    return "\n" + text + ("\r\n" if text.endswith("\r") else "\n")
