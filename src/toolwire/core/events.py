"""Turn events: everything that can happen while a model answers, in one vocabulary.

Backends produce them, policies change them, dialects write them. An event is frozen and carries a
fragment, never a running total. Their legal order is the table in `order.py`.

Where client and backend speak the same dialect, a delta keeps the `frame` it came in and `RawFrame` keeps every other
frame, so that fields without a counterpart here survive. An event that a policy made or changed has no frame. A delta
that stands for several frames has their `batch`, so that it can be written as several frames again.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.batch import FrameBatch
from toolwire.core.errors import Failure
from toolwire.core.sse import Frame

Dialect: TypeAlias = str
"""The name of a dialect: `chat`, `responses`, `messages` or `gemini`."""
Origin: TypeAlias = str
"""The dialect in which something was written; empty if unknown."""
UNSIGNED_ORIGIN: Origin = "chat"
"""The origin of reasoning that has no signature: its server takes it back in plain fields of a message."""
CallKind: TypeAlias = Literal["function", "custom", "search"]
"""How a tool is called: with JSON arguments, with free text, or as a search for other tools."""
ReasoningKind: TypeAlias = Literal["summary", "content"]
Reason: TypeAlias = Literal["stop", "calls", "length", "filter"]
FILTER_REASONS = frozenset(
    (
        "blocklist",
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "image_safety",
        "prohibited_content",
        "recitation",
        "refusal",
        "safety",
        "sensitive",
        "spii",
    )
)
"""Finish reasons of servers that mean `filter`: the model or a filter declined."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """The base of all events."""


class TurnStarted(Event, frozen=True, gc=False):
    """The model accepted the request. `id` is the backend's id of the turn."""

    id: str = ""
    model: str = ""


class MessageDelta(Event, frozen=True, gc=False):
    """A fragment of a message. `item` is the backend's id of the message, if it has one, `part` the content index."""

    text: str
    item: str = ""
    part: int = 0
    frame: Frame | None = None
    batch: FrameBatch | None = None


class TextDelta(MessageDelta, frozen=True, gc=False):
    """A fragment of the answer."""


class RefusalDelta(MessageDelta, frozen=True, gc=False):
    """A fragment of the text with which the model declines."""


class MessageEnded(Event, frozen=True, gc=False):
    """The message `item` is whole. Without an id it separates the texts of two messages."""

    item: str


class ReasoningDelta(Event, frozen=True, gc=False):
    """A fragment of visible reasoning. `part` counts the separate summaries of one reasoning item."""

    text: str
    kind: ReasoningKind = "summary"
    part: int = 0
    item: str = ""
    frame: Frame | None = None
    batch: FrameBatch | None = None


class ReasoningEnded(Event, frozen=True, gc=False):
    """A reasoning item is whole. Its `signature` is opaque and returns unchanged to its `origin` only.

    `redacted`: the signature is all there is, because the reasoning itself is not shown.
    """

    id: str = ""
    signature: str = ""
    origin: Origin = ""
    redacted: bool = False


class CallStarted(Event, frozen=True, gc=False):
    """A call begins. A name that the backend never gave is the empty string, for a policy to settle.

    `namespace` is the group the tool was declared in, `item` the backend's id of the item that holds the call.
    """

    id: str
    name: str
    kind: CallKind = "function"
    namespace: str = ""
    item: str = ""
    signature: str = ""
    """Opaque data that the server needs back with the call."""


class CallArgs(Event, frozen=True, gc=False):
    """A fragment of one call's arguments (or of a custom call's input), never a running total."""

    id: str
    text: str
    frame: Frame | None = None
    batch: FrameBatch | None = None


class CallEnded(Event, frozen=True, gc=False):
    """A call ends. An incomplete one has cut arguments and must not be executed."""

    id: str
    complete: bool = True
    damaged: bool = False
    """The arguments cannot be repaired, because part of them was lost or contradicted."""


class CallTwin(Event, frozen=True, gc=False):
    """The backend's call `twin` was not delivered, because the call `id` is equal and stands for it.

    No dialect writes this event. `signature` is what the server needs back with its call. If `twin` is `id` itself, the
    call was delivered, and its signature came after its start.
    """

    id: str
    twin: str
    signature: str = ""


class RawFrame(Event, frozen=True, gc=False):
    """A frame that is not a delta, kept for a client of the same dialect. `item` is the item it is about, if any."""

    type: str
    item: str
    data: bytes
    answers: str | None = None
    """The call whose result it contains, if any."""
    is_unknown: bool = False
    """It begins a block of a type without events."""


class Usage(Event, frozen=True, gc=False):
    """Token counts. `input` includes cached and cache-write tokens, `output` includes reasoning."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output

    def plus(self, other: "Usage") -> "Usage":
        """The sum of both counts."""
        return Usage(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    def minus(self, other: "Usage") -> "Usage":
        """The difference of both counts, never below zero."""
        return Usage(*(max(0, getattr(self, name) - getattr(other, name)) for name in self.__struct_fields__))


class Note(Event, frozen=True, gc=False):
    """One recorded deviation: something dropped, repaired, renamed, cut or synthesised."""

    code: str
    subject: str = ""


class TurnEnded(Event, frozen=True, gc=False):
    """The turn is over, for this reason."""

    reason: Reason = "stop"


class TurnFailed(Event, frozen=True, gc=False):
    """The turn is over because it failed."""

    failure: Failure


OUTPUT: tuple[type[Event], ...] = (
    TextDelta,
    RefusalDelta,
    MessageEnded,
    ReasoningDelta,
    ReasoningEnded,
    CallStarted,
    CallArgs,
    CallEnded,
    RawFrame,
)
"""The events that hold the model's output."""


Delta: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | CallArgs


def list_texts(event: Delta) -> Sequence[str]:
    """The text of each frame that a delta was read from."""
    return (event.text,) if event.batch is None else event.batch.strings


def decode_frames(feed: Callable[[Frame], Sequence[Event]], frames: Sequence[Frame]) -> list[Event]:
    """The events of these frames, as `feed` decodes each of them."""
    out: list[Event] = []
    for frame in frames:
        out += feed(frame) if frame.batch is None else attach_batch(feed(frame), frame)
    return out


def attach_batch(events: Sequence[Event], frame: Frame) -> Sequence[Event]:
    """The events of a frame, with its batch on the delta. Notes are repeated for each frame of the batch."""
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


def split_batch(event: TextDelta) -> Sequence[TextDelta]:
    """One delta per frame of the batch, so that a text reader does not depend on the chunking."""
    batch, frame = event.batch, event.frame
    if batch is None:
        return (event,)
    if frame is None:
        return [TextDelta(text, event.item, event.part) for text in batch.strings]
    frames = [Frame(frame.event, data) for data in batch.render_frames()]
    return [TextDelta(text, event.item, event.part, each) for text, each in zip(batch.strings, frames, strict=True)]
