"""A conversation with a server that knows less than our form: the request is lowered, and its calls are restored."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolwire.backends.failures import refusal
from toolwire.backends.written import as_written
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import Failure
from toolwire.core.events import Event, Note
from toolwire.core.lowering import Restore, lowered
from toolwire.core.names import Limits
from toolwire.core.request import Request
from toolwire.core.sse import Frame, on_one_line


class Decoder(Protocol):
    """What a backend's decoder is to its conversation."""

    ended: bool

    @property
    def finishing(self) -> int: ...

    @property
    def context_window(self) -> ContextWindow: ...

    @property
    def flowing(self) -> Sequence[bytes]: ...

    def begin(self, notes: Sequence[Event], /) -> None: ...

    def feed(self, frame: Frame, /) -> Sequence[Event]: ...

    def end(self) -> Sequence[Event]: ...

    def feed_plain(self, body: bytes, /) -> Sequence[Event]: ...

    def reasoning(self) -> str: ...


def fitted(request: Request, limits: Limits) -> tuple[Request, Restore]:
    """The request as the server can take it, in the client's own words where they are its too; and the way back."""
    lower, restore = lowered(request, limits)
    return as_written(request, lower, limits.schema_field), restore


class LoweredConversation:
    """One request to such a server and its answer. What is left to a backend is its decoder and how it starts."""

    _decoder: Decoder

    @property
    def context_window(self) -> ContextWindow:
        return self._decoder.context_window

    def __init__(self, request: Request, limits: Limits) -> None:
        self._request, self._restore = fitted(request, limits)
        self._names = [tool.name for tool in self._request.tools]
        self._notes: Sequence[Note] = self._restore.notes  # to be told with the turn
        self._is_as_asked = not self._notes and not self._restore.table

    @property
    def flowing(self) -> Sequence[bytes]:
        """Calls that must be restored are read piece by piece."""
        return () if self._restore.table else self._decoder.flowing

    def feed(self, frame: Frame) -> Sequence[Event]:
        return self._restored(self._decoder.feed(frame))

    @property
    def ended(self) -> bool:
        return self._decoder.ended

    @property
    def finishing(self) -> int:
        return self._decoder.finishing

    def end(self) -> Sequence[Event]:
        return self._restored(self._decoder.end())

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        return self._restored(self._decoder.feed_plain(on_one_line(body)))  # parts of it may go into a stream

    def stand_in(self, call: str, delivered: str) -> None:
        """Nothing: the whole history goes to such a server, and calls and results have the client's ids there."""

    def reasoning(self) -> str:
        return self._decoder.reasoning()

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        return refusal(status, headers, body)

    def _restored(self, events: Sequence[Event]) -> Sequence[Event]:
        if self._is_as_asked or not events:
            return events
        if self._notes:
            events = [*self._notes, *events]
            self._notes = ()
        return [out for event in events for out in self._restore.feed(event)]
