"""Words of different rounds, kept apart: to the client all rounds are one turn, and its texts would run together."""

from collections.abc import Sequence

from toolwire.core.events import Dialect, Event, MessageEnded, TextDelta

GAP = "\n\n"


class Apart:
    """Puts a blank line between the words of two rounds; where a turn has several messages, a new one begins.

    Line breaks with which a later round begins are part of that blank line, however they come.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._has_messages = dialect == "responses"
        self._message = ""  # the backend's name for the last one
        self._tail = ""  # how the words so far end
        self._has_spoken = False
        self._is_due = False

    def next_round(self) -> None:
        self._is_due = self._has_spoken

    def feed(self, event: Event) -> Sequence[Event]:
        if not isinstance(event, TextDelta):
            return (event,)
        if not self._is_due:
            return (self._spoken(event),)
        if self._has_messages:
            self._is_due = False
            return (MessageEnded(self._message), self._spoken(event))
        text = event.text.lstrip("\n")
        if not text:
            return ()
        self._is_due = False
        there = len(self._tail) - len(self._tail.rstrip("\n"))
        return (self._spoken(TextDelta(GAP[there:] + text, event.item, event.part)),)

    def _spoken(self, event: TextDelta) -> TextDelta:
        self._message = event.item
        self._tail = (self._tail + event.text)[-len(GAP) :]
        self._has_spoken = self._has_spoken or bool(event.text.strip())
        return event
