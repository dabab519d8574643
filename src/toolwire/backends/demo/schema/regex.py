r"""Regular expressions of schemas, read into nodes.

Patterns come from clients. Some of them would keep `re` busy forever, so a pattern is read here, and matched by
following all ways at once: that takes time in proportion to the pattern and the text. What is not read is
look-around, back references, `\p{…}` and flags; such a pattern is None.
"""

from functools import lru_cache
from typing import TypeAlias

import msgspec

LONGEST = 400
"""Most characters of a pattern, and of a text that is made for one."""

DEPTH = 16
"""Most groups inside each other."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]


class Chars(msgspec.Struct, frozen=True):
    """One character of these ranges."""

    ranges: Ranges

    def has(self, char: str) -> bool:
        return any(low <= ord(char) <= high for low, high in self.ranges)


class Row(msgspec.Struct, frozen=True):
    """One node after the other."""

    nodes: "tuple[Node, ...]"


class Either(msgspec.Struct, frozen=True):
    """One of the nodes."""

    nodes: "tuple[Node, ...]"


class Repeat(msgspec.Struct, frozen=True):
    """A node several times; without a `high` as often as one likes."""

    node: "Node"
    low: int
    high: int | None


class Edge(msgspec.Struct, frozen=True):
    """A place between characters: `^`, `$`, `b` for the edge of a word, or `B` for anything else."""

    sign: str


Node: TypeAlias = Chars | Row | Either | Repeat | Edge

_LAST = 0x10FFFF
_DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
                  (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))  # fmt: skip
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}


def _others(ranges: Ranges) -> Ranges:
    """All characters but these, and without surrogates, which are none."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted((*ranges, (0xD800, 0xDFFF))):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return (*found, (start, _LAST)) if start <= _LAST else tuple(found)


_CLASSES: dict[str, Ranges] = {
    "d": _DIGIT,
    "w": WORD,
    "s": _SPACE,
    "D": _others(_DIGIT),
    "W": _others(WORD),
    "S": _others(_SPACE),
}


class _Unread(Exception):
    """The pattern has something that is not read here."""


@lru_cache(maxsize=256)
def read(pattern: str) -> Node | None:
    """The pattern, or None if it cannot be read."""
    if len(pattern) > LONGEST:
        return None
    try:
        return _Reader(pattern).whole()
    except _Unread:
        return None


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._either()
        if self._at < len(self._text):
            raise _Unread
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise _Unread
        self._at += 1
        return char

    def _took(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _either(self) -> Node:
        nodes = [self._row()]
        while self._took("|"):
            nodes.append(self._row())
        return nodes[0] if len(nodes) == 1 else Either(tuple(nodes))

    def _row(self) -> Node:
        nodes: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            nodes.append(self._counted(self._one()))
        return Row(tuple(nodes))

    def _one(self) -> Node:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case ".":
                return Chars(_others(_LINE_ENDS))
            case "^" | "$":
                return Edge(char)
            case "*" | "+" | "?":
                raise _Unread
            case _:
                return _char(ord(char))

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH:
            raise _Unread
        if self._took("?") and not self._took(":"):
            if not (self._took("<") or self._took("P<")) or self._peek() in ("=", "!"):
                raise _Unread
            while self._next() != ">":
                pass
        node = self._either()
        if not self._took(")"):
            raise _Unread
        self._depth -= 1
        return node

    def _escape(self) -> Node:
        char = self._next()
        if char in ("b", "B"):
            return Edge(char)
        return Chars(_CLASSES[char]) if char in _CLASSES else _char(self._escaped(char))

    def _escaped(self, char: str) -> int:
        """The character that an escape stands for."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in ("x", "u"):
            return self._hexadecimal(2 if char == "x" else 4)
        if char.isalnum():
            raise _Unread
        return ord(char)

    def _hexadecimal(self, count: int) -> int:
        digits = "".join(self._next() for _ in range(count))
        try:
            return int(digits, 16)
        except ValueError:
            raise _Unread from None

    def _class(self) -> Node:
        negated = self._took("^")
        ranges: list[tuple[int, int]] = []
        while not self._took("]"):
            low = self._member()
            if isinstance(low, tuple):
                ranges.extend(low)
            elif self._text[self._at + 1 : self._at + 2] != "]" and self._took("-"):
                high = self._member()
                if isinstance(high, tuple):
                    raise _Unread
                ranges.append((low, high))
            else:
                ranges.append((low, low))
        return Chars(_others(tuple(ranges)) if negated else tuple(ranges))

    def _member(self) -> int | Ranges:
        char = self._next()
        if char != "\\":
            return ord(char)
        char = self._next()
        if char == "b":
            return 8
        return _CLASSES[char] if char in _CLASSES else self._escaped(char)

    def _counted(self, node: Node) -> Node:
        low, high = 1, 1
        match self._peek():
            case "*":
                low, high = 0, None
            case "+":
                low, high = 1, None
            case "?":
                low, high = 0, 1
            case "{":
                return self._braced(node)
            case _:
                return node
        self._at += 1
        self._took("?")
        return Repeat(node, low, high)

    def _braced(self, node: Node) -> Node:
        start = self._at
        end = self._text.find("}", start)
        least, comma, most = self._text[start + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not least.isdecimal() or not (most.isdecimal() or not most) or len(least + most) > 8:
            raise _Unread
        self._at = end + 1
        self._took("?")
        low = int(least)
        return Repeat(node, low, int(most) if most else None if comma else low)


def _char(code: int) -> Chars:
    return Chars(((code, code),))
