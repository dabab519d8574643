"""Finds what is wrong inside of a frame or a request, so that reports can mark it.

A part is the name of a JSON field, such as `sequence_number` or `tool_calls.id`, or a text. A field is marked where it
is least nested: `id` is that of a chunk, not those of the calls in it.
"""

import json
import re
from collections.abc import Iterator, Sequence

import msgspec

from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Finding

MAX_CHARS = 65_536
"""Characters of one text that are searched."""
MAX_MARKS = 8
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_COLON = re.compile(r"\s*:\s*")
_DECODER = json.JSONDecoder()

LONG_PLAIN, LONG_MARKED = (120, 60, 40), (240, 180, 40)
"""From how many characters on a piece is shortened, and how many of its beginning and its end are left."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a text, which is marked or not."""

    text: str
    is_marked: bool = False


class _Key(msgspec.Struct, frozen=True):
    """A field in a text: the names that lead to it, and where it begins and ends."""

    path: tuple[str, ...]
    start: int
    end: int


def marked(text: str, finding: Finding) -> list[Piece]:
    """The text in pieces, in which what the finding is about is marked.

    That is the finding's own parts; or those fields of its rule that its detail names; or all fields of its rule.
    """
    fields = RULES[finding.rule].fields
    named = [field for field in fields if re.search(rf"\b{field.rpartition('.')[2]}\b", finding.detail)]
    found = pieces(text, finding.parts or named or fields)
    return found if finding.parts or any(each.is_marked for each in found) else pieces(text, fields)


def pieces(text: str, parts: Sequence[str]) -> list[Piece]:
    """The text in pieces, in which these parts are marked."""
    out: list[Piece] = []
    at = 0
    for start, end in _spans(text[:MAX_CHARS], parts):
        if start > at:
            out.append(Piece(text[at:start]))
        out.append(Piece(text[start:end], is_marked=True))
        at = end
    return [*out, Piece(text[at:])] if at < len(text) or not out else out


def shortened(all_pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with their long stretches left out, so that the marked ones can be seen."""
    return [Piece(_shorten(each), each.is_marked) for each in all_pieces]


def _shorten(piece: Piece) -> str:
    longest, head, tail = LONG_MARKED if piece.is_marked else LONG_PLAIN
    text = piece.text
    return text if len(text) <= longest else f"{text[:head]}…{text[-tail:]}"


def _spans(text: str, parts: Sequence[str]) -> list[tuple[int, int]]:
    """Where the parts are, in order and without overlaps."""
    keys = [*_keys(text)] if parts else []
    found = [span for part in parts for span in _of_part(text, part, keys)]
    out: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if end > start and (not out or start >= out[-1][1]):
            out.append((start, end))
    return out[:MAX_MARKS]


def _of_part(text: str, part: str, keys: Sequence[_Key]) -> list[tuple[int, int]]:
    names = part.split(".")
    fields = [key for key in keys if key.path[-1] == names[-1] and _are_within(names[:-1], key.path[:-1])]
    if fields:
        least = min(len(key.path) for key in fields)
        return [(key.start, key.end) for key in fields if len(key.path) == least]
    at = text.find(part) if part else -1
    return [(at, at + len(part))] if at >= 0 else []


def _are_within(names: Sequence[str], path: Sequence[str]) -> bool:
    """Whether the path goes through these names, in this order."""
    rest = iter(path)
    return all(name in rest for name in names)


def _keys(text: str) -> Iterator[_Key]:
    """All fields of the JSON in a text, also where the JSON is not whole."""
    path: list[str] = []
    latest = ""
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "{[":
            path.append(latest)
            latest = ""
        elif first in "}]":
            latest = path.pop() if path else ""
        elif colon := _COLON.match(text, token.end()):
            latest = token[0][1:-1]
            names = tuple(name for name in path if name)
            yield _Key((*names, latest), token.start(), _end_of_value(text, colon.end()))


def _end_of_value(text: str, start: int) -> int:
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        line_end = text.find("\n", start)
        return line_end if line_end >= 0 else len(text)
