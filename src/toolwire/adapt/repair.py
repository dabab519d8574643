r"""Repairs arguments that are nearly JSON: only where the meaning is certain.

    {'city': 'Oslo', days: 3, "metric": True,}   →   {"city": "Oslo", "days": 3, "metric": true}

The rest of the text does not change, including spaces and the digits of numbers. An ambiguous text is not repaired.
Brackets may be missing at the end, but only after a value that is certainly complete: an open string, or a number at
the very end, may have been cut.
"""

import re
from itertools import chain, pairwise
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.raw import to_json
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
"""After these tokens a value is not complete."""


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

        def escape(found: re.Match[str]) -> str:
            """Escape a quote or a control character inside a string."""
            if found[0].startswith("\\"):
                return "'" if found[0] == "\\'" and kind == "single" else found[0]
            if found[0] != '"':
                fixes["controls"] = None
            return to_json(found[0])[1:-1].decode()

        return f'"{_SPECIAL.sub(escape, token[1:-1])}"'
    if kind == "word" and following == ":":
        fixes["keys"] = None
        return f'"{token}"'
    if _WORDS.get(token, token) != token:
        fixes["words"] = None
    return _WORDS.get(token, token)
