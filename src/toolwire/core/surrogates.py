"""Letters cut in half: some servers split their strings between the two UTF-16 units of one letter.

    {"delta": "\\ud83d"}   then   {"delta": "\\ude00"}

Strict JSON readers refuse both. Here the first half waits for the second, and a half that stays alone becomes U+FFFD.
"""

import json
import re
from typing import Any, cast

import msgspec

_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class SurrogateHalves:
    """Mends the frames of one turn."""

    def __init__(self) -> None:
        self.half = ""
        """The first half of a letter, waiting for the second."""
        self.lost = 0
        """Halves that stayed alone."""

    def mended(self, data: bytes) -> bytes | None:
        """The frame with its letters made whole, or None if that is not what is wrong with it."""
        if _ESCAPED_HALF.search(data) is None:
            return None
        try:
            payload: Any = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if isinstance(payload, dict):
            payload = self._with_delta(cast("dict[str, Any]", payload))
        return msgspec.json.encode(self._whole(payload))

    def _with_delta(self, payload: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(payload.get("delta"), str):
            return payload
        text: str = self.half + payload["delta"]
        text, self.half = (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")
        return {**payload, "delta": text}

    def _whole(self, value: Any) -> Any:
        """The same value, with every half letter replaced."""
        if isinstance(value, str):
            whole = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            self.lost += whole.count("\ufffd") - value.count("\ufffd")
            return whole
        if isinstance(value, list):
            return [self._whole(each) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {self._whole(key): self._whole(each) for key, each in cast("dict[str, Any]", value).items()}
        return value
