"""The source of a turn's events: one run, or the runs of several turns of the model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from toolwire.assembly import Assembly
from toolwire.core.events import Event

Show: TypeAlias = Callable[[Sequence[Event]], bool]
"""Takes events when they are made, in place of the task that waits for them. Returns False if that task must go on."""


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

    async def read(self, until: float, show: Show | None = None) -> Sequence[Event]:
        """The next events, or none if `until` (a time of the event loop) comes first. Sets `finished` with the last.

        `show` may be given events during the wait; returns none once it has returned False.
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
