"""The source of a turn's events: one run, or the runs of several turns of the model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolwire.assembly import Assembly
from toolwire.core.events import Delta, Event


class Listener(Protocol):
    """Takes events when they are made, in place of the task that waits for them."""

    @property
    def is_ready(self) -> bool:
        """Whether the client reads what is sent."""
        ...

    def show(self, events: Sequence[Event]) -> bool:
        """Send events; returns False if the task must go on."""
        ...

    def sample(self, event: Delta) -> tuple[bytes, int] | None:
        """What is written for a delta like the last one, and its number or -1; None if that is more than one delta."""
        ...

    def send(self, piece: bytes) -> None:
        """Send bytes of events that `take_in` is given later."""
        ...

    def take_in(self, events: Sequence[Event]) -> bytes:
        """The bytes of events, which were sent before."""
        ...


class TurnSource(Protocol):
    """Produces the events of one turn of the client."""

    @property
    def finished(self) -> bool:
        """No events follow: the turn has ended or failed, or the source was closed."""
        ...

    @property
    def assembly(self) -> Assembly:
        """The policies and statistics of the turn: those of its latest attempt."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the backend's reply; empty before they arrive."""
        ...

    @property
    def backend(self) -> str:
        """The name of the current backend."""
        ...

    async def read(self, until: float, listener: Listener | None = None) -> Sequence[Event]:
        """The next events, or none if `until` (a time of the event loop) comes first. Sets `finished` with the last.

        `listener` may be given events during the wait; returns none when it leaves the rest to the task.
        """
        ...

    def commit(self) -> Sequence[Event]:
        """Commit: no further attempt follows. Returns the events that were held until now."""
        ...

    def close(self) -> None:
        """Stop at once. An incomplete reply is closed, which stops the model."""
        ...

    async def finish(self) -> None:
        """Read the rest of the reply after the end of the turn, so that its connection can be reused."""
        ...
