"""Reads reasoning that a model writes into its text: `<think>They want the weather.</think>It rains.`

Reasoning is only read at the very beginning of the answer, so a tag that is mentioned later is text. Nothing in it is
read as a call, and white space after its markers is dropped. Reasoning without an end marker is still reasoning.
"""

import re

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
from toolwire.notations.source import Source

_ENDS = (CallStarted, RefusalDelta, MessageEnded, TurnEnded, TurnFailed)

_SPACE = re.compile(r"\s*")

_DONE = -1

MAX_LEADING_SPACE = 256
"""Maximum white space before reasoning that is held back."""


class ReasoningMarkers(msgspec.Struct, frozen=True):
    """The markers around reasoning. `begun`: the prompt ends with the opening marker, so the answer begins inside."""

    open: str
    close: str
    begun: bool = False


class ReadReasoning:
    """A stage that turns reasoning at the beginning of the text into events. The rest passes unchanged."""

    def __init__(self, markers: ReasoningMarkers) -> None:
        self._markers = markers
        self._begun = markers.begun  # reasoning is open without a marker
        self._held = ""  # outside: white space and a possible marker
        self._inside: Source | None = None
        self._bare = False  # only white space was read since the last marker
        self._over = False

    def feed(self, event: Event) -> Events:
        if self._over:
            return (event,)
        if isinstance(event, TextDelta):
            text, offset = event.text, 0
            out: list[Event] = []
            while offset >= 0:
                inside = self._inside
                if inside is None:
                    events, text, offset = self._find_opening(text, offset)
                    out += events
                    continue
                inside.feed(text, offset)
                piece, marker = inside.read_piece(self._markers.close)
                if self._bare:
                    piece = piece.lstrip()
                    self._bare = not piece
                if piece:
                    out.append(ReasoningDelta(piece, "content"))
                if not marker:
                    break
                self._inside = None
                self._bare = True
                text, offset = inside.position
            return out
        if isinstance(event, _ENDS):
            return (*self._leave(), event)
        return (event,)

    def _find_opening(self, text: str, offset: int) -> tuple[Events, str, int]:
        """Look for the opening marker: reasoning begins, may still begin, or the text is passed on.

        Returns events, and the text and offset at which to continue, or `_DONE`.
        """
        if self._held:
            text, offset, self._held = self._held + text[offset:], 0, ""
        open = self._markers.open
        space = _SPACE.match(text, offset)
        start = space.end() if space is not None else offset
        if self._bare or self._begun:
            offset = start
        if start - offset <= MAX_LEADING_SPACE:
            if text.startswith(open, start):
                return (), text, self._enter(start + len(open))
            if len(text) - start < len(open) and open.startswith(text[start:]):
                self._held = text[offset:]
                return (), "", _DONE
        if self._begun:
            return (), text, self._enter(start)
        self._held = text[offset:]
        return self._leave(), "", _DONE

    def _enter(self, offset: int) -> int:
        self._begun = False
        self._bare = True
        self._inside = Source()
        return offset

    def _leave(self) -> Events:
        """Release held text, because no reasoning can follow."""
        self._over = True
        held = self._held if self._inside is None else self._inside.unread
        if not held:
            return ()
        return (TextDelta(held),) if self._inside is None and not self._begun else (ReasoningDelta(held, "content"),)
