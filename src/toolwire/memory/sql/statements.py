"""Loads the statements of the .sql files, and adapts them to one engine.

    -- name: load
    -- What a reader has to know about it.
    SELECT {record} FROM toolwire.holders h WHERE id = :id

`:id` is a value. `{record}` stands for the text of that name, which each engine supplies where its tables or functions
differ. Statements are written for PostgreSQL. For SQLite the replacements below are made: it has one writer at a time,
so it needs no row locks, and its times are numbers that the engine supplies.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_COMMENT = re.compile(r"^--(?! name: ).*\n?", re.MULTILINE)
_HEADING = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")
_VALUE = re.compile(r"(?<!:):([a-z_]+)")
_ARRAY = re.compile(r"json_each\(:(\w+)\)")
_FOR_SQLITE = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\btoolwire\.", ""),
        (r"::[a-z0-9]+(\[\])?", ""),
        (r"= ANY \((:\w+)\)", r"IN (SELECT value FROM json_each(\1))"),
        (r"\bnow\(\)", ":now"),
        (r" \* interval '1 second'", ""),
        (r"\bFOR (UPDATE|SHARE)( OF \w+)?( SKIP LOCKED)?", ""),
        (r"\bfalse\b", "0"),
        (r"\btrue\b", "1"),
        (r"\bto_timestamp\((:\w+)\)", r"\1"),
        (r"\bextract\(epoch FROM (\w+)\)", r"\1"),
    )
)


def read_statements(file: Path) -> dict[str, str]:
    """The texts of a file by name, without comments."""
    _, *parts = _HEADING.split(_COMMENT.sub("", file.read_text("utf-8")))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


SHARED = {name: text for file in Path(__file__).parent.glob("*.sql") for name, text in read_statements(file).items()}
"""The statements of both engines."""


class Prepared(NamedTuple):
    """A statement in the SQL of one engine."""

    text: str
    names: tuple[str, ...]
    """The names of its values: in PostgreSQL the first is `$1`, the second `$2`, and so on."""
    arrays: tuple[str, ...] = ()
    """Those that SQLite takes as a JSON array."""
    times: tuple[str, ...] = ()
    """Those that SQLite's engine supplies."""


class Statements(dict[str, Prepared]):
    """The statements of one engine by name, each prepared on first use. A key may also be the text of a statement."""

    def __init__(self, own: Mapping[str, str], *, is_sqlite: bool) -> None:
        self.texts = {**SHARED, **own}
        self._is_sqlite = is_sqlite

    def compose(self, name: str, parts: Mapping[str, str]) -> str:
        """The text of this name, with these fragments filled in."""
        return self._fill(self.texts[name], {**self.texts, **parts})

    def __missing__(self, key: str) -> Prepared:
        text = self._fill(self.texts.get(key, key), self.texts)
        if self._is_sqlite:
            for pattern, replacement in _FOR_SQLITE:
                text = pattern.sub(replacement, text)
        names = tuple(dict.fromkeys(_VALUE.findall(text)))
        if self._is_sqlite:
            times = tuple(name for name in names if name in ("now", "uptime", "boot"))
            self[key] = prepared = Prepared(text, names, tuple(_ARRAY.findall(text)), times)
        else:
            numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
            self[key] = prepared = Prepared(_VALUE.sub(lambda found: numbers[found[1]], text), names)
        return prepared

    def _fill(self, text: str, fragments: Mapping[str, str]) -> str:
        while _FRAGMENT.search(text):
            text = _FRAGMENT.sub(lambda found: fragments[found[1]], text)
        return text
