"""Detects a model that repeats a call although it fails the same way each time.

The result of the third failure warns the model; one more ends the loop.
"""

import re
from hashlib import sha256

import msgspec

from toolwire.core.request import TextPart
from toolwire.core.text import canonicalise
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.registry import Registry, Result

WARNING_THRESHOLD = 3
"""Number of equal failures at which the model is warned."""
WARNING = (
    "The same call has now failed three times in the same way. "
    "Do something else: if it fails like this once more, the work ends here."
)

_VOLATILE = re.compile(r"^(?:Chunk ID|Wall time): .*$|(?<= after )\d+(?:\.\d+)?(?= ?s)", re.MULTILINE)
"""Text that differs between equal failures: chunk ids and times."""


class Repeats:
    """Counts equal failures of equal calls, turn by turn.

    Equal calls of one turn count once, because the model makes them all before it sees a result. A successful call of a
    tool that writes resets all counts, because trying again makes sense then.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._counts: dict[bytes, int] = {}
        self._counted: set[bytes] = set()  # in this turn
        self.given_up: ToolCall | None = None
        """The call that was repeated once too often."""

    def next_turn(self) -> None:
        """Begin another turn."""
        self._counted.clear()

    def judge(self, call: ToolCall, result: Result) -> Result:
        """Count a result, and return it as the model reads it: with a warning at the threshold."""
        if not result.failed:
            tool = self._registry.get(call.name)
            if tool is not None and tool.writes:
                self._counts.clear()
            return result
        parts = (call.name, canonicalise(call.text).decode("utf-8", "replace"), _VOLATILE.sub("", result.text))
        key = sha256(repr(parts).encode("utf-8", "backslashreplace")).digest()
        if key in self._counted:
            return result
        self._counted.add(key)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count > WARNING_THRESHOLD:
            self.given_up = self.given_up or call
        if count != WARNING_THRESHOLD:
            return result
        return msgspec.structs.replace(result, parts=(*result.parts, TextPart(WARNING)))

    @property
    def reason(self) -> str:
        """Why the loop ends, in one line."""
        assert self.given_up is not None
        return f"{self.given_up.name} was called with the same arguments again and again, and failed each time"
