"""Writes one turn in a dialect: its events as a stream, or the whole turn as one body."""

import time
from collections.abc import Iterable
from typing import get_args

import msgspec

from toolwire.core.collect import Turn
from toolwire.core.events import Dialect, Event, Reason, TurnFailed, TurnStarted
from toolwire.core.notes import TurnStats
from toolwire.core.policies import CorrectFinishReason, FillArguments, Policies
from toolwire.core.request import Request
from toolwire.library.options import EncodeOptions
from toolwire.protocols import Encoder, dialects


def make_completion_policies(stats: TurnStats) -> Policies:
    """Make the policies for a turn of the caller: they complete empty arguments and the finish reason."""
    return Policies(FillArguments(), CorrectFinishReason(stats), stats)


def check_reason(reason: str) -> None:
    """Raise `ValueError` if this is no finish reason of a turn."""
    if reason not in get_args(Reason):
        raise ValueError(f"reason: {reason!r} is not one of {', '.join(get_args(Reason))}")


class TurnWriter:
    """Writes one turn as the answer to a request. Without a model in request or options, it names that of the turn."""

    def __init__(self, dialect: Dialect, request: Request, options: EncodeOptions, seed: str, stats: TurnStats) -> None:
        self._module = dialects()[dialect].module
        self._request = msgspec.structs.replace(
            request,
            model=options.get("model", request.model),
            include_usage=options.get("include_usage", request.include_usage),
            legacy_functions=options.get("legacy_functions", request.legacy_functions),
        )
        self._id = options.get("id") or self._module.new_id(seed)
        created = options.get("created")
        self._clock = time.time if created is None else lambda: created
        self._created = int(self._clock())
        self._stats = stats
        self._encoder: Encoder | None = None
        self._early: list[Event] = []  # events before the turn has started

    def feed(self, events: Iterable[Event]) -> bytes:
        """The bytes of these events in a stream."""
        out: list[bytes] = []
        for event in events:
            if self._encoder is not None:
                out += self._encoder.feed(event)
            elif isinstance(event, TurnStarted | TurnFailed):
                request = self._name_model(event.model if isinstance(event, TurnStarted) else "")
                make = self._module.StreamEncoder
                self._encoder = make(request, self._id, self._created, self._stats, self._clock)
                out += [piece for each in (*self._early, event) for piece in self._encoder.feed(each)]
            else:
                self._early.append(event)
        return b"".join(out)

    def write(self, turn: Turn) -> bytes:
        """The whole turn as one body; a failed turn as an error object."""
        if turn.failure is not None:
            return self._module.encode_error(turn.failure)
        return self._module.encode_turn(turn, self._name_model(turn.model), self._id, self._created)

    def _name_model(self, model: str) -> Request:
        return self._request if self._request.model else msgspec.structs.replace(self._request, model=model)
