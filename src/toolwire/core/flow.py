"""Deltas that came in pieces: the one event of a run of frames, as it goes on."""

from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.events import CallArgs, Event, ReasoningDelta, TextDelta
from toolwire.core.sse import Frame

_text = msgspec.json.Decoder(str).decode


def in_pieces(events: Sequence[Event], frame: Frame) -> Sequence[Event]:
    """The events of a run of frames. If it is one delta of just that text, it learns its pieces.

    Text in which a tag may begin goes on piece by piece: where it is cut must not depend on how it was read.
    """
    pieces = frame.pieces
    if pieces is None or len(events) != 1:
        return events
    [event] = events
    if not isinstance(event, TextDelta | ReasoningDelta | CallArgs) or event.text != _joined(pieces.texts):
        return events
    if isinstance(event, TextDelta) and "<" in event.text:
        return list(_one_by_one(event, frame))
    return events if event.frame is not None else (msgspec.structs.replace(event, pieces=pieces),)


def _one_by_one(event: TextDelta, frame: Frame) -> Iterator[TextDelta]:
    assert frame.pieces is not None
    for text, data in zip(frame.pieces.texts, frame.pieces.single(), strict=True):
        own = Frame(frame.event, data) if event.frame is not None else None
        yield TextDelta(_joined((text,)), event.item, event.part, own)


def _joined(texts: Sequence[bytes]) -> str:
    return _text(b'"' + b"".join(texts) + b'"')
