r"""Reads calls written as JSON incrementally: `{"name": "search", "arguments": {"q": "x"}}`, or the arguments alone.

A raw control character inside a string, which JSON forbids and models write, is escaped.
"""

import re
from collections.abc import Generator

import msgspec

from toolwire.core.text import is_json
from toolwire.notations.draft import Draft
from toolwire.notations.source import Malformed, ReadSteps, Source
from toolwire.notations.values import escaped

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\\x00-\x1f]')
_SCALAR_END = re.compile(r"[\s,}\]]")
_NAME = frozenset(("name", "tool", "tool_name", "function"))
_ARGUMENTS = frozenset(("arguments", "parameters", "args", "input"))


def read_object(source: Source, draft: Draft) -> ReadSteps:
    """Read a call that has its name and arguments under keys."""
    yield from source.take(1)
    arguments = False
    while (char := (yield from source.next_char())) != "}":
        if char == ",":
            yield from source.take(1)
            continue
        key = yield from _string(source, draft)
        if (yield from source.next_char()) != ":":
            raise Malformed("not JSON")
        yield from source.take(1)
        first = yield from source.next_char()
        if key in _NAME and first == '"' and not draft.name:
            draft.settle_name((yield from _string(source, draft)))
        elif key in _ARGUMENTS and not arguments:
            arguments = True
            yield from read_arguments(source, draft, first)
        else:
            yield from _value(source, draft, first, [])
    yield from source.take(1)
    if not arguments:
        draft.pieces.append("{}")


def read_arguments(source: Source, draft: Draft, first: str) -> ReadSteps:
    """Read the arguments: an object, or a string that holds one."""
    if first in "{[":
        yield from _value(source, draft, first, draft.pieces)
        return
    text = yield from (_string(source, draft) if first == '"' else _scalar(source))
    draft.pieces.append("{}" if text.strip() in ("", "null") else text)


def _value(source: Source, draft: Draft, first: str, sink: list[str]) -> ReadSteps:
    if first not in '{["':
        yield from _scalar(source)
        return
    depth = 0
    while True:
        found = yield from source.find(_OUTSIDE, sink)
        sink.append(found)
        if found == '"':
            yield from _rest_of_string(source, draft, sink)
        else:
            depth += 1 if found in "{[" else -1
        if depth == 0:
            return


def _rest_of_string(source: Source, draft: Draft, sink: list[str]) -> ReadSteps:
    while True:
        found = yield from source.find(_INSIDE, sink)
        if found == "\\":
            escape = yield from source.take(1)
            sink.append(found + escape)
        elif found == '"':
            sink.append(found)
            return
        else:
            draft.repaired = True
            sink.append(escaped(found))


def _string(source: Source, draft: Draft) -> Generator[None, None, str]:
    """A whole JSON string, decoded."""
    if (yield from source.take(1)) != '"':
        raise Malformed("not JSON")
    pieces = ['"']
    yield from _rest_of_string(source, draft, pieces)
    try:
        return msgspec.json.decode("".join(pieces), type=str)
    except msgspec.DecodeError:
        raise Malformed("not JSON") from None


def _scalar(source: Source) -> Generator[None, None, str]:
    pieces: list[str] = []
    source.back((yield from source.find(_SCALAR_END, pieces)))
    text = "".join(pieces)
    if not is_json(text):
        raise Malformed("not JSON")
    return text
