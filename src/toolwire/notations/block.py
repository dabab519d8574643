"""Reads the inside of one block as it flows, for any notation.

The parser is a set of generators that yield when they lack text, so it reads top to bottom. It reports the name as soon
as it is settled and every piece of the arguments as soon as it is certain; only a possible tag is held back.
"""

import re
from collections.abc import Generator
from typing import TypeAlias

import msgspec

from toolwire.core.text import is_json
from toolwire.notations.table import JS_SPACE, Json, Notation, Tags
from toolwire.notations.values import Schemas, escaped, is_text, typed

LIMIT = 1024 * 1024
"""Most characters one undivided piece of a block (a name, a tag, a typed value) may have."""

_TAG_LIMIT = 256
_SPACE = re.compile(r"\s*")
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\\x00-\x1f]')
_SCALAR_END = re.compile(r"[\s,}\]]")

Steps: TypeAlias = Generator[None, None, None]


class Malformed(Exception):
    """The block is not a call."""


class Block:
    """One open block. `name` is empty until known; `taken` drains the argument text read so far."""

    def __init__(self, notation: Notation, schemas: Schemas, names: frozenset[str] | None) -> None:
        self._notation = notation
        self._schemas = schemas
        self._names = names  # the only ones that count, if given
        self._text = ""
        self._place = 0
        self._pieces: list[str] = []
        self._values: list[tuple[str, str]] = []  # values read before the name was known
        self._count = 0
        self.name = ""
        self.whole = False  # the arguments are complete, whatever becomes of the closing tag
        self.closed = False
        self.repaired = False
        self._steps = self._read()
        next(self._steps)

    def feed(self, text: str) -> None:
        """Read on until more text is needed or the block is closed. Raises `Malformed`."""
        self._text = self._text[self._place :] + text
        self._place = 0
        try:
            next(self._steps)
        except StopIteration:
            self.closed = True

    def unread(self) -> str:
        """What was fed and not read."""
        return self._text[self._place :]

    def taken(self) -> str:
        """Argument text that is certain and was not taken before. Nothing before the name is known."""
        if not self.name:
            return ""
        taken = "".join(self._pieces)
        self._pieces.clear()
        return taken

    # The body

    def _read(self) -> Steps:
        yield
        first = yield from self._next_char()
        if first == "{":
            yield from self._json(self._notation.json)
        elif first == "<":
            yield from self._tags(self._notation.tags)
        elif self._notation.bare_names and self._names is not None:
            yield from self._bare_name()
        else:
            raise Malformed("no name")
        yield from self._closing()

    def _closing(self) -> Steps:
        if not self.name:
            raise Malformed("no name")
        self.whole = True
        if (yield from self._next_char()) in "}]>":
            self._place += 1
            self.repaired = True
            yield from self._next_char()
        close = self._notation.close
        while not self._text.startswith(close, self._place):
            if not close.startswith(self._text[self._place :]):
                raise Malformed("text after the call")
            yield
        self._place += len(close)

    def _settle_name(self, name: str) -> None:
        name = name.strip(JS_SPACE)
        if not name:
            raise Malformed("no name")
        if self._names is not None and name not in self._names:
            raise Malformed("not a declared tool")
        self.name = name
        for parameter, value in self._values:
            self._put_value(parameter, value)
        self._values = []

    def _bare_name(self) -> Steps:
        name = yield from self._until("<", _TAG_LIMIT)
        self._place -= 1
        self._settle_name(name)
        self._pieces.append("{}")

    # JSON

    def _json(self, keys: Json) -> Steps:
        self._place += 1
        arguments = False
        while (char := (yield from self._next_char())) != "}":
            if char == ",":
                self._place += 1
                continue
            key = yield from self._string()
            if (yield from self._next_char()) != ":":
                raise Malformed("not JSON")
            self._place += 1
            first = yield from self._next_char()
            if key in keys.name and first == '"' and not self.name:
                self._settle_name((yield from self._string()))
            elif key in keys.arguments and not arguments:
                arguments = True
                yield from self._json_arguments(first)
            else:
                yield from self._value(first, [])
        self._place += 1
        if not arguments:
            self._pieces.append("{}")

    def _json_arguments(self, first: str) -> Steps:
        if first in "{[":
            yield from self._value(first, self._pieces)
            return
        if first == '"':
            text = yield from self._string()
        else:
            text = yield from self._scalar()
        self._pieces.append("{}" if text.strip() in ("", "null") else text)

    def _value(self, first: str, sink: list[str]) -> Steps:
        if first not in '{["':
            yield from self._scalar()
            return
        depth = 0
        while True:
            found = yield from self._find(_OUTSIDE, sink)
            sink.append(found)
            if found == '"':
                yield from self._rest_of_string(sink)
            else:
                depth += 1 if found in "{[" else -1
            if depth == 0:
                return

    def _rest_of_string(self, sink: list[str]) -> Steps:
        while True:
            found = yield from self._find(_INSIDE, sink)
            if found == "\\":
                escape = yield from self._take(1)
                sink.append(found + escape)
            elif found == '"':
                sink.append(found)
                return
            else:
                self.repaired = True
                sink.append(escaped(found))

    def _string(self) -> Generator[None, None, str]:
        """A whole JSON string, decoded."""
        if (yield from self._take(1)) != '"':
            raise Malformed("not JSON")
        pieces = ['"']
        yield from self._rest_of_string(pieces)
        try:
            return msgspec.json.decode("".join(pieces), type=str)
        except msgspec.DecodeError:
            raise Malformed("not JSON") from None

    def _scalar(self) -> Generator[None, None, str]:
        start: list[str] = []
        while True:
            found = _SCALAR_END.search(self._text, self._place)
            end = found.start() if found else len(self._text)
            start.append(self._text[self._place : end])
            self._place = end
            if found:
                break
            yield
        text = "".join(start)
        if not is_json(text):
            raise Malformed("not JSON")
        return text

    def _find(self, pattern: re.Pattern[str], sink: list[str]) -> Generator[None, None, str]:
        """Move behind the next match, keeping what stands before it."""
        while True:
            found = pattern.search(self._text, self._place)
            end = found.start() if found else len(self._text)
            if end > self._place:
                sink.append(self._text[self._place : end])
            if found:
                self._place = found.end()
                return found[0]
            self._place = end
            yield

    # Tags

    def _tags(self, tags: Tags) -> Steps:
        while True:
            if (yield from self._next_char()) != "<":
                raise Malformed("text between tags")
            tag = yield from self._tag()
            if tag == self._notation.close:
                self._place -= len(tag)
                break
            named = tags.name.fullmatch(tag)
            opened = tags.parameter.fullmatch(tag)
            if named and not self.name:
                name = (yield from self._until(tags.name_close, _TAG_LIMIT)) if tags.name_close else named[1]
                self._settle_name(name)
            elif opened:
                yield from self._parameter(opened[1], tags)
            elif tag not in tags.ignored:
                raise Malformed("unknown tag")
        self._pieces.append("}" if self._count else "{}")

    def _tag(self) -> Generator[None, None, str]:
        """A whole tag. It stays in the buffer until then, so that the closing tag can be put back."""
        return (yield from self._until(">", _TAG_LIMIT)) + ">"

    def _parameter(self, parameter: str, tags: Tags) -> Steps:
        close = tags.parameter_close.format(parameter)
        if self.name and is_text(self._schemas.types(self.name, parameter)):
            self._open_parameter(parameter)
            self._pieces.append('"')
            yield from self._flow(close, tags)
            self._pieces.append('"')
            return
        value = _trimmed("".join((yield from self._collect(close))), tags)
        if self.name:
            self._put_value(parameter, value)
        else:
            self._values.append((parameter, value))

    def _put_value(self, parameter: str, value: str) -> None:
        self._open_parameter(parameter)
        self._pieces.append(typed(value, self._schemas.types(self.name, parameter)))

    def _open_parameter(self, parameter: str) -> None:
        self._pieces.append(("," if self._count else "{") + f'"{escaped(parameter)}":')
        self._count += 1

    def _flow(self, close: str, tags: Tags) -> Steps:
        """A string value, piece by piece: only its possible end and the space before it wait."""
        waiting: list[str] = []
        size = 0
        begun = False
        while True:
            piece, ending = self._value_piece(close)
            if not ending and not piece.strip(JS_SPACE):
                waiting.append(piece)
                size += len(piece)
                if size > LIMIT:
                    raise Malformed("a value of nothing but space")
                yield
                continue
            piece = "".join((*waiting, piece))
            if not begun:
                piece = _cut_start(piece, tags)
                begun = True
            if ending:
                self._pieces.append(escaped(_cut_end(piece, tags)))
                _refuse(ending, close)
                return
            kept = piece.rstrip(JS_SPACE)
            waiting = [piece[len(kept) :]]
            size = len(waiting[0])
            self._pieces.append(escaped(kept))
            yield

    def _collect(self, close: str) -> Generator[None, None, list[str]]:
        pieces: list[str] = []
        size = 0
        while True:
            piece, ending = self._value_piece(close)
            pieces.append(piece)
            size += len(piece)
            if ending:
                _refuse(ending, close)
                return pieces
            if size > LIMIT:
                raise Malformed("too long")
            yield

    def _value_piece(self, close: str) -> tuple[str, str]:
        """As much of a value as is certain, and the marker that ended it, if one did."""
        markers = (close, self._notation.close)
        places = [(place, marker) for marker in markers if (place := self._text.find(marker, self._place)) >= 0]
        if places:
            end, marker = min(places)
        else:
            end = len(self._text) - max(_overlap(self._text, each, self._place) for each in markers)
            marker = ""
        piece = self._text[self._place : end]
        self._place = end + len(marker)
        return piece, marker

    # Reading

    def _next_char(self) -> Generator[None, None, str]:
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            yield

    def _take(self, count: int) -> Generator[None, None, str]:
        while len(self._text) - self._place < count:
            yield
        self._place += count
        return self._text[self._place - count : self._place]

    def _until(self, marker: str, limit: int) -> Generator[None, None, str]:
        """Everything before a marker that is not far; reads past it."""
        while True:
            reach = self._place + limit + len(marker)
            end = self._text.find(marker, self._place, reach)
            if end >= 0:
                found = self._text[self._place : end]
                self._place = end + len(marker)
                return found
            if len(self._text) >= reach:
                raise Malformed("too long")
            yield


def _refuse(ending: str, close: str) -> None:
    if ending != close:
        raise Malformed("a value without end")


def _overlap(text: str, marker: str, start: int) -> int:
    """How many of the last characters could be the beginning of the marker."""
    for length in range(min(len(marker) - 1, len(text) - start), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def _trimmed(value: str, tags: Tags) -> str:
    return _cut_end(_cut_start(value, tags), tags)


def _cut_start(value: str, tags: Tags) -> str:
    if tags.trim == "space":
        return value.lstrip(JS_SPACE)
    return value.removeprefix("\r\n") if value.startswith("\r\n") else value.removeprefix("\n")


def _cut_end(value: str, tags: Tags) -> str:
    if tags.trim == "space":
        return value.rstrip(JS_SPACE)
    return value.removesuffix("\r\n") if value.endswith("\r\n") else value.removesuffix("\n")
