"""Values that were written as strings, as what the schema wants: the same text, without its quotes.

    {"days": "3"}   →   {"days": 3}          where days must be an integer
    "{\\"a\\":1}"      →   {"a":1}              where arguments must be an object

Every other letter of the arguments stays: numbers keep their digits.
"""

import re
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from toolwire.core.text import is_json

Path: TypeAlias = tuple[str | int, ...]


class Problem(msgspec.Struct, frozen=True):
    """Where arguments do not fit a schema, which keyword says so, and, if it is their type, the types it wants."""

    path: Path
    keyword: str
    wanted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join(("$", *map(str, self.path))) + f" {self.keyword}"


_string = msgspec.json.Decoder(str)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_INTEGER = re.compile(r"-?[0-9]+")
_TYPES = {"{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null", '"': "string"}


def retyped(text: str, problems: Sequence[Problem]) -> str | None:
    """The arguments with every string that only its quotes keep from fitting put right; None if there is no such."""
    raw = msgspec.Raw(text.encode())
    changed = raw
    for problem in problems:
        if problem.wanted:
            changed = _changed(changed, problem.path, problem.wanted)
    return bytes(changed).decode() if changed is not raw else None


def _changed(raw: msgspec.Raw, path: Path, wanted: tuple[str, ...]) -> msgspec.Raw:
    """The value with what is at the path unquoted, or the value itself."""
    if not path:
        return _unquoted(raw, wanted)
    step, rest = path[0], path[1:]
    parts: dict[str, msgspec.Raw] | list[msgspec.Raw]
    if isinstance(step, str):
        parts = _fields.decode(raw)
        old = parts[step]
        new = parts[step] = _changed(old, rest, wanted)
    else:
        parts = _items.decode(raw)
        old = parts[step]
        new = parts[step] = _changed(old, rest, wanted)
    return raw if new is old else msgspec.Raw(_encode(parts))


def _unquoted(raw: msgspec.Raw, wanted: tuple[str, ...]) -> msgspec.Raw:
    try:
        text = _string.decode(raw)
    except msgspec.ValidationError:
        return raw
    if text != text.strip() or not is_json(text) or _type(text) not in _widened(wanted):
        return raw
    return msgspec.Raw(text.encode())


def _type(text: str) -> str:
    return _TYPES.get(text[0]) or ("integer" if _INTEGER.fullmatch(text) else "number")


def _widened(wanted: tuple[str, ...]) -> set[str]:
    """An integer is a number too; a string is what it is already."""
    return ({*wanted, "integer"} if "number" in wanted else {*wanted}) - {"string"}
