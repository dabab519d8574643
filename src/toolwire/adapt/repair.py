r"""Repairs arguments that are nearly JSON: only what is certain, and never to another value.

    {'city': 'Oslo', days: 3, "metric": True,}   →   {"city": "Oslo", "days": 3, "metric": true}

Everything else of the text stays as it is, including spaces and the digits of numbers. A text that could mean two
things is not repaired. Brackets may be missing at the end, but only after a value that is certainly complete: an open
string, or a number that nothing follows, may have been cut.
"""

import re
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.text import is_json

Fix: TypeAlias = Literal["brackets", "commas", "controls", "fence", "keys", "quotes", "types", "words"]


class RepairedJson(msgspec.Struct, frozen=True):
    """A repaired JSON text, and which fixes were made."""

    text: str
    fixes: tuple[Fix, ...] = ()


def repair_json(text: str) -> RepairedJson | None:
    """The text as strict JSON, or None if it is not certain what it should be."""
    fenced = _inside_fence(text)
    repairer = _JsonRepairer(("fence",) if fenced is not None else ())
    repaired = repairer.read(fenced if fenced is not None else text)
    return RepairedJson(repaired, tuple(repairer.fixes)) if repaired is not None and is_json(repaired) else None


def _inside_fence(text: str) -> str | None:
    """The content of a code fence, if it is all of the text."""
    inside = text.strip()
    if not (inside.startswith("```") and inside.endswith("```") and len(inside) > len("``````")):
        return None
    language, line, body = inside[3:-3].partition("\n")
    return body.rstrip(" \t").removesuffix("\n") if line and language.strip() in ("", "json", "JSON") else None


_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
    | (?P<mark>[{}\[\]:,])
    | (?P<double>"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<single>'[^'\\]*(?:\\.[^'\\]*)*')
    | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_$][\w$]*)
    """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_SPECIAL = re.compile(r'\\.|["\x00-\x1f]', re.DOTALL)
_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}

# What may follow: a value, a value or the end of a list, a key or the end of an object, a colon, a comma or an end.
State: TypeAlias = Literal["value", "item", "key", "colon", "next", "done"]
_OPENED: dict[str, tuple[str, State]] = {"{": ("}", "key"), "[": ("]", "item")}


class _JsonRepairer:
    """Reads one text, token by token, and writes it as JSON."""

    def __init__(self, fixes: tuple[Fix, ...]) -> None:
        self.fixes: list[Fix] = [*fixes]
        self._out: list[str] = []
        self._closing: list[str] = []  # the brackets that are open
        self._state: State = "value"
        self._comma = -1  # index in the output of a comma that nothing has followed yet
        self._whole = True  # whether the last value is certainly complete

    def read(self, text: str) -> str | None:
        offset = 0
        while offset < len(text):
            token = _TOKEN.match(text, offset)
            if token is None or not self._take(str(token.lastgroup), token[0]):
                return None
            offset = token.end()
        if self._state == "next" and self._whole and self._closing:
            self._fix("brackets")
            return "".join(self._out) + "".join(reversed(self._closing))
        return "".join(self._out) if self._state == "done" else None

    def _take(self, kind: str, token: str) -> bool:
        """Write the token if it is valid here; returns whether it is."""
        if kind == "space":
            self._whole = True
            self._out.append(token)
            return True
        if kind == "mark":
            return self._mark(token)
        if self._state == "key":
            written = self._key(kind, token)
            following: State = "colon"
        elif self._state in ("value", "item"):
            written = self._value(kind, token)
            following = self._after_value()
            self._whole = kind != "number"
        else:
            return False
        if written is None:
            return False
        self._write(written, following)
        return True

    def _write(self, text: str, state: State) -> None:
        self._out.append(text)
        self._state = state
        self._comma = -1

    def _after_value(self) -> State:
        return "next" if self._closing else "done"

    def _mark(self, mark: str) -> bool:
        if mark in _OPENED and self._state in ("value", "item"):
            closing, state = _OPENED[mark]
            self._closing.append(closing)
            self._write(mark, state)
            return True
        if mark == ":" and self._state == "colon":
            self._write(mark, "value")
            return True
        if mark == "," and self._state == "next":
            self._write(mark, "key" if self._closing[-1] == "}" else "item")
            self._comma = len(self._out) - 1
            return True
        return self._closing[-1:] == [mark] and self._state in ("next", "key", "item") and self._close()

    def _close(self) -> bool:
        if self._comma >= 0:
            self._out[self._comma] = ""
            self._fix("commas")
        mark = self._closing.pop()
        self._write(mark, self._after_value())
        self._whole = True
        return True

    def _key(self, kind: str, token: str) -> str | None:
        if kind == "word":
            self._fix("keys")
            return f'"{token}"'
        return self._string(kind, token)

    def _value(self, kind: str, token: str) -> str | None:
        if kind == "number":
            return token
        if kind != "word":
            return self._string(kind, token)
        if token not in _WORDS:
            return None
        if _WORDS[token] != token:
            self._fix("words")
        return _WORDS[token]

    def _string(self, kind: str, token: str) -> str | None:
        if kind not in ("double", "single"):
            return None
        if kind == "single":
            self._fix("quotes")
        inside = token[1:-1]
        pieces: list[str] = []
        offset = 0
        for special in _SPECIAL.finditer(inside):
            written = self._special_char(special[0], kind)
            if written is None:
                return None
            pieces += (inside[offset : special.start()], written)
            offset = special.end()
        return f'"{"".join(pieces)}{inside[offset:]}"'

    def _special_char(self, found: str, kind: str) -> str | None:
        """A quote, a control character or an escape, as valid JSON."""
        if found == '"':
            return '\\"'
        if found == "\\'":
            return "'" if kind == "single" else None
        if found.startswith("\\"):
            return found if found[1] in '"\\/bfnrtu' else None  # a wrong \u is found when all is checked
        self._fix("controls")
        return _CONTROLS.get(found) or f"\\u{ord(found):04x}"

    def _fix(self, fix: Fix) -> None:
        if fix not in self.fixes:
            self.fixes.append(fix)
