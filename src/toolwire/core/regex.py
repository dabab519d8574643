r"""Regular expressions of clients and models: whether one is found in a text.

Some of them would keep `re` busy forever, so a pattern is read here, and matched by following all ways at once: that
takes time in proportion to the pattern and the text, and every step is counted. What is not read is look-around, back
references, `\p{…}` and flags; such a pattern is None.
"""

import re
from typing import TypeAlias

import msgspec

LONGEST = 400
"""Most characters of a pattern."""

DEPTH = 16
"""Most groups inside each other."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]


class TooMuch(Exception):
    """The steps are used up."""


class Budget:
    """The steps that may be spent on something that is not ours and may ask for anything."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count these steps. Raises `TooMuch` when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch


class Chars(msgspec.Struct, frozen=True):
    """One character of these ranges."""

    ranges: Ranges

    def has(self, char: str) -> bool:
        return any(low <= ord(char) <= high for low, high in self.ranges)


class Either(msgspec.Struct, frozen=True):
    """One of several rows of nodes."""

    rows: "tuple[tuple[Node, ...], ...]"


class Repeat(msgspec.Struct, frozen=True):
    """A node several times; without a `high` as often as one likes."""

    node: "Node"
    low: int
    high: int | None


class Edge(msgspec.Struct, frozen=True):
    """A place between characters: `^`, `$`, `b` for the edge of a word, or `B` for anything else."""

    sign: str


Node: TypeAlias = Chars | Either | Repeat | Edge


def _others(ranges: Ranges) -> Ranges:
    """All characters but these, and without surrogates, which are none."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted((*ranges, (0xD800, 0xDFFF), (0x110000, 0x110000))):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return tuple(found)


_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
                  (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))  # fmt: skip
_NAMED = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CLASSES = {**_NAMED, **{name.upper(): _others(ranges) for name, ranges in _NAMED.items()}}
_ANY = Chars(_others(((10, 10), (13, 13), (0x2028, 0x2029))))
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0, "b": 8}
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[dwsDWSnrtfv0]|[^\w])"
_TOKEN = re.compile(
    rf"(?P<open>\((?:\?:|\?P?<\w+>|(?!\?)))|(?P<close>\))|(?P<or>\|)|(?P<edge>[\^$]|\\[bB])|(?P<any>\.)"
    rf"|\[(?P<inverse>\^?)(?P<members>(?:[^\]\\]|{_ESCAPE}|\\b)*)\]|(?P<char>{_ESCAPE}|[^\\\[(*+?{{])"
    r"|(?P<count>[*+?]|\{(?P<low>\d{1,4})(?P<comma>,?)(?P<high>\d{0,4})\})\??",
    re.DOTALL,
)
_MEMBER = re.compile(rf"\\[dwsDWS]|(?P<low>{_ESCAPE}|\\b|[^\\])(?:-(?P<high>{_ESCAPE}|\\b|[^\\]))?", re.DOTALL)


class _Unread(Exception):
    """The pattern has something that is not read here."""


def read(pattern: str) -> Node | None:
    """The pattern, or None if it cannot be read."""
    try:
        return _read(pattern) if len(pattern) <= LONGEST else None
    except _Unread:
        return None


def _read(pattern: str) -> Node:
    groups: list[list[list[Node]]] = [[[]]]
    """The groups that are open, each with its rows."""
    at, is_counted = 0, True
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise _Unread
        at = token.end()
        row = groups[-1][-1]
        if token["count"]:
            if is_counted:
                raise _Unread
            row.append(Repeat(row.pop(), *_count(token)))
        elif token["open"]:
            groups.append([[]])
        elif token["or"]:
            groups[-1].append([])
        elif token["close"]:
            group = _either(groups.pop())
            if not groups:
                raise _Unread
            groups[-1][-1].append(group)
        else:
            row.append(_one(token))
        is_counted = bool(token["count"] or token["open"] or token["or"])
        if len(groups) > DEPTH + 1:
            raise _Unread
    if len(groups) > 1:
        raise _Unread
    return _either(groups[0])


def _either(rows: list[list[Node]]) -> Either:
    return Either(tuple(map(tuple, rows)))


def _one(token: re.Match[str]) -> Node:
    """A place, or one character."""
    if token["edge"]:
        return Edge(token["edge"][-1])
    if token["members"] is None:
        return _ANY if token["any"] else Chars(_ranges(token["char"]))
    ranges = tuple(each for member in _MEMBER.finditer(token["members"]) for each in _span(member))
    return Chars(_others(ranges) if token["inverse"] else ranges)


def _ranges(char: str) -> Ranges:
    """What a character, or an escape, stands for."""
    name = char[1:] if len(char) > 1 else ""
    if name in _CLASSES:
        return _CLASSES[name]
    code = int(name[1:], 16) if len(name) > 1 else _CONTROLS.get(name, ord(char[-1]))
    if 0xD800 <= code <= 0xDFFF:
        raise _Unread
    return ((code, code),)


def _span(member: re.Match[str]) -> Ranges:
    """What a member of `[…]` stands for: `a-z`, `a` or a class."""
    if member["high"] is None:
        return _ranges(member[0])
    low, high = _ranges(member["low"]), _ranges(member["high"])
    if high in _CLASSES.values():
        raise _Unread
    return ((low[0][0], high[0][1]),)


def _count(token: re.Match[str]) -> tuple[int, int | None]:
    if token["low"] is None:
        return _COUNTS[token["count"]]
    low = int(token["low"])
    return low, int(token["high"]) if token["high"] else None if token["comma"] else low


def ignoring_case(node: Node) -> Node:
    """The pattern for letters of either case, as far as these are ASCII."""
    match node:
        case Chars(ranges):
            other = [
                (max(low, first) + shift, min(high, last) + shift)
                for low, high in ranges
                for first, last, shift in ((65, 90, 32), (97, 122, -32))
                if low <= last and high >= first
            ]
            return Chars((*ranges, *other))
        case Either(rows):
            return Either(tuple(tuple(map(ignoring_case, row)) for row in rows))
        case Repeat():
            return Repeat(ignoring_case(node.node), node.low, node.high)
        case Edge():
            return node


def matches(node: Node, text: str, budget: Budget) -> bool:
    """Whether the pattern is found in the text."""
    return bool(_Matcher(text, budget).ends(node, frozenset(range(len(text) + 1))))


class _Matcher:
    """Follows all ways through a pattern at once: from places in the text to the places after a node."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text = text
        self._budget = budget

    def ends(self, node: Node, starts: frozenset[int]) -> frozenset[int]:
        self._budget.spend(1 + len(starts) // 8)
        match node:
            case Chars():
                return frozenset(at + 1 for at in starts if at < len(self._text) and node.has(self._text[at]))
            case Either(rows):
                return frozenset[int]().union(*(self._after(row, starts) for row in rows))
            case Edge(sign):
                return frozenset(at for at in starts if self._is_edge(sign, at))
            case Repeat():
                return self._repeated(node, starts)

    def _after(self, row: tuple[Node, ...], starts: frozenset[int]) -> frozenset[int]:
        for each in row:
            starts = self.ends(each, starts)
        return starts

    def _repeated(self, node: Repeat, starts: frozenset[int]) -> frozenset[int]:
        for _ in range(node.low):
            if not starts:
                return starts
            starts = self.ends(node.node, starts)
        found, fresh, times = starts, starts, node.low
        while fresh and (node.high is None or times < node.high):
            fresh = self.ends(node.node, fresh) - found
            found |= fresh
            times += 1
        return found

    def _is_edge(self, sign: str, at: int) -> bool:
        if sign in "^$":
            return at == (0 if sign == "^" else len(self._text))
        sides = self._text[at - 1 : at] if at else "", self._text[at : at + 1]
        before, after = (Chars(_WORD).has(char or " ") for char in sides)
        return (before != after) == (sign == "b")
