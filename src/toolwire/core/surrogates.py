"""Repairs characters cut in half: some servers split strings between the two UTF-16 surrogates of one character.

    {"delta": "\\ud83d"}   then   {"delta": "\\ude00"}

Strict JSON readers refuse both. Here the first half waits for the second, and a half that stays alone becomes U+FFFD.
"""

import json
import re
from typing import Any, TypeAlias, cast

import msgspec

_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_POSITION_FIELDS = ("index", "item_id", "output_index", "content_index", "summary_index")
"""Fields that say which text a delta continues."""

Path: TypeAlias = tuple[Any, ...]


class SurrogateHalves:
    """Joins surrogate halves across the frames of one turn."""

    def __init__(self) -> None:
        self.half = ""
        """The first half of a character, until the second is received."""
        self._path: Path = ()  # the field that it ended
        self.lost = 0
        """Number of halves without their other half."""

    def repair(self, data: bytes) -> bytes | None:
        """The frame with split characters joined, or None if it has none or is no JSON."""
        if not self.half and _ESCAPED_HALF.search(data) is None:
            return None
        try:
            value = json.loads(data, parse_float=lambda number: msgspec.Raw(number.encode()))
            return msgspec.json.encode(self._repair_value(value, ()))
        except (ValueError, RecursionError):
            return None

    def _repair_value(self, value: Any, path: Path) -> Any:
        """The same value with split characters joined where possible and every other half replaced."""
        if isinstance(value, str):
            return self._replace_halves(self._join_half(value, path) if "delta" in path else value)
        if isinstance(value, list):
            return [self._repair_value(each, (*path, index)) for index, each in enumerate(cast("list[Any]", value))]
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            if "index" in fields and path:
                path = path[:-1]  # the index identifies it, not its position in the list
            path = (*path, *(fields.get(name) for name in _POSITION_FIELDS))
            return {self._replace_halves(key): self._repair_value(each, (*path, key)) for key, each in fields.items()}
        return value

    def _join_half(self, text: str, path: Path) -> str:
        """The text with the half kept from the previous delta, without a half that must wait for the next."""
        if self.half and path == self._path:
            text, self.half = self.half + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            self.lost += bool(self.half)
            text, self.half, self._path = text[:-1], text[-1], path
        return text

    def _replace_halves(self, text: str) -> str:
        whole = join_surrogates(text)
        self.lost += whole.count("\ufffd") - text.count("\ufffd")
        return whole


def join_surrogates(text: str) -> str:
    """The text with its surrogate halves joined where they stand side by side, and every other half replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
