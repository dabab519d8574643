"""Turn events: everything that can happen while a model answers, in one vocabulary.

Backends produce them, policies change them, dialects write them. An event is frozen and carries a
fragment, never a running total. Their legal order is the table in `order.py`.
"""

from typing import Literal, TypeAlias

import msgspec

from toolwire.core.errors import Failure

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
    text: str


class RefusalDelta(Event, frozen=True, gc=False):
    """A fragment of the words with which the model declines."""

    text: str


class ReasoningDelta(Event, frozen=True, gc=False):
    """A fragment of visible reasoning. `part` counts the separate summaries of one reasoning item."""

    text: str
    kind: ReasoningKind = "summary"
    part: int = 0


class ReasoningEnded(Event, frozen=True, gc=False):
    """A reasoning item is whole; `seal` is opaque, from its issuer, and must return to it unchanged."""

    id: str = ""
    seal: str = ""


class CallStarted(Event, frozen=True, gc=False):
    """A call begins. A name that the backend never gave is the empty string, for a policy to settle."""

    id: str
    name: str
    kind: CallKind = "function"


class CallArgs(Event, frozen=True, gc=False):
    """A fragment of one call's arguments (or of a custom call's input), never a running total."""

    id: str
    text: str


class CallEnded(Event, frozen=True, gc=False):
    """A call ends. Incomplete means its arguments were cut and must not be executed."""

    id: str
    complete: bool = True


class Usage(Event, frozen=True, gc=False):
    """Token counts. `input` includes cached and cache-writing tokens, `output` includes reasoning."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


class Note(Event, frozen=True, gc=False):
    """One recorded deviation: something dropped, repaired, renamed, cut or synthesised."""

    code: str
    subject: str = ""


class TurnEnded(Event, frozen=True, gc=False):
    reason: Reason = "stop"


class TurnFailed(Event, frozen=True, gc=False):
    failure: Failure
