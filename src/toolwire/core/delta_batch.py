"""Deltas of a batch of frames: one event that stands for several, and how it is split again."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from toolwire.core.events import CallArgs, Event, Note, ReasoningDelta, RefusalDelta, TextDelta
from toolwire.core.sse import Frame

Delta: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | CallArgs


def with_batch(events: Sequence[Event], frame: Frame) -> Sequence[Event]:
    """The events of a frame, the delta with the frame's batch. Notes are repeated for each frame of the batch."""
    batch = frame.batch
    if batch is None:
        return events
    if all(isinstance(event, Note) for event in events):
        return [*events] * len(batch.texts)
    text = "".join(batch.strings)
    return [
        msgspec.structs.replace(event, batch=batch) if isinstance(event, Delta) and event.text == text else event
        for event in events
    ]


def decoded(feed: Callable[[Frame], Sequence[Event]], frames: Sequence[Frame]) -> list[Event]:
    """The events of these frames, as `feed` decodes each of them."""
    out: list[Event] = []
    for frame in frames:
        out += feed(frame) if frame.batch is None else with_batch(feed(frame), frame)
    return out


def split_batch(event: TextDelta) -> Sequence[TextDelta]:
    """One delta per frame of the batch, so that a reader of text sees the same whatever was read at once."""
    batch, frame = event.batch, event.frame
    if batch is None:
        return (event,)
    if frame is None:
        return [TextDelta(text, event.item, event.part) for text in batch.strings]
    frames = [Frame(frame.event, data) for data in batch.each_frame()]
    return [TextDelta(text, event.item, event.part, each) for text, each in zip(batch.strings, frames, strict=True)]
