"""What a pattern matches: whether it is found in a text, and texts in which it is found."""

from collections.abc import Iterator
from functools import lru_cache

from toolwire.backends.demo.schema.budget import Budget
from toolwire.backends.demo.schema.regex import LONGEST, WORD, Chars, Edge, Either, Node, Repeat, Row

_USUAL = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_. /:@"


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
            case Row(nodes):
                for each in nodes:
                    starts = self.ends(each, starts)
                return starts
            case Either(nodes):
                return frozenset[int]().union(*(self.ends(each, starts) for each in nodes))
            case Edge(sign):
                return frozenset(at for at in starts if self._is_edge(sign, at))
            case Repeat():
                return self._repeated(node, starts)

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
        if sign == "^":
            return at == 0
        if sign == "$":
            return at == len(self._text)
        word = Chars(WORD)
        before = at > 0 and word.has(self._text[at - 1])
        after = at < len(self._text) and word.has(self._text[at])
        return (before != after) == (sign == "b")


def texts(node: Node, shortest: int, budget: Budget) -> Iterator[str]:
    """Texts that the pattern should match, with at least so many characters if its repetitions allow it."""
    for turn in range(24):
        for branch in range(3):
            text = _Writer(shortest, turn, branch, budget).write(node)
            if text is not None:
                yield text


class _TooLong(Exception):
    """A text has more characters than any may have."""


class _Writer:
    """Writes a text: each repetition as seldom as it may be, the first ones more often if it would be too short."""

    def __init__(self, shortest: int, turn: int, branch: int, budget: Budget) -> None:
        self._spare = 0
        self._budget = budget
        self._shortest = shortest
        self._turn = turn
        self._branch = branch

    def write(self, node: Node) -> str | None:
        try:
            text = self._text(node)
            if len(text) < self._shortest:
                self._spare = self._shortest - len(text)
                text = self._text(node)
        except _TooLong:
            return None
        return text

    def _text(self, node: Node) -> str:
        self._budget.spend(1)
        match node:
            case Chars():
                return _some(node, self._turn)
            case Row(nodes):
                return _joined(self._text(each) for each in nodes)
            case Either(nodes):
                return self._text(nodes[(self._turn + self._branch) % len(nodes)])
            case Edge():
                return ""
            case Repeat():
                return self._repeated(node)

    def _repeated(self, node: Repeat) -> str:
        least = max(node.low, 1) if self._branch and node.high != 0 else node.low
        text = _joined(self._text(node.node) for _ in range(least))
        times = least
        while self._spare > 0 and (node.high is None or times < node.high):
            more = self._text(node.node)
            if not more:
                break
            text = _joined((text, more))
            self._spare -= len(more)
            times += 1
        return text


def _joined(texts: Iterator[str] | tuple[str, str]) -> str:
    """The texts together; raises `_TooLong` if that gets too long."""
    found: list[str] = []
    length = 0
    for text in texts:
        found.append(text)
        length += len(text)
        if length > LONGEST:
            raise _TooLong
    return "".join(found)


def _some(chars: Chars, turn: int) -> str:
    """One of the characters, another one in each turn if there are several."""
    usual = _usual(chars)
    if usual:
        return usual[turn % len(usual)]
    return chr(chars.ranges[0][0]) if chars.ranges else ""


@lru_cache(maxsize=256)
def _usual(chars: Chars) -> str:
    """The usual characters among these."""
    return "".join(filter(chars.has, _USUAL))
