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
    is_inverse: bool = False
    """Whether the class was written as the characters that it does not match."""

    def contains(self, char: str) -> bool:
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
_CHARS_OF_WORDS = Chars(_WORD)
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


def parse(pattern: str) -> Node | None:
    """The parsed pattern; None if it is invalid, too long or not supported."""
    groups: list[list[list[Node]]] = [[[]]]  # the open groups, each with its branches
    at, can_repeat = 0, False
    if len(pattern) > MAX_PATTERN_CHARS:
        return None
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or (token["count"] and not can_repeat) or (token["close"] and len(groups) == 1):
            return None
        at = token.end()
        branch = groups[-1][-1]
        if token["count"]:
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
            group = groups.pop()
            groups[-1][-1].append(Either(tuple(map(tuple, group))))
        elif (node := _parse_char(token)) is not None:
            branch.append(node)
        else:
            return None
        can_repeat = not (token["count"] or token["open"] or token["or"])
        if len(groups) > MAX_GROUP_DEPTH + 1:
            return None
    return Either(tuple(map(tuple, groups[0]))) if len(groups) == 1 else None


def _parse_char(token: re.Match[str]) -> Node | None:
    """A boundary, a character or a character class; None if it is not supported."""
    if token["boundary"]:
        return Boundary(token["boundary"][-1])
    if token["any"]:
        return _ANY
    ranges: list[tuple[int, int]] = []
    for member in _MEMBER.finditer(token["char"] or token["members"]):
        low = _ranges_of(member["low"] or member[0])
        high = _ranges_of(member["high"]) if member["high"] else low
        if not low or not high or (member["high"] and high in _CLASSES.values()):
            return None
        ranges += ((low[0][0], high[0][1]),) if member["high"] else low
    return Chars(_invert(tuple(ranges)), True) if token["inverse"] else Chars(tuple(ranges))


def _ranges_of(char: str) -> Ranges:
    """The code points that a character or an escape matches; none for a surrogate, which is not supported."""
    name = char[1:]
    if name in _CLASSES:
        return _CLASSES[name]
    code = int(name[1:], 16) if len(name) > 1 else _CONTROLS.get(name, ord(char[-1]))
    return ((code, code),) if not 0xD800 <= code <= 0xDFFF else ()


def matches(node: Node, text: str, budget: Budget, *, ignore_case: bool = False) -> bool:
    """Whether the pattern occurs anywhere in the text. `ignore_case` applies to ASCII letters only.

    Raises `BudgetExceeded`.
    """
    chars = [char + char.swapcase() if ignore_case and char.isascii() else char for char in text]
    return bool(_find_ends(node, frozenset(range(len(text) + 1)), chars, budget))


def _find_ends(node: Node, starts: frozenset[int], chars: list[str], budget: Budget) -> frozenset[int]:
    """Follow all branches from these offsets to those after the node. `chars[n]` has both cases if case is ignored."""
    budget.spend(1 + len(starts) // 8)
    match node:
        case Chars(is_inverse=is_inverse):  # in either case, no letter of an inverse class may match
            some = all if is_inverse else any
            return frozenset(at + 1 for at in starts if at < len(chars) and some(map(node.contains, chars[at])))
        case Boundary(sign):
            return frozenset(at for at in starts if _is_boundary(sign, at, chars))
        case Either(branches):
            found = frozenset[int]()
            for branch in branches:
                reached = starts
                for each in branch:
                    reached = _find_ends(each, reached, chars, budget)
                found |= reached
            return found
        case Repeat(inner, low, high):
            for _ in range(low):
                starts = _find_ends(inner, starts, chars, budget) if starts else starts
            found, new, times = starts, starts, low
            while new and (high is None or times < high):
                new = _find_ends(inner, new, chars, budget) - found
                found |= new
                times += 1
            return found


def _is_boundary(sign: str, at: int, chars: list[str]) -> bool:
    if sign in "^$":
        return at == (0 if sign == "^" else len(chars))
    before, after = (0 <= side < len(chars) and _CHARS_OF_WORDS.contains(chars[side][0]) for side in (at - 1, at))
    return (before != after) == (sign == "b")
