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
        """The frame with its `delta` made whole, or None if that is not what is wrong with it."""
        if _ESCAPED_HALF.search(data) is None:
            return None
        try:
            payload = cast("dict[str, Any]", json.loads(data))
            text = self.half + cast("str", payload["delta"])
        except (ValueError, TypeError, KeyError):
            return None
        whole, self.half = (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")
        payload["delta"] = whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        self.lost += payload["delta"].count("\ufffd") - whole.count("\ufffd")
        try:
            return msgspec.json.encode(payload)
        except UnicodeEncodeError:
            return None
