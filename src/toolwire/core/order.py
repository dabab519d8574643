"""The legal order of a turn's events, as a table. The failed lookup is the check."""

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
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    Told,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)


class State(Enum):
    WAITING = "waiting for the turn to start"
    TALKING = "between calls"
    CALLING = "inside a call"
    CLOSED = "after the end"


Moves: TypeAlias = dict[type[Event], State]

TRANSITIONS: dict[State, Moves] = {
    State.WAITING: {
        TurnStarted: State.TALKING,
        Note: State.WAITING,
        Told: State.WAITING,
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
        Told: State.TALKING,
        TurnEnded: State.CLOSED,
        TurnFailed: State.CLOSED,
    },
    State.CALLING: {
        CallArgs: State.CALLING,
        CallEnded: State.TALKING,
        Usage: State.CALLING,
        Note: State.CALLING,
        Told: State.CALLING,
        TurnFailed: State.CLOSED,
    },
    State.CLOSED: {},
}


class TurnOrder:
    """Checks one turn's events against the table: a stage that passes them on, or raises at the first wrong one."""

    def __init__(self) -> None:
        self.state: State = State.WAITING
        self._moves = TRANSITIONS[State.WAITING]

    def see(self, event: Event) -> None:
        state = self._moves.get(type(event))
        if state is None:
            raise OutOfOrder(self.state.name, type(event).__name__)
        if state is not self.state:
            self.state = state
            self._moves = TRANSITIONS[state]

    def feed(self, event: Event) -> tuple[Event, ...]:
        self.see(event)
        return (event,)

    def end(self) -> tuple[Event, ...]:
        if self.state is not State.CLOSED:
            raise OutOfOrder(self.state.name, "end of stream")
        return ()
