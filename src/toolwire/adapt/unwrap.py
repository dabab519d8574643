r"""Extracts the input of a custom tool from the JSON arguments of a function, incrementally.

    {"input": "*** Begin Patch\n…"}   →   *** Begin Patch⏎…

An escape or a pair of surrogates may be split anywhere; half a pair is replaced. Text that is not such JSON is the
input itself, and so is an object with several keys, because they may be parameters that the tool reads from its input.
"""

import json
import re
from itertools import chain, count
from typing import Any, cast

from toolwire.core.text import replace_lone_surrogates

WRAPPED = "input"
"""The key under which the input is declared, unless the tool has a parameter of that name."""

_POSSIBLE_OPENING = re.compile(r'\s*(?:\{\s*(?:"\w*(?:"\s*(?::\s*)?)?)?)?\Z')
_STRING_CHARS = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HIGH_SURROGATE = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


def choose_wrapper_key(description: str) -> str:
    """The key for a tool's input: one that neither its description nor its grammar names as a parameter."""
    names = chain((WRAPPED, f"tool_{WRAPPED}"), (f"tool_{WRAPPED}_{number}" for number in count(2)))
    return next(name for name in names if not re.search(rf"""["'`]{name}["'`]""", description))


class Unwrap:
    """A stage from fragments of JSON to fragments of text.

    With the default key, a single string in an object is the input under any key, because models confuse keys.
    """

    def __init__(self, key: str = WRAPPED) -> None:
        self._key = key
        self._opening = re.compile(rf'\s*\{{\s*"{key}"\s*:\s*"')
        self._held = ""
        self._other: list[str] | None = None  # JSON of another form, which is read when it is complete
        self._inside = False
        self._over = False
        self._plain = False

    def feed(self, text: str) -> str:
        if self._plain or self._over:
            return "" if self._over else text
        if self._other is not None:
            self._other.append(text)
            return ""
        self._held += text
        if not self._inside:
            opening = self._opening.match(self._held)
            if opening is None:
                if _POSSIBLE_OPENING.match(self._held):
                    return ""
                held, self._held = self._held, ""
                if held.lstrip().startswith("{"):
                    self._other = [held]
                    return ""
                self._plain = True
                return held
            self._inside = True
            self._held = self._held[opening.end() :]
        found = _STRING_CHARS.match(self._held)
        chars = found[0] if found is not None else ""
        rest = self._held[len(chars) :]
        high = _HIGH_SURROGATE.search(chars)
        if high is not None and not rest.startswith('"'):
            chars, rest = chars[: high.end(1)], chars[high.end(1) :] + rest
        self._over = rest.startswith('"')
        self._held = rest
        return json.loads(f'"{replace_lone_surrogates(chars)}"', strict=False) if chars else ""

    def end(self) -> str:
        """Release held text at the end."""
        held, self._held = self._held, ""
        if self._over or self._plain:
            return ""
        if self._inside:
            return held
        whole = "".join(self._other) if self._other is not None else held
        if self._key != WRAPPED:
            return whole
        try:
            read: object = json.loads(replace_lone_surrogates(whole))
        except (ValueError, RecursionError):
            return whole
        values = list(cast("dict[str, Any]", read).values()) if isinstance(read, dict) else [read]
        return values[0] if len(values) == 1 and isinstance(values[0], str) else whole


def wrap(text: str, key: str = WRAPPED) -> str:
    """The JSON arguments that carry an input."""
    return json.dumps({key: text}, ensure_ascii=False)
