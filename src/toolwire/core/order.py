"""The legal order of a turn's events, as a table. The failed lookup is the check."""

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
    """Where a turn stands, as far as the order of events depends on it."""

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


_Step: TypeAlias = "tuple[State, dict[type[Event], _Step]]"


def _linked(table: dict[State, Moves]) -> dict[type[Event], _Step]:
    """The table as nested dicts, so that one lookup gives the next state and its moves."""
    moves: dict[State, dict[type[Event], _Step]] = {state: {} for state in table}
    for state, following in table.items():
        moves[state] |= {kind: (target, moves[target]) for kind, target in following.items()}
    return moves[State.WAITING]


_FIRST = _linked(TRANSITIONS)


class TurnOrder:
    """Checks one turn's events against the table: a stage that passes them on, or raises at the first wrong one."""

    def __init__(self) -> None:
        self.state: State = State.WAITING
        self._moves = _FIRST

    def see(self, events: Iterable[Event]) -> None:
        """Check these events; raises `OutOfOrder` at the first wrong one."""
        state, moves = self.state, self._moves
        for event in events:
            step = moves.get(type(event))
            if step is None:
                raise OutOfOrder(state.name, type(event).__name__)
            state, moves = step
        self.state, self._moves = state, moves

    def feed(self, event: Event) -> tuple[Event, ...]:
        self.see((event,))
        return (event,)

    def end(self) -> tuple[Event, ...]:
        if self.state is not State.CLOSED:
            raise OutOfOrder(self.state.name, "end of stream")
        return ()
