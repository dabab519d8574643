"""Unquotes values that were written as strings where the schema requires another type.

    {"days": "3"}   →   {"days": 3}          where days must be an integer
    "{\\"a\\":1}"      →   {"a":1}              where arguments must be an object

All other characters of the arguments stay: numbers keep their digits.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from toolwire.core.raw import fields_of, list_of, text_of, to_raw
from toolwire.core.text import is_json

Path: TypeAlias = tuple[str | int, ...]


class Problem(msgspec.Struct, frozen=True):
    """Where arguments violate a schema, which keyword, and, if it is `type`, the expected types."""

    path: Path
    keyword: str
    expected: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join(("$", *map(str, self.path))) + f" {self.keyword}"


_INTEGER = re.compile(r"-?[0-9]+")
_TYPES = {"{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null", '"': "string"}


def retype(text: str, problems: Sequence[Problem]) -> str | None:
    """Unquote every string that then has an expected type; returns None if there is none."""
    raw = msgspec.Raw(text.encode())
    changed = raw
    for problem in problems:
        if problem.expected:
            changed = _unquote_at(changed, problem.path, problem.expected)
    return bytes(changed).decode() if changed is not raw else None


def _unquote_at(raw: msgspec.Raw, path: Path, expected: tuple[str, ...]) -> msgspec.Raw:
    """The value with the string at the path unquoted, or the value itself."""
    if path:
        step, *rest = path
        parts: Any = fields_of(raw) if isinstance(step, str) else list_of(raw)
        old: msgspec.Raw = parts[step]
        new = parts[step] = _unquote_at(old, tuple(rest), expected)
        return raw if new is old else to_raw(parts)
    try:
        text = text_of(raw)
    except msgspec.ValidationError:
        return raw
    if text != text.strip() or not is_json(text):
        return raw
    type = _TYPES.get(text[0], "number")
    is_integer = type == "number" and "integer" in expected and _INTEGER.fullmatch(text)
    # A string needs no change.
    return msgspec.Raw(text.encode()) if is_integer or (type in expected and type != "string") else raw
