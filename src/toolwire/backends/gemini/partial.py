"""Writes streamed arguments as JSON text, in fragments.

    {"jsonPath": "$.a", "stringValue": "Pa", "willContinue": true}     {"a":"Pa
    {"jsonPath": "$.a", "stringValue": "ris"}                          ris"
    {"jsonPath": "$.b[0].c", "numberValue": 0.5}                       ,"b":[{"c":0.5
                                                                       }]}

The values come depth first, so a container is closed when the path leaves it. Only values have a path: an empty object
or list never appears.
"""

import re
from typing import TypeAlias

import msgspec

from toolwire.backends.gemini.wire import PartialArgument
from toolwire.core.raw import to_json

Step: TypeAlias = str | int

_STEPS = re.compile(
    r"""\.?(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\]"""
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def read_path(path: str) -> tuple[Step, ...]:
    """The keys and indexes of a JSON path; names with dots or brackets are quoted."""
    steps: list[Step] = []
    for found in _STEPS.finditer(path.removeprefix("$")):
        name, index, quoted = found.groups()
        steps.append(int(index) if index else _ESCAPED.sub(r"\1", quoted[1:-1]) if quoted else name)
    return tuple(steps)


class PartialArguments:
    """The arguments of one call, as text."""

    def __init__(self) -> None:
        self._path: tuple[Step, ...] = ()  # of the last value
        self._in_string = False

    def feed(self, piece: PartialArgument) -> str:
        """The text of the next piece."""
        path = read_path(piece.json_path)
        if not path:
            return ""
        other = _encode_other(piece)
        continues = self._in_string and path == self._path and not other
        out = "" if continues else self._move_to(path)
        if other:
            return out + other
        out += to_json(piece.string_value or "").decode()[continues:-1]
        self._in_string = piece.will_continue
        return out if self._in_string else out + '"'

    def end(self) -> str:
        """The text that completes the arguments."""
        out = self._close(0) if self._path else "{}"
        self._path = ()
        return out

    def _move_to(self, path: tuple[Step, ...]) -> str:
        """The text between the last value and the one at this path."""
        shared = 0
        if self._path:
            limit = min(len(path), len(self._path)) - 1
            while shared < limit and path[shared] == self._path[shared]:
                shared += 1
            first = self._close(shared + 1) + "," + _key(path[shared])
        else:
            first = _open(path[0])
        self._path = path
        return "".join((first, *map(_open, path[shared + 1 :])))

    def _close(self, depth: int) -> str:
        """The end of the last value, and of all containers below this depth."""
        closing = "".join("]" if isinstance(step, int) else "}" for step in reversed(self._path[depth:]))
        quote, self._in_string = '"' if self._in_string else "", False
        return quote + closing


def _open(step: Step) -> str:
    """The start of a container, and of its first value."""
    return ("[" if isinstance(step, int) else "{") + _key(step)


def _key(step: Step) -> str:
    return "" if isinstance(step, int) else to_json(step).decode() + ":"


def _encode_other(piece: PartialArgument) -> str:
    """A value other than a string; empty if it is a string."""
    if piece.number_value is not msgspec.UNSET:
        return bytes(piece.number_value).decode()
    if piece.bool_value is not None:
        return "true" if piece.bool_value else "false"
    return "null" if piece.null_value is not msgspec.UNSET else ""
