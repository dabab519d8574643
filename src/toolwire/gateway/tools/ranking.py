"""Which tools fit a search: by the words of a question (BM25), or by a regular expression.

What is looked at is the name, the namespace, the description and the names of the parameters.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
from typing import Any, cast

import msgspec

from toolwire.core import regex
from toolwire.core.regex import Budget, TooMuch
from toolwire.core.request import Tool

SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""The usual parameters of BM25: how much a repeated word counts, and how much the length of a text does."""
NAME_WEIGHT = 3
"""A word of the name counts as often."""
MAX_CHARS = 2000
"""Characters of a description that are looked at."""
MAX_PATTERN = 200
"""Characters of a regular expression."""
MAX_STEPS = 400_000
"""Steps of one search by a regular expression: about a second of CPU."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+|[^\W0-9A-Za-z_]+")
_FLAGS = re.compile(r"\(\?[aimsux]+\)")


class BadPattern(Exception):
    """A regular expression that cannot be used; the message says why."""


class SearchTooLong(Exception):
    """A search has used all its steps and found nothing."""


def by_words(question: str, tools: Sequence[Tool], limit: int) -> list[Tool]:
    """The tools that fit a question best, the best first; equal ones in the order in which they are declared."""
    documents = [Counter(_words_of(tool)) for tool in tools]
    lengths = [document.total() for document in documents]
    average = sum(lengths) / len(lengths) if tools else 0
    asked = dict.fromkeys(_words(question[:MAX_CHARS]))
    weights = {word: _rarity(sum(word in document for document in documents), len(documents)) for word in asked}
    scores = [
        sum(weights[word] * _share(document[word], length / average) for word in asked if word in document)
        for document, length in zip(documents, lengths, strict=True)
    ]
    ranked = sorted((index for index, score in enumerate(scores) if score > 0), key=lambda index: -scores[index])
    return [tools[index] for index in ranked[:limit]]


def _rarity(count: int, total: int) -> float:
    return log(1 + (total - count + 0.5) / (count + 0.5))


def _share(count: int, length: float) -> float:
    return count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length))


def _words_of(tool: Tool) -> list[str]:
    named = _words(tool.name) * NAME_WEIGHT + _words(tool.namespace)
    return named + _words(" ".join((tool.description[:MAX_CHARS], *_parameters(tool))))


def _words(text: str) -> list[str]:
    """The words of a text, also of `snake_case` and `camelCase`, in small letters and without a plural `s`."""
    found = [word.lower() for word in _WORD.findall(text)]
    return [word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word for word in found]


def _parameters(tool: Tool) -> list[str]:
    """The names of the parameters of a tool."""
    try:
        read: Any = msgspec.json.decode(tool.parameters or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return []
    properties: Any = cast("dict[str, Any]", read).get("properties") if isinstance(read, dict) else None
    return list(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else []


def by_pattern(pattern: str, tools: Sequence[Tool], limit: int) -> list[Tool]:
    """The tools in which a regular expression is found, in any case; those with it in their name come first.

    The matcher takes steps in proportion to pattern and text, so no pattern keeps it busy, and they are counted.
    """
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"the regular expression has more than {MAX_PATTERN} characters")
    node = regex.read(_FLAGS.sub("", pattern))
    if node is None:
        raise BadPattern(f"the regular expression {pattern!r} is not valid, or has look-around or back references")
    node, budget, found = regex.ignoring_case(node), Budget(MAX_STEPS), dict[int, Tool]()
    names = [f"{tool.namespace}__{tool.name}" if tool.namespace else tool.name for tool in tools]
    others = [" ".join((tool.description[:MAX_CHARS], *_parameters(tool))) for tool in tools]
    try:
        for texts in (names, others):
            for index, text in enumerate(texts):
                if len(found) == limit:
                    break
                if index not in found and regex.matches(node, text, budget):
                    found[index] = tools[index]
    except TooMuch:
        if not found:
            raise SearchTooLong from None
    return list(found.values())
