"""Thoughts that a model writes into its text: `<think>They want the weather.</think>It rains.`

A thought stands at the very beginning of the answer, so a tag that is mentioned later is text. Nothing in a thought is
read as a call, and white space behind its markers is part of them. A thought that does not end is one all the same.
"""

import re
from typing import TypeAlias

import msgspec

from toolwire.core.events import (
    CallStarted,
    Event,
    MessageEnded,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.policies import Events
from toolwire.notations.source import Until

_LET_GO = (CallStarted, RefusalDelta, MessageEnded, TurnEnded, TurnFailed)

_SPACE = re.compile(r"\s*")

_Step: TypeAlias = tuple[Events, str, int]
"""What goes out, and where to go on: a text, and the place in it."""
_NOWHERE = -1

PATIENCE = 256
"""Most white space before a thought that waits for it."""


class Thought(msgspec.Struct, frozen=True):
    """How a thought is written. `begun`: the prompt has opened it, and the answer begins inside."""

    open: str
    close: str
    begun: bool = False


class ReadThoughts:
    """A stage that makes the thoughts before an answer reasoning. The rest of the text passes as it is."""

    def __init__(self, thought: Thought) -> None:
        self._thought = thought
        self._begun = thought.begun  # a thought is open even if no marker says so
        self._held = ""  # outside: white space and what could still become a marker
        self._inside: Until | None = None
        self._bare = False  # nothing but white space came since the last marker
        self._over = False

    def feed(self, event: Event) -> Events:
        if self._over:
            return (event,)
        if isinstance(event, TextDelta):
            return self._read(event.text)
        if isinstance(event, _LET_GO):
            return (*self._leave(), event)
        return (event,)

    def end(self) -> Events:
        return ()

    def _read(self, text: str) -> Events:
        out: list[Event] = []
        place = 0
        while place >= 0:
            if self._inside is None:
                events, text, place = self._begin(text, place)
            else:
                events, text, place = self._think(self._inside, text, place)
            out += events
        return out

    def _begin(self, text: str, place: int) -> _Step:
        """A thought begins, or may still, or none does and the text goes out."""
        if self._held:
            text, place, self._held = self._held + text[place:], 0, ""
        open = self._thought.open
        space = _SPACE.match(text, place)
        start = space.end() if space is not None else place
        if self._bare or self._begun:
            place = start
        if start - place <= PATIENCE:
            if text.startswith(open, start):
                return (), text, self._enter(start + len(open))
            if len(text) - start < len(open) and open.startswith(text[start:]):
                self._held = text[place:]
                return (), "", _NOWHERE
        if self._begun:
            return (), text, self._enter(start)
        self._held = text[place:]
        return self._leave(), "", _NOWHERE

    def _enter(self, place: int) -> int:
        self._begun = False
        self._bare = True
        self._inside = Until(self._thought.close)
        return place

    def _think(self, inside: Until, text: str, place: int) -> _Step:
        """The thought, up to its end if that is there."""
        piece, marker, text, place = inside.feed(text, place)
        if self._bare:
            piece = piece.lstrip()
            self._bare = not piece
        thought = (ReasoningDelta(piece, "content"),) if piece else ()
        if not marker:
            return thought, "", _NOWHERE
        self._inside = None
        self._bare = True
        return thought, text, place

    def _leave(self) -> Events:
        """No thought can follow: let go what was held back."""
        self._over = True
        held = self._held if self._inside is None else self._inside.end()
        if not held:
            return ()
        return (TextDelta(held),) if self._inside is None and not self._begun else (ReasoningDelta(held, "content"),)
