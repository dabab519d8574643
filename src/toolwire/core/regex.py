r"""Matches regular expressions of clients and models in linear time.

Python's `re` backtracks, so a hostile pattern could keep it busy forever. Here all branches are followed at once: the
time is proportional to the pattern times the text, and every step is counted. Look-around, back references, `\p{…}` and
flags are not supported.
"""

import re
from typing import TypeAlias

import msgspec

MAX_PATTERN_CHARS = 400
MAX_GROUP_DEPTH = 16

Ranges: TypeAlias = tuple[tuple[int, int], ...]


class BudgetExceeded(Exception):
    """All steps of a budget are spent."""


class Budget:
    """The number of steps that may be spent on untrusted input."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count these steps. Raises `BudgetExceeded` when none are left."""
        self._left -= steps
        if self._left < 0:
            raise BudgetExceeded


class Chars(msgspec.Struct, frozen=True):
    """One character out of these ranges of code points."""

    ranges: Ranges

    def has(self, char: str) -> bool:
        return any(low <= ord(char) <= high for low, high in self.ranges)


class Either(msgspec.Struct, frozen=True):
    """One of several branches, each a sequence of nodes."""

    branches: "tuple[tuple[Node, ...], ...]"


class Repeat(msgspec.Struct, frozen=True):
    """A node repeated `low` to `high` times; without a `high`, any number of times."""

    node: "Node"
    low: int
    high: int | None


class Boundary(msgspec.Struct, frozen=True):
    """A position between characters: `^`, `$`, `b` for a word boundary, or `B` for any other position."""

    sign: str


Node: TypeAlias = Chars | Either | Repeat | Boundary


def _invert(ranges: Ranges) -> Ranges:
    """All code points except these and the surrogates."""
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
_CLASSES = {**_NAMED, **{name.upper(): _invert(ranges) for name, ranges in _NAMED.items()}}
_ANY = Chars(_invert(((10, 10), (13, 13), (0x2028, 0x2029))))
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0, "b": 8}
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[dwsDWSnrtfv0]|[^\w])"
_TOKEN = re.compile(
    rf"(?P<open>\((?:\?:|\?P?<\w+>|(?!\?)))|(?P<close>\))|(?P<or>\|)|(?P<boundary>[\^$]|\\[bB])|(?P<any>\.)"
    rf"|\[(?P<inverse>\^?)(?P<members>(?:[^\]\\]|{_ESCAPE}|\\b)*)\]|(?P<char>{_ESCAPE}|[^\\\[(*+?{{])"
    r"|(?P<count>[*+?]|\{(?P<low>\d{1,4})(?P<comma>,?)(?P<high>\d{0,4})\})\??",
    re.DOTALL,
)
_MEMBER = re.compile(rf"\\[dwsDWS]|(?P<low>{_ESCAPE}|\\b|[^\\])(?:-(?P<high>{_ESCAPE}|\\b|[^\\]))?", re.DOTALL)


class _Unsupported(Exception):
    """The pattern uses a feature that is not supported."""


def parse(pattern: str) -> Node | None:
    """The parsed pattern; None if it is invalid, too long or not supported."""
    try:
        return _parse(pattern) if len(pattern) <= MAX_PATTERN_CHARS else None
    except _Unsupported:
        return None


def _parse(pattern: str) -> Node:
    groups: list[list[list[Node]]] = [[[]]]  # the open groups, each with its branches
    at, can_repeat = 0, False
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise _Unsupported
        at = token.end()
        branch = groups[-1][-1]
        if token["count"]:
            if not can_repeat:
                raise _Unsupported
            low, high = _COUNTS.get(token["count"], (0, None))
            if token["low"] is not None:
                low = int(token["low"])
                high = int(token["high"]) if token["high"] else None if token["comma"] else low
            branch.append(Repeat(branch.pop(), low, high))
        elif token["open"]:
            groups.append([[]])
        elif token["or"]:
            groups[-1].append([])
        elif token["close"]:
            if len(groups) == 1:
                raise _Unsupported
            group = groups.pop()
            groups[-1][-1].append(Either(tuple(map(tuple, group))))
        else:
            branch.append(_parse_char(token))
        can_repeat = not (token["count"] or token["open"] or token["or"])
        if len(groups) > MAX_GROUP_DEPTH + 1:
            raise _Unsupported
    if len(groups) > 1:
        raise _Unsupported
    return Either(tuple(map(tuple, groups[0])))


def _parse_char(token: re.Match[str]) -> Node:
    """A boundary, a character or a character class."""
    if token["boundary"]:
        return Boundary(token["boundary"][-1])
    if token["members"] is None:
        return _ANY if token["any"] else Chars(_ranges_of(token["char"]))
    ranges: list[tuple[int, int]] = []
    for member in _MEMBER.finditer(token["members"]):
        if member["high"] is None:
            ranges += _ranges_of(member[0])
            continue
        low, high = _ranges_of(member["low"]), _ranges_of(member["high"])
        if high in _CLASSES.values():
            raise _Unsupported
        ranges.append((low[0][0], high[0][1]))
    return Chars(_invert(tuple(ranges)) if token["inverse"] else tuple(ranges))


def _ranges_of(char: str) -> Ranges:
    """The code points that a character or an escape matches."""
    name = char[1:] if len(char) > 1 else ""
    if name in _CLASSES:
        return _CLASSES[name]
    code = int(name[1:], 16) if len(name) > 1 else _CONTROLS.get(name, ord(char[-1]))
    if 0xD800 <= code <= 0xDFFF:
        raise _Unsupported
    return ((code, code),)


def ignore_case(node: Node) -> Node:
    """The pattern for ASCII letters of either case."""
    match node:
        case Chars(ranges):
            other = [
                (max(low, first) + shift, min(high, last) + shift)
                for low, high in ranges
                for first, last, shift in ((65, 90, 32), (97, 122, -32))
                if low <= last and high >= first
            ]
            return Chars((*ranges, *other))
        case Either(branches):
            return Either(tuple(tuple(map(ignore_case, branch)) for branch in branches))
        case Repeat():
            return Repeat(ignore_case(node.node), node.low, node.high)
        case Boundary():
            return node


def matches(node: Node, text: str, budget: Budget) -> bool:
    """Whether the pattern occurs anywhere in the text. Raises `BudgetExceeded`."""
    return bool(_Matcher(text, budget).ends(node, frozenset(range(len(text) + 1))))


class _Matcher:
    """Follows all branches of a pattern at once: from a set of offsets in the text to the offsets after a node."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text = text
        self._budget = budget

    def ends(self, node: Node, starts: frozenset[int]) -> frozenset[int]:
        self._budget.spend(1 + len(starts) // 8)
        match node:
            case Chars():
                return frozenset(at + 1 for at in starts if at < len(self._text) and node.has(self._text[at]))
            case Boundary(sign):
                return frozenset(at for at in starts if self._is_boundary(sign, at))
            case Either(branches):
                found = frozenset[int]()
                for branch in branches:
                    reached = starts
                    for each in branch:
                        reached = self.ends(each, reached)
                    found |= reached
                return found
            case Repeat(inner, low, high):
                for _ in range(low):
                    starts = self.ends(inner, starts) if starts else starts
                found, new, times = starts, starts, low
                while new and (high is None or times < high):
                    new = self.ends(inner, new) - found
                    found |= new
                    times += 1
                return found

    def _is_boundary(self, sign: str, at: int) -> bool:
        if sign in "^$":
            return at == (0 if sign == "^" else len(self._text))
        sides = self._text[at - 1 : at] if at else "", self._text[at : at + 1]
        before, after = (Chars(_WORD).has(char or " ") for char in sides)
        return (before != after) == (sign == "b")
