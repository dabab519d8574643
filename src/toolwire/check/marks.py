"""Finds the faulty parts of a frame or a request, so that reports can mark them.

A part is the name of a JSON field, such as `sequence_number` or `tool_calls.id`, or a text. Of the fields with a name,
the least nested are marked: `id` means that of a chunk, not those of its calls.
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

PLAIN_LIMITS, MARKED_LIMITS = (120, 60, 40), (240, 180, 40)
"""The maximum length of a piece that is shown whole; the lengths of head and tail that are shown of a longer one."""


class Piece(msgspec.Struct, frozen=True):
    """A stretch of a text, marked or not."""

    text: str
    is_marked: bool = False


class _Key(msgspec.Struct, frozen=True):
    """A field in a text: its path, and its span."""

    path: tuple[str, ...]
    start: int
    end: int


def mark(text: str, finding: Finding) -> list[Piece]:
    """The text in pieces, with the parts of a finding marked.

    These are the finding's own parts, else the fields of its rule that its detail names, else all fields of its rule.
    """
    fields = RULES[finding.rule].fields
    named = [field for field in fields if re.search(rf"\b{field.rpartition('.')[2]}\b", finding.detail)]
    found = _mark_parts(text, finding.parts or named or fields)
    return found if finding.parts or any(each.is_marked for each in found) else _mark_parts(text, fields)


def shorten(pieces: Sequence[Piece]) -> list[Piece]:
    """Shorten long pieces in the middle, so that the marked ones can be seen."""
    out: list[Piece] = []
    for piece in pieces:
        longest, head, tail = MARKED_LIMITS if piece.is_marked else PLAIN_LIMITS
        text = piece.text if len(piece.text) <= longest else f"{piece.text[:head]}…{piece.text[-tail:]}"
        out.append(Piece(text, piece.is_marked))
    return out


def _mark_parts(text: str, parts: Sequence[str]) -> list[Piece]:
    """The text in pieces, in which these parts are marked, without overlaps."""
    searched = text[:MAX_CHARS]
    keys = [*_find_keys(searched)] if parts else []
    out: list[Piece] = []
    at = marks = 0
    for start, end in sorted(span for part in parts for span in _find_part(searched, part, keys)):
        if end == start or (marks and start < at) or marks == MAX_MARKS:
            continue
        if start > at:
            out.append(Piece(text[at:start]))
        out.append(Piece(text[start:end], is_marked=True))
        at = end
        marks += 1
    return [*out, Piece(text[at:])] if at < len(text) or not out else out


def _find_part(text: str, part: str, keys: Sequence[_Key]) -> list[tuple[int, int]]:
    """The spans of a part: its least nested fields, or else the first occurrence of its text."""
    *outer, name = part.split(".")
    fields: list[_Key] = []
    for key in keys:
        path = iter(key.path[:-1])
        if key.path[-1] == name and all(each in path for each in outer):  # in this order
            fields.append(key)
    if fields:
        least = min(len(key.path) for key in fields)
        return [(key.start, key.end) for key in fields if len(key.path) == least]
    at = text.find(part) if part else -1
    return [(at, at + len(part))] if at >= 0 else []


def _find_keys(text: str) -> Iterator[_Key]:
    """All fields of the JSON in a text, even if the JSON is incomplete."""
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
            try:
                end = _DECODER.raw_decode(text, colon.end())[1]
            except (ValueError, RecursionError):
                line_end = text.find("\n", colon.end())
                end = line_end if line_end >= 0 else len(text)
            yield _Key((*(name for name in path if name), latest), token.start(), end)
