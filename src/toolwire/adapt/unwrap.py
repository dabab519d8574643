r"""Extracts the input of a custom tool from the JSON arguments of a function, incrementally.

    {"input": "*** Begin Patch\n…"}   →   *** Begin Patch⏎…

An escape or a pair of surrogates may be split anywhere. Text that is not such JSON is the input itself.
"""

import json
import re
from typing import Any, cast

WRAPPED = ("input", "patch", "content", "text", "code")
"""Keys under which models were seen to put the input; the first one is the declared key."""

_OPENING = re.compile(r'\s*\{\s*"(?:' + "|".join(WRAPPED) + r')"\s*:\s*"')
_MAY_OPEN = re.compile(r'\s*(?:\{\s*(?:"\w*(?:"\s*(?::\s*)?)?)?)?\Z')
_STRING_CHARS = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class Unwrap:
    """A stage from fragments of JSON to fragments of text."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._over = False
        self._plain = False

    def feed(self, text: str) -> str:
        if self._plain or self._over:
            return "" if self._over else text
        self._held += text
        if not self._inside:
            opening = _OPENING.match(self._held)
            if opening is None:
                return self._give_up() if not _MAY_OPEN.match(self._held) else ""
            self._inside = True
            self._held = self._held[opening.end() :]
        return self._read()

    def end(self) -> str:
        """What was held back, when nothing more follows."""
        held, self._held = self._held, ""
        if self._over or self._plain:
            return ""
        if self._inside:
            return held
        return _only_text(held)

    def _give_up(self) -> str:
        if self._held.lstrip().startswith("{"):
            return ""  # other JSON: decided when it is complete
        self._plain = True
        held, self._held = self._held, ""
        return held

    def _read(self) -> str:
        found = _STRING_CHARS.match(self._held)
        chars = found[0] if found is not None else ""
        rest = self._held[len(chars) :]
        high = _HIGH.search(chars)
        if high is not None and not rest.startswith('"'):
            chars, rest = chars[: high.start()], chars[high.start() :] + rest
        self._over = rest.startswith('"')
        self._held = rest
        return json.loads(f'"{chars}"', strict=False) if chars else ""


def wrap(text: str) -> str:
    """The JSON arguments that carry an input."""
    return json.dumps({WRAPPED[0]: text}, ensure_ascii=False)


def _only_text(text: str) -> str:
    try:
        read: object = json.loads(text)
    except ValueError:
        return text
    values = list(cast("dict[str, Any]", read).values()) if isinstance(read, dict) else [read]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else text
