"""One turn written in a dialect: events to the bytes of a stream, or a whole turn to a body."""

import time
from collections.abc import Callable, Iterable
from typing import get_args
from uuid import uuid4

import msgspec

from toolwire.core.collect import Turn
from toolwire.core.events import Dialect, Event, Reason, TurnFailed, TurnStarted
from toolwire.core.notes import TurnStats
from toolwire.core.policies import FillArguments, FinishReason, Policies
from toolwire.core.request import Request
from toolwire.library.options import EncodeOptions
from toolwire.protocols import Encoder, dialects


def new_seed() -> str:
    """What the ids of one turn are made of, if nobody says it."""
    return uuid4().hex


def completing(stats: TurnStats) -> Policies:
    """What a turn needs that somebody else has made, before it is written: arguments, and the reason of its end."""
    return Policies(FillArguments(), FinishReason(stats), stats)


def checked_reason(reason: str) -> None:
    """Raise `ValueError` if this is no reason for which a turn ends."""
    if reason not in get_args(Reason):
        raise ValueError(f"reason: {reason!r} is none of {', '.join(get_args(Reason))}")


class Heading(msgspec.Struct, frozen=True):
    """What stands at the top of an answer: its id, and when it was made, by which clock."""

    id: str
    created: int
    clock: Callable[[], float]

    @staticmethod
    def of(dialect: Dialect, options: EncodeOptions, seed: str) -> "Heading":
        """As the options say, and otherwise a new id and the present time."""
        given = options.get("created")
        id = options.get("id") or dialects()[dialect].module.new_id(seed)
        if given is None:
            return Heading(id, int(time.time()), time.time)
        return Heading(id, given, lambda: given)


def written_for(request: Request, options: EncodeOptions) -> Request:
    """The request whose answer is written, with what the options say about that."""
    return msgspec.structs.replace(
        request,
        model=options.get("model", request.model),
        include_usage=options.get("include_usage", request.include_usage),
        legacy_functions=options.get("legacy_functions", request.legacy_functions),
    )


class TurnWriter:
    """Writes the events of one turn as a stream. Without a name for the model it takes that of the turn."""

    def __init__(self, dialect: Dialect, request: Request, heading: Heading, stats: TurnStats) -> None:
        self._dialect = dialect
        self._request = request
        self._heading = heading
        self._stats = stats
        self._encoder: Encoder | None = None
        self._early: list[Event] = []  # events before the turn has started

    def feed(self, events: Iterable[Event]) -> bytes:
        """The bytes of these events."""
        out: list[bytes] = []
        for event in events:
            if self._encoder is not None:
                out += self._encoder.feed(event)
            elif isinstance(event, TurnStarted | TurnFailed):
                self._encoder = self._begin(event)
                out += [piece for each in (*self._early, event) for piece in self._encoder.feed(each)]
            else:
                self._early.append(event)
        return b"".join(out)

    def _begin(self, event: Event) -> Encoder:
        request, heading = self._request, self._heading
        if not request.model and isinstance(event, TurnStarted):
            request = msgspec.structs.replace(request, model=event.model)
        make = dialects()[self._dialect].module.StreamEncoder
        return make(request, heading.id, heading.created, self._stats, heading.clock)


def write_turn(dialect: Dialect, turn: Turn, request: Request, heading: Heading) -> bytes:
    """A whole turn as one body; one that failed as an error object."""
    module = dialects()[dialect].module
    if turn.failure is not None:
        return module.encode_error(turn.failure)
    if not request.model:
        request = msgspec.structs.replace(request, model=turn.model)
    return module.encode_turn(turn, request, heading.id, heading.created)
