"""Finds tools by keywords (BM25), or by a regular expression.

Both search the name, the namespace, the description and the names of the parameters.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
from typing import Any, cast

import msgspec

from toolwire.core import regex
from toolwire.core.regex import Budget, BudgetExceeded
from toolwire.core.request import Tool

SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""The usual parameters of BM25 (k1, b): the weight of a repeated word, and of the length of a text."""
NAME_WEIGHT = 3
"""How many times a word of the name counts."""
MAX_CHARS = 2000
"""Maximum characters of a description that are searched."""
MAX_PATTERN = 200
"""Maximum characters of a regular expression."""
MAX_STEPS = 400_000
"""Maximum steps of one search by a regular expression: about a second of CPU."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+|[^\W0-9A-Za-z_]+")
_FLAGS = re.compile(r"\(\?[aimsux]+\)")


class BadPattern(Exception):
    """An unusable regular expression; the message says why."""


class SearchTooLong(Exception):
    """A search has used all its steps without a match."""


def search_by_words(question: str, tools: Sequence[Tool], limit: int) -> list[Tool]:
    """The tools that match a question, best first; equal matches in the order of declaration."""
    documents = [
        Counter(
            _split_words(tool.name) * NAME_WEIGHT
            + _split_words(tool.namespace)
            + _split_words(" ".join((tool.description[:MAX_CHARS], *_list_parameters(tool))))
        )
        for tool in tools
    ]
    lengths = [document.total() for document in documents]
    average = sum(lengths) / len(lengths) if tools else 0
    asked = dict.fromkeys(_split_words(question[:MAX_CHARS]))
    counts = {word: sum(word in document for document in documents) for word in asked}
    weights = {word: log(1 + (len(tools) - count + 0.5) / (count + 0.5)) for word, count in counts.items()}
    scores = [
        sum(weights[word] * _saturate(document[word], length / average) for word in asked if word in document)
        for document, length in zip(documents, lengths, strict=True)
    ]
    ranked = sorted((index for index, score in enumerate(scores) if score > 0), key=lambda index: -scores[index])
    return [tools[index] for index in ranked[:limit]]


def _saturate(count: int, length: float) -> float:
    """The weight of a word that occurs `count` times in a text of this length, relative to the average."""
    return count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length))


def _split_words(text: str) -> list[str]:
    """The words of a text, including those in `snake_case` and `camelCase`, in lower case and without a plural `s`."""
    found = [word.lower() for word in _WORD.findall(text)]
    return [word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word for word in found]


def _list_parameters(tool: Tool) -> list[str]:
    """The names of the parameters of a tool."""
    try:
        read: Any = msgspec.json.decode(tool.parameters or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return []
    properties: Any = cast("dict[str, Any]", read).get("properties") if isinstance(read, dict) else None
    return list(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else []


def search_by_pattern(pattern: str, tools: Sequence[Tool], limit: int) -> list[Tool]:
    """The tools that match a regular expression, ignoring case; matches in the name come first.

    Matching is linear in pattern and text, and its steps are limited. Raises `BadPattern` and `SearchTooLong`.
    """
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"the regular expression has more than {MAX_PATTERN} characters")
    node = regex.parse(_FLAGS.sub("", pattern))
    if node is None:
        raise BadPattern(f"the regular expression {pattern!r} is not valid, or has look-around or back references")
    budget, found = Budget(MAX_STEPS), dict[int, Tool]()
    names = [f"{tool.namespace}__{tool.name}" if tool.namespace else tool.name for tool in tools]
    others = [" ".join((tool.description[:MAX_CHARS], *_list_parameters(tool))) for tool in tools]
    try:
        for texts in (names, others):
            for index, text in enumerate(texts):
                if len(found) == limit:
                    break
                if index not in found and regex.matches(node, text, budget, ignore_case=True):
                    found[index] = tools[index]
    except BudgetExceeded:
        if not found:
            raise SearchTooLong from None
    return list(found.values())
