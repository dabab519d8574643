"""Deltas that came in pieces: the one event of a run of frames, as it goes on."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from toolwire.core.events import CallArgs, Event, Note, ReasoningDelta, RefusalDelta, TextDelta
from toolwire.core.sse import Frame

Delta: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | CallArgs


def in_pieces(events: Sequence[Event], frame: Frame) -> Sequence[Event]:
    """The events of a run of frames. A delta of just that text learns its pieces; a note is one for each frame."""
    pieces = frame.pieces
    if pieces is None:
        return events
    if all(isinstance(event, Note) for event in events):
        return [*events] * len(pieces.texts)
    text = "".join(pieces.strings)
    return [
        msgspec.structs.replace(event, pieces=pieces) if isinstance(event, Delta) and event.text == text else event
        for event in events
    ]


def one_by_one(event: TextDelta) -> Sequence[TextDelta]:
    """A delta for each of its pieces. Where a text is looked at, it must not matter how much of it was read at once."""
    pieces, frame = event.pieces, event.frame
    if pieces is None:
        return (event,)
    if frame is None:
        return [TextDelta(text, event.item, event.part) for text in pieces.strings]
    frames = [Frame(frame.event, data) for data in pieces.single()]
    return [TextDelta(text, event.item, event.part, own) for text, own in zip(pieces.strings, frames, strict=True)]
