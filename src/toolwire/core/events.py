"""Turn events: everything that can happen while a model answers, in one vocabulary.

Backends produce them, policies change them, dialects write them. An event is frozen and carries a
fragment, never a running total. Their legal order is the table in `order.py`.

Where client and backend speak the same dialect, a delta keeps the `frame` it came in and `Told` keeps every other
frame, so that what we have no word for survives. An event that a policy made or changed has no frame. A delta that came
in several frames at once knows its `pieces`, so that it can leave in as many.
"""

from typing import Literal, TypeAlias

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.pieces import Pieces
from toolwire.core.sse import Frame

Dialect: TypeAlias = Literal["", "chat", "responses", "messages"]
"""The dialects by name. A backend that speaks like one seals its thoughts under the same name."""
SPOKEN_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
"""Types of a Messages server's blocks that there are events for."""
CallKind: TypeAlias = Literal["function", "custom"]
ReasoningKind: TypeAlias = Literal["summary", "content"]
Reason: TypeAlias = Literal["stop", "calls", "length", "filter"]


class Event(msgspec.Struct, frozen=True, gc=False):
    """The base of all events."""


class TurnStarted(Event, frozen=True, gc=False):
    """The model accepted the request. `id` is the backend's own name for the turn."""

    id: str = ""
    model: str = ""


class TextDelta(Event, frozen=True, gc=False):
    """A fragment of the answer. `item` is the backend's name for the message, if it has one, `part` a place in it."""

    text: str
    item: str = ""
    part: int = 0
    frame: Frame | None = None
    pieces: Pieces | None = None


class RefusalDelta(Event, frozen=True, gc=False):
    """A fragment of the words with which the model declines."""

    text: str
    item: str = ""
    part: int = 0
    frame: Frame | None = None
    pieces: Pieces | None = None


class MessageEnded(Event, frozen=True, gc=False):
    """The message `item` is whole. Without a name it stands between the words of two messages."""

    item: str


class ReasoningDelta(Event, frozen=True, gc=False):
    """A fragment of visible reasoning. `part` counts the separate summaries of one reasoning item."""

    text: str
    kind: ReasoningKind = "summary"
    part: int = 0
    item: str = ""
    frame: Frame | None = None
    pieces: Pieces | None = None


class ReasoningEnded(Event, frozen=True, gc=False):
    """A reasoning item is whole; `seal` is opaque and must return unchanged to its `issuer`, and to nobody else.

    `redacted`: the seal stands for the thought itself, of which nothing is shown.
    """

    id: str = ""
    seal: str = ""
    issuer: Dialect = ""
    redacted: bool = False


class CallStarted(Event, frozen=True, gc=False):
    """A call begins. A name that the backend never gave is the empty string, for a policy to settle.

    `namespace` is the group the tool was declared in, `item` the backend's name for the item that holds the call.
    """

    id: str
    name: str
    kind: CallKind = "function"
    namespace: str = ""
    item: str = ""
    seal: str = ""
    """What its server wants back with the call, which nobody else can read."""


class CallArgs(Event, frozen=True, gc=False):
    """A fragment of one call's arguments (or of a custom call's input), never a running total."""

    id: str
    text: str
    frame: Frame | None = None
    pieces: Pieces | None = None


class CallEnded(Event, frozen=True, gc=False):
    """A call ends. Incomplete means its arguments were cut and must not be executed."""

    id: str
    complete: bool = True
    damaged: bool = False
    """The arguments are incomplete because part of them was lost or contradicted: nothing can be made of the rest."""


class CallTwin(Event, frozen=True, gc=False):
    """A call of the backend's, `twin`, was not delivered: the call `id` says the same and stands for it.

    No dialect has a word for it. `seal` is what the server wants back with its call.
    """

    id: str
    twin: str
    seal: str = ""


class Told(Event, frozen=True, gc=False):
    """A frame that is no delta, kept for a client of the same dialect. `item` is what it is about, if anything.

    `shows` is the type of the item or block that is written in it, if one is.
    """

    type: str
    item: str
    data: bytes
    shows: str = ""


class Usage(Event, frozen=True, gc=False):
    """Token counts. `input` includes cached and cache-writing tokens, `output` includes reasoning."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def plus(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    def minus(self, other: "Usage") -> "Usage":
        return Usage(*(max(0, getattr(self, name) - getattr(other, name)) for name in self.__struct_fields__))


class Note(Event, frozen=True, gc=False):
    """One recorded deviation: something dropped, repaired, renamed, cut or synthesised."""

    code: str
    subject: str = ""


class TurnEnded(Event, frozen=True, gc=False):
    reason: Reason = "stop"


class TurnFailed(Event, frozen=True, gc=False):
    failure: Failure
