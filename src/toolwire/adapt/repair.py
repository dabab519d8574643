r"""Repairs arguments where the meaning is certain: malformed JSON, and strings where the schema requires another type.

    {'city': 'Oslo', days: 3, "metric": True,}   →   {"city": "Oslo", "days": 3, "metric": true}

The rest of the text does not change, including spaces and the digits of numbers. An ambiguous text is not repaired.
Brackets may be missing at the end, but only after a value that is certainly complete: an open string, or a number at
the very end, may have been cut.

    {"days": "3"}   →   {"days": 3}          where days must be an integer
    "{\"a\":1}"     →   {"a":1}              where arguments must be an object

Values that were written as strings are unquoted where the schema requires another type.
"""

import re
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.core.raw import fields_of, list_of, text_of, to_json, to_raw
from toolwire.core.text import is_json

Fix: TypeAlias = Literal["brackets", "commas", "controls", "fence", "keys", "quotes", "types", "words"]
Fixes: TypeAlias = dict[Fix, None]
"""The fixes that were made, each once, in order."""


class RepairedJson(msgspec.Struct, frozen=True):
    """A repaired JSON text, and which fixes were made."""

    text: str
    fixes: tuple[Fix, ...] = ()


def repair_json(text: str) -> RepairedJson | None:
    """The text as strict JSON, or None if its meaning is not certain."""
    fixes: Fixes = {}
    inside = text.strip()
    if inside.startswith("```") and inside.endswith("```") and len(inside) > len("``````"):
        language, line, body = inside[3:-3].partition("\n")
        if line and language.strip() in ("", "json", "JSON"):
            text, fixes["fence"] = body.rstrip(" \t").removesuffix("\n"), None
    repaired = _repair_tokens(text, fixes)
    return RepairedJson(repaired, tuple(fixes)) if repaired is not None and is_json(repaired) else None


_SPACE = " \t\r\n"
_TOKEN = re.compile(
    r"""
    (?: (?P<mark>[{}\[\]:,])
    | (?P<double>"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<single>'[^'\\]*(?:\\.[^'\\]*)*')
    | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_$][\w$]*)
    ) [ \t\r\n]*
    """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_SPECIAL = re.compile(r'\\.|["\x00-\x1f]', re.DOTALL)
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_CLOSING = {"{": "}", "[": "]"}
_NO_VALUE = ("", "{", "[", ",", ":")
"""Tokens after which a value is incomplete."""


def _repair_tokens(text: str, fixes: Fixes) -> str | None:
    """The text with every token written as JSON requires. The order of tokens is not checked."""
    offset = len(text) - len(text.lstrip(_SPACE))
    out, closing = [text[:offset]], list[str]()
    value, space = "", ""  # the last token, and the space after it
    kind = ""
    for found, after in pairwise(chain(_TOKEN.finditer(text, offset), (None,))):
        if found is None or found.start() != offset:
            return None
        offset, kind = found.end(), str(found.lastgroup)
        last, value = value, found[kind]
        space = found[0][len(value) :]
        following = after[str(after.lastgroup)] if after is not None else ""
        if value in _CLOSING:
            closing.append(_CLOSING[value])
        elif value in ("}", "]") and (not closing or closing.pop() != value):
            return None
        written = _repair_token(kind, value, following, fixes)
        if value == "," and following in ("}", "]") and last not in _NO_VALUE:
            fixes["commas"], written = None, ""
        out += (written, space)
    if offset != len(text):
        return None
    if closing:
        if value in _NO_VALUE or (kind == "number" and not space):  # there may have been more of it
            return None
        fixes["brackets"] = None
    return "".join((*out, *reversed(closing)))


def _repair_token(kind: str, token: str, following: str, fixes: Fixes) -> str:
    """A token as JSON requires it, if its meaning is clear, else as it is."""
    if kind in ("double", "single"):
        if kind == "single":
            fixes["quotes"] = None

        def escape_char(found: re.Match[str]) -> str:
            """Escape a quote or a control character inside a string."""
            if found[0].startswith("\\"):
                return "'" if found[0] == "\\'" and kind == "single" else found[0]
            if found[0] != '"':
                fixes["controls"] = None
            return to_json(found[0])[1:-1].decode()

        return f'"{_SPECIAL.sub(escape_char, token[1:-1])}"'
    if kind == "word" and following == ":":
        fixes["keys"] = None
        return f'"{token}"'
    if _WORDS.get(token, token) != token:
        fixes["words"] = None
    return _WORDS.get(token, token)


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
    try:
        for problem in problems:
            if problem.expected:
                changed = _unquote_at(changed, problem.path, problem.expected)
    except msgspec.DecodeError:  # the escape of a lone surrogate
        return None
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
