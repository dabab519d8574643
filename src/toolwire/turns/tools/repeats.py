"""Calls that are made again and again and fail each time in the same way.

The result of the third warns the model. One more ends the loop.
"""

import re
from hashlib import sha256

import msgspec

from toolwire.core.request import TextPart
from toolwire.core.text import canonical
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.registry import Registry, Result

WARNED_AT = 3
"""Equal failures of equal calls after which the model is warned."""
WARNING = (
    "The same call has now failed three times in the same way. "
    "Do something else: if it fails so once more, the work ends here."
)

_PASSING = re.compile(r"^(?:Chunk ID|Wall time): .*$|(?<= after )\d+(?:\.\d+)?(?= ?s)", re.MULTILINE)
"""What differs between two failures that are equal: names of pieces of output, and times."""


class Repeats:
    """Counts equal failures of equal calls, turn by turn.

    Equal calls of one turn count once, because the model knows of none of them when it makes the next. When a call has
    succeeded that may change something, trying again makes sense, and counting begins anew.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._counts: dict[bytes, int] = {}
        self._counted: set[bytes] = set()  # in this turn
        self.given_up: ToolCall | None = None
        """The call that was made once too often."""

    def next_turn(self) -> None:
        """The calls that follow are those of another turn."""
        self._counted.clear()

    def judged(self, call: ToolCall, result: Result) -> Result:
        """The result as the model is to read it: with a warning, when one is due."""
        if not result.failed:
            tool = self._registry.get(call.name)
            if tool is not None and tool.writes:
                self._counts.clear()
            return result
        key = _key(call, result)
        if key in self._counted:
            return result
        self._counted.add(key)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count > WARNED_AT:
            self.given_up = self.given_up or call
        return result if count != WARNED_AT else _warned(result)

    @property
    def reason(self) -> str:
        """Why it was given up, in one line."""
        assert self.given_up is not None
        return f"{self.given_up.name} was called with the same arguments again and again, and failed each time"


def _warned(result: Result) -> Result:
    return msgspec.structs.replace(result, parts=(*result.parts, TextPart(WARNING)))


def _key(call: ToolCall, result: Result) -> bytes:
    """One for all calls of the same tool with the same arguments that failed alike."""
    parts = (call.name, canonical(call.text).decode("utf-8", "replace"), _PASSING.sub("", result.text))
    return sha256(repr(parts).encode("utf-8", "backslashreplace")).digest()
