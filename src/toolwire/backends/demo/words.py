"""The words of a prompt: what it says, and the values in it that arguments can be made of.

Search "foo bar" in src/main.py and show 3 lines
words: search, in, and, show, lines   values: "foo bar" (quoted), src/main.py (a path), 3 (a number)
"""

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import islice
from typing import Literal, TypeAlias

import msgspec

from toolwire.backends.demo.vocabulary import QUESTIONS, concept

LONGEST = 64 * 1024
"""Characters of a prompt that are looked at."""

MOST_PARTS = 8
"""Parts of an enumeration that are looked at for names."""

Kind: TypeAlias = Literal["word", "code", "quoted", "path", "url", "name", "number"]

_TOKEN = re.compile(
    r"```(?:\w*\n)?(?P<fence>[^`]+)```|`(?P<code>[^`]+)`|\"(?P<double>[^\"]+)\"|“(?P<curly>[^”]+)”"
    r"|(?<![\w'])'(?P<single>[^'\n]+)'(?![\w'])|(?P<chunk>[^\s`\"“]+)"
)
_PATH = re.compile(
    r"(?:(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[\w*.~@+-]+[/\\])*[\w*.~@+-]*"
    r"|(?:[\w*.~@+-]+/)*[\w*@+-]+(?:\.[\w*+-]+)*\.[A-Za-z*]\w{0,7}"
    r"|(?:[\w.@+-]+/)+|(?:\*\*?/)*\*(?:\.[\w*]+)?|\.[A-Za-z][\w.-]{2,40})"
)
_ABBREVIATIONS = ("e.g", "i.e", "a.k.a", "p.s", "vs")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_WORD = re.compile(r"\w[\w'\u2019-]*")
_PAIR = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z_][\w-]{0,60})[ \t]?[=:][ \t]?"
    r"(?:`(?P<code>[^`]+)`|\"(?P<double>[^\"]+)\"|(?P<plain>[^\s,;`\"]+))"
)
_SEVERAL = re.compile(r"\s*(?:[,;]|\b(?:and|und|et|or)\b)\s+", re.IGNORECASE)
_SENTENCE_ENDS = (".", "!", "?", ":")


class Token(msgspec.Struct, frozen=True):
    """A word or a value, and where it stands, with its quotes."""

    text: str
    kind: Kind
    start: int
    end: int
    opens: bool = False
    """It is the first of a sentence."""

    @property
    def is_name(self) -> bool:
        """Whether it may be a part of a name, by its capital."""
        return self.kind == "word" and self.text[:1].isupper() and not self.opens and self.text != "I"

    @property
    def concept(self) -> str:
        """What a word means; nothing for a value."""
        return concept(self.text) if self.kind == "word" else ""


class Words:
    """A prompt, taken apart."""

    def __init__(self, prompt: str) -> None:
        self.text = prompt[:LONGEST]
        self.tokens = list(_tokens(self.text))

    @cached_property
    def whole(self) -> str:
        """The text without the signs around it."""
        return self.text.strip(" ?!.\n")

    @cached_property
    def concepts(self) -> frozenset[str]:
        """What its words mean."""
        return frozenset(token.concept for token in self.tokens) - {""}

    @cached_property
    def is_question(self) -> bool:
        """Whether something is asked."""
        return "?" in self.text or any(
            token.kind == "word" and token.text.lower() in QUESTIONS and (token.opens or token.text.lower() == "what")
            for token in self.tokens
        )

    def values(self, *kinds: Kind) -> list[str]:
        """The values of these kinds, each once."""
        return list(dict.fromkeys(token.text for token in self.tokens if token.kind in kinds))

    def names(self, but: Collection[str] = ()) -> list[str]:
        """Names, by their capitals: the last one in each part of an enumeration. `Paris, France` is one.

        Words in small letters that are `but` something else are none.
        """
        signs = list(islice(_SEVERAL.finditer(self.text), MOST_PARTS))
        if [sign[0].strip() for sign in signs] == [","]:
            signs = []
        starts = [0, *(sign.end() for sign in signs)]
        ends = [*(sign.start() for sign in signs), len(self.text)]
        found = (self._name(start, end, but) for start, end in zip(starts, ends, strict=True))
        return list(dict.fromkeys(filter(None, found)))

    def _name(self, start: int, end: int, but: Collection[str]) -> str:
        """The last row of capitalised words there."""
        row: list[Token] = []
        for token in reversed(self.tokens):
            if token.start >= end or token.start < start:
                continue
            if token.is_name and token.text.lower() not in but:
                row.insert(0, token)
            elif row:
                break
        return self.text[row[0].start : row[-1].end] if row else ""

    @cached_property
    def pairs(self) -> dict[str, str]:
        """Values that are given by name, such as `city=Paris` or `city: "New York"`."""
        found = _PAIR.finditer(self.text)
        return {
            match["name"].lower(): match["code"] or match["double"] or match["plain"].rstrip(".!?)") for match in found
        }

    def mentions(self, phrase: str) -> bool:
        """Whether a phrase occurs in it, not as part of another word."""
        low = phrase.lower()
        at = self.low.find(low) if low else -1
        while at >= 0:
            end = at + len(low)
            before, after = self.low[max(at - 1, 0) : at], self.low[end : end + 1]
            if not (_is_word(before) and _is_word(low[0])) and not (_is_word(after) and _is_word(low[-1])):
                return True
            at = self.low.find(low, at + 1)
        return False

    @cached_property
    def low(self) -> str:
        """The text in small letters."""
        return self.text.lower()


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _tokens(text: str) -> Iterator[Token]:
    opens = True
    for match in _TOKEN.finditer(text):
        if match["chunk"] is None:
            value = next(group for group in match.groups() if group is not None)
            kind: Kind = "code" if match["fence"] or match["code"] else "quoted"
            yield Token(value.strip() if kind == "code" else value, kind, match.start(), match.end(), opens)
            opens = False
            continue
        for token in _in_chunk(match["chunk"], match.start(), opens=opens):
            yield token
            opens = False
        opens = opens or match["chunk"].endswith(_SENTENCE_ENDS)


def _in_chunk(chunk: str, start: int, *, opens: bool) -> Iterator[Token]:
    """The tokens in a row of characters without white space."""
    inner = chunk.lstrip("([{<,;")
    start += len(chunk) - len(inner)
    inner = inner.rstrip(")]}>,;:!?").removesuffix(".").rstrip(")]}>")
    end = start + len(inner)
    if inner.startswith(("http://", "https://")):
        yield Token(inner, "url", start, end, opens)
    elif _NUMBER.fullmatch(inner):
        yield Token(inner, "number", start, end, opens)
    elif len(inner) > 1 and len(inner) < 1000 and _PATH.fullmatch(inner) and inner.lower() not in _ABBREVIATIONS:
        yield Token(inner, "path", start, end, opens)
    else:
        for word in _WORD.finditer(inner):
            kind: Kind = "number" if _NUMBER.fullmatch(word[0]) else "word"
            at = start + word.start()
            yield Token(word[0], kind, at, at + len(word[0]), opens and word.start() == 0)
