"""What a turn's events are read from: a run of one backend's reply, or several turns of a model in a row."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolwire.assembly import Assembly
from toolwire.core.events import Event


class TurnSource(Protocol):
    """Produces the events of one turn, as its reader sees it."""

    @property
    def finished(self) -> bool:
        """Nothing more comes: the turn has ended or failed, or the source was closed."""
        ...

    @property
    def assembly(self) -> Assembly:
        """The policies and statistics of the turn; those of the last attempt, where several are made."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the backend's reply, once they are there."""
        ...

    @property
    def backend(self) -> str:
        """The name of the backend that is asked."""
        ...

    async def read(self, until: float) -> Sequence[Event]:
        """The next events, or none if `until` (a time of the event loop) comes first. Sets `finished` with the last."""
        ...

    def commit(self) -> Sequence[Event]:
        """The client has an answer: no new attempt is made from here on. Returns the events that waited for content."""
        ...

    def close(self) -> None:
        """Stop at once. A reply that is not whole is broken off, which stops the model."""
        ...

    async def finish(self) -> None:
        """The turn is over: read the reply's last bytes, so that its connection can be used again."""
        ...
