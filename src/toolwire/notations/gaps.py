"""White space around calls that a model writes as text: between two of them, and behind the last, it is layout.

<tool_call>…</tool_call>⏎<tool_call>…</tool_call>⏎   →   two calls and nothing else
"""

from toolwire.core.events import CallEnded, Event, Note, TextDelta, Told, Usage
from toolwire.core.policies import Events

_PASSING = (Note, Told, Usage)

PATIENCE = 256
"""Most white space that waits for what comes behind it."""


class DropGaps:
    """A stage that drops white space behind a call, unless text follows it."""

    def __init__(self) -> None:
        self._behind = False  # nothing but white space came since a call
        self._held = ""

    def feed(self, event: Event) -> Events:
        if self._behind and isinstance(event, TextDelta):
            return self._hold(event)
        if isinstance(event, CallEnded):
            self._behind = True
        elif self._behind and not isinstance(event, _PASSING):
            self._behind = False
            self._held = ""
        return (event,)

    def end(self) -> Events:
        return ()

    def _hold(self, event: TextDelta) -> Events:
        held = self._held + event.text
        if held.isspace() and len(held) <= PATIENCE:
            self._held = held
            return ()
        self._behind = False
        self._held = ""
        return (TextDelta(held),)
