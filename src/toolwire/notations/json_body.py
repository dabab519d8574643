r"""Reads calls written as JSON incrementally: `{"name": "search", "arguments": {"q": "x"}}`, or the arguments alone.

A raw control character inside a string, which JSON forbids and models write, is escaped.
"""

import re
from collections.abc import Generator

import msgspec

from toolwire.core.text import is_json
from toolwire.notations.draft import Draft
from toolwire.notations.source import Malformed, ReadSteps, Source
from toolwire.notations.values import escape

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_SPECIAL = re.compile(r'["\\\x00-\x1f]')
_SCALAR_END = re.compile(r"[\s,}\]]")
_NAME_KEYS = frozenset(("name", "tool", "tool_name", "function"))
_ARGUMENT_KEYS = frozenset(("arguments", "parameters", "args", "input"))


def read_object(source: Source, draft: Draft) -> ReadSteps:
    """Read a call that has its name and arguments under keys."""
    yield from source.read(1)
    has_arguments = False
    while (char := (yield from source.peek_char())) != "}":
        if char == ",":
            yield from source.read(1)
            continue
        key = yield from _read_string(source, draft)
        if (yield from source.peek_char()) != ":":
            raise Malformed("not JSON")
        yield from source.read(1)
        first = yield from source.peek_char()
        if key in _NAME_KEYS and first == '"' and not draft.name:
            draft.settle_name((yield from _read_string(source, draft)))
        elif key in _ARGUMENT_KEYS and not has_arguments:
            has_arguments = True
            yield from read_arguments(source, draft, first)
        else:
            yield from _read_value(source, draft, first, [])
    yield from source.read(1)
    if not has_arguments:
        draft.pieces.append("{}")


def read_arguments(source: Source, draft: Draft, first: str) -> ReadSteps:
    """Read the arguments: an object, or a string that holds one."""
    if first in "{[":
        yield from _read_value(source, draft, first, draft.pieces)
        return
    text = yield from (_read_string(source, draft) if first == '"' else _read_scalar(source))
    draft.pieces.append("{}" if text.strip() in ("", "null") else text)


def _read_value(source: Source, draft: Draft, first: str, sink: list[str]) -> ReadSteps:
    if first not in '{["':
        yield from _read_scalar(source)
        return
    depth = 0
    while True:
        found = yield from source.read_to(_STRUCTURE, sink)
        sink.append(found)
        if found == '"':
            yield from _read_string_rest(source, draft, sink)
        else:
            depth += 1 if found in "{[" else -1
        if depth == 0:
            return


def _read_string_rest(source: Source, draft: Draft, sink: list[str]) -> ReadSteps:
    while True:
        found = yield from source.read_to(_STRING_SPECIAL, sink)
        if found == "\\":
            escaped_char = yield from source.read(1)
            sink.append(found + escaped_char)
        elif found == '"':
            sink.append(found)
            return
        else:
            draft.repaired = True
            sink.append(escape(found))


def _read_string(source: Source, draft: Draft) -> Generator[None, None, str]:
    """A whole JSON string, decoded."""
    if (yield from source.read(1)) != '"':
        raise Malformed("not JSON")
    pieces = ['"']
    yield from _read_string_rest(source, draft, pieces)
    try:
        return msgspec.json.decode("".join(pieces), type=str)
    except msgspec.DecodeError:
        raise Malformed("not JSON") from None


def _read_scalar(source: Source) -> Generator[None, None, str]:
    pieces: list[str] = []
    source.step_back((yield from source.read_to(_SCALAR_END, pieces)))
    text = "".join(pieces)
    if not is_json(text):
        raise Malformed("not JSON")
    return text
