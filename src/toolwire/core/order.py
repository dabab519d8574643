"""The legal order of a turn's events, as a table. A failed lookup raises `OutOfOrder`."""

from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from toolwire.core.errors import OutOfOrder
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    CallTwin,
    Event,
    MessageEnded,
    Note,
    RawFrame,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)


class State(Enum):
    """The state of a turn, which determines the events that may follow."""

    WAITING = "waiting for the turn to start"
    TALKING = "between calls"
    CALLING = "inside a call"
    CLOSED = "after the end"


Moves: TypeAlias = dict[type[Event], State]

TRANSITIONS: dict[State, Moves] = {
    State.WAITING: {
        TurnStarted: State.TALKING,
        Note: State.WAITING,
        RawFrame: State.WAITING,
        TurnFailed: State.CLOSED,
    },
    State.TALKING: {
        TextDelta: State.TALKING,
        RefusalDelta: State.TALKING,
        ReasoningDelta: State.TALKING,
        ReasoningEnded: State.TALKING,
        MessageEnded: State.TALKING,
        CallStarted: State.CALLING,
        CallTwin: State.TALKING,
        Usage: State.TALKING,
        Note: State.TALKING,
        RawFrame: State.TALKING,
        TurnEnded: State.CLOSED,
        TurnFailed: State.CLOSED,
    },
    State.CALLING: {
        CallArgs: State.CALLING,
        CallEnded: State.TALKING,
        Usage: State.CALLING,
        Note: State.CALLING,
        RawFrame: State.CALLING,
        TurnFailed: State.CLOSED,
    },
    State.CLOSED: {},
}


_OF_CALLS = (CallStarted, CallArgs, CallEnded)
_Step: TypeAlias = "tuple[State, dict[type[Event], _Step], bool]"


_moves: dict[State, dict[type[Event], _Step]] = {state: {} for state in TRANSITIONS}
"""The table as nested dicts: one lookup gives the next state, its moves, and whether the event names a call."""
for _state, _following in TRANSITIONS.items():
    _moves[_state] |= {kind: (target, _moves[target], kind in _OF_CALLS) for kind, target in _following.items()}

_NEEDED = {
    State.WAITING: "the turn never began: the first event must be TurnStarted",
    State.TALKING: "the turn never ended: the last event must be TurnEnded or TurnFailed",
    State.CALLING: "the call never ended: CallEnded must come first",
}
"""What is missing if a turn stops in a state."""


class TurnOrder:
    """Checks one turn's events against the table: a stage that passes them on, or raises at the first wrong one.

    Arguments and the end of a call must also name the call that is open.
    """

    def __init__(self) -> None:
        self.state: State = State.WAITING
        self._moves = _moves[State.WAITING]
        self._call = ""  # the id of the call that is open, or was the last

    def check(self, events: Iterable[Event]) -> None:
        """Check these events; raises `OutOfOrder` at the first wrong one."""
        state, moves, call = self.state, self._moves, self._call
        for event in events:
            step = moves.get(type(event))
            if step is None:
                raise OutOfOrder(state.name, type(event).__name__)
            state, moves, names_call = step
            if names_call and event.id != call:  # pyright: ignore
                if not isinstance(event, CallStarted):
                    opened = f"{State.CALLING.name} {call!r}"
                    raise OutOfOrder(opened, f"{type(event).__name__} of {event.id!r}")  # pyright: ignore
                call = event.id
        self.state, self._moves, self._call = state, moves, call

    def feed(self, event: Event) -> tuple[Event, ...]:
        self.check((event,))
        return (event,)

    def end(self) -> tuple[Event, ...]:
        if self.state is not State.CLOSED:
            raise OutOfOrder(self.state.name, "end of stream", _NEEDED[self.state])
        return ()
