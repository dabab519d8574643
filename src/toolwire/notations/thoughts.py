"""Thoughts that a model writes into its text: `<think>They want the weather.</think>It rains.`

A thought stands at the very beginning of the answer, so a tag that is mentioned later is text. Nothing in a thought is
read as a call, and white space behind its markers is part of them. A thought that does not end is one all the same.
"""

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
        rest: str | None = text
        while rest is not None:
            if self._inside is None:
                events, rest = self._begin(rest)
            else:
                events, rest = self._think(self._inside, rest)
            out += events
        return out

    def _begin(self, text: str) -> tuple[Events, str | None]:
        """What goes out, and, if a thought begins, what is in it so far."""
        self._held += text
        rest = self._held.lstrip()
        if self._bare or self._begun:
            self._held = rest
        if len(self._held) - len(rest) <= PATIENCE:
            if rest.startswith(self._thought.open):
                return (), self._enter(rest[len(self._thought.open) :])
            if self._thought.open.startswith(rest):
                return (), None
        return ((), self._enter(rest)) if self._begun else (self._leave(), None)

    def _enter(self, text: str) -> str:
        self._held = ""
        self._begun = False
        self._bare = True
        self._inside = Until(self._thought.close)
        return text

    def _think(self, inside: Until, text: str) -> tuple[Events, str | None]:
        """The thought, and, if it ends, what stands behind it."""
        piece, marker, rest = inside.feed(text)
        if self._bare:
            piece = piece.lstrip()
            self._bare = not piece
        thought = (ReasoningDelta(piece, "content"),) if piece else ()
        if not marker:
            return thought, None
        self._inside = None
        self._bare = True
        return thought, rest

    def _leave(self) -> Events:
        """No thought can follow: let go what was held back."""
        self._over = True
        held = self._held if self._inside is None else self._inside.end()
        if not held:
            return ()
        return (TextDelta(held),) if self._inside is None and not self._begun else (ReasoningDelta(held, "content"),)
