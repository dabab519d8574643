"""One SQL for two engines.

Statements are written for PostgreSQL. `:name` is a value. `{name}` is one of the few expressions that each engine
writes in its own way, mostly because its tables have other columns; `sqlite/schema.py` and `postgres/schema.py` list
theirs. SQLite gets the text after the replacements below: it has one writer at a time, so it needs no row locks, and
its times are numbers that the engine supplies as `:now`.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

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
_FRAGMENT = re.compile(r"\{(\w+)\}")
_NAME = re.compile(r"(?<!:):([a-z_]+)")
_ARRAY = re.compile(r"json_each\(:(\w+)\)")


class Prepared(NamedTuple):
    """A statement in the words of one engine."""

    text: str
    names: tuple[str, ...]
    """The values that it names, in the order of PostgreSQL's numbers."""
    arrays: tuple[str, ...] = ()
    """Those that SQLite takes as a JSON array."""
    times: tuple[str, ...] = ()
    """Those that SQLite's engine supplies."""


class Dialect(dict[str, Prepared]):
    """Statements as one engine needs them, each prepared when it is used first."""

    def __init__(self, fragments: Mapping[str, str], *, is_sqlite: bool) -> None:
        self._fragments = fragments
        self._is_sqlite = is_sqlite

    def __missing__(self, statement: str) -> Prepared:
        self[statement] = prepared = self._prepare(statement)
        return prepared

    def _prepare(self, text: str) -> Prepared:
        while _FRAGMENT.search(text):
            text = _FRAGMENT.sub(lambda found: self._fragments[found[1]], text)
        if self._is_sqlite:
            for pattern, replacement in _FOR_SQLITE:
                text = pattern.sub(replacement, text)
        names = tuple(dict.fromkeys(_NAME.findall(text)))
        if self._is_sqlite:
            times = tuple(name for name in names if name in ("now", "uptime", "boot"))
            return Prepared(text, names, tuple(_ARRAY.findall(text)), times)
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        return Prepared(_NAME.sub(lambda found: numbers[found[1]], text), names)
