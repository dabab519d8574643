r"""Repairs arguments that are nearly JSON: only what is certain, and never to another value.

    {'city': 'Oslo', days: 3, "metric": True,}   →   {"city": "Oslo", "days": 3, "metric": true}

Everything else of the text stays as it is, including spaces and the digits of numbers. A text that could mean two
things is not repaired. Brackets may be missing at the end, but only after a value that is certainly complete: an open
string, or a number that nothing follows, may have been cut.
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
    """The text as strict JSON, or None if it is not certain what it should be."""
    fenced = _inside_fence(text)
    fixes: Fixes = {"fence": None} if fenced is not None else {}
    repaired = _repaired(text if fenced is None else fenced, fixes)
    return RepairedJson(repaired, tuple(fixes)) if repaired is not None and is_json(repaired) else None


def _inside_fence(text: str) -> str | None:
    """The content of a code fence, if it is all of the text."""
    inside = text.strip()
    if not (inside.startswith("```") and inside.endswith("```") and len(inside) > len("``````")):
        return None
    language, line, body = inside[3:-3].partition("\n")
    return body.rstrip(" \t").removesuffix("\n") if line and language.strip() in ("", "json", "JSON") else None


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


def _repaired(text: str, fixes: Fixes) -> str | None:
    """The text with every token written as JSON has it. Their order is not checked here."""
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
        written = _written(kind, value, following, fixes)
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


def _written(kind: str, token: str, following: str, fixes: Fixes) -> str:
    """A token as JSON has it, if it is clear what it means, else as it is."""
    if kind in ("double", "single"):
        if kind == "single":
            fixes["quotes"] = None
        return f'"{_SPECIAL.sub(lambda found: _escaped(found[0], kind, fixes), token[1:-1])}"'
    if kind == "word" and following == ":":
        fixes["keys"] = None
        return f'"{token}"'
    if _WORDS.get(token, token) != token:
        fixes["words"] = None
    return _WORDS.get(token, token)


def _escaped(found: str, kind: str, fixes: Fixes) -> str:
    """A quote, a control character or an escape inside a string."""
    if found.startswith("\\"):
        return "'" if found == "\\'" and kind == "single" else found
    if found != '"':
        fixes["controls"] = None
    return to_json(found)[1:-1].decode()
