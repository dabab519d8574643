"""Keeps the texts of several turns of the model apart: to the client they are one turn, and would run together."""

from collections.abc import Sequence

from toolwire.core.events import Event, MessageEnded, TextDelta

BLANK_LINE = "\n\n"


class TextSeparator:
    """Puts a blank line between the texts of two turns; in a dialect with several messages, begins a new one.

    Line breaks at the beginning of a later turn become part of that blank line, however they are cut into deltas.
    """

    def __init__(self, *, several_messages: bool) -> None:
        self._has_messages = several_messages
        self._message = ""  # the backend's name for the last one
        self._tail = ""  # the last characters of the text so far
        self._has_text = False
        self._is_due = False

    def next_turn(self) -> None:
        """The text that follows is that of another turn."""
        self._is_due = self._has_text

    def end_text(self) -> Sequence[Event]:
        """The end of the text so far, because something else follows it; nothing has to keep the next text apart."""
        ended = (MessageEnded(self._message),) if self._has_text else ()
        self._has_text, self._tail = False, ""
        return ended

    def feed(self, event: Event) -> Sequence[Event]:
        """The event, behind or with a separator where one is due."""
        if not isinstance(event, TextDelta):
            return (event,)
        if not self._is_due:
            return (self._seen(event),)
        if self._has_messages:
            self._is_due = False
            return (MessageEnded(self._message), self._seen(event))
        text = event.text.lstrip("\n")
        if not text:
            return ()
        self._is_due = False
        breaks = len(self._tail) - len(self._tail.rstrip("\n"))
        return (self._seen(TextDelta(BLANK_LINE[breaks:] + text, event.item, event.part)),)

    def _seen(self, event: TextDelta) -> TextDelta:
        self._message = event.item
        self._tail = (self._tail + event.text)[-len(BLANK_LINE) :]
        self._has_text = self._has_text or bool(event.text.strip())
        return event
