"""A conversation with a server that supports less than a `Request` holds: it is lowered, and calls are restored."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolwire.adapt.lowering import Restore, lowered
from toolwire.adapt.names import Limits
from toolwire.backends.failures import http_failure
from toolwire.backends.originals import with_original_fields
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import Failure
from toolwire.core.events import Event, Note
from toolwire.core.request import Request
from toolwire.core.sse import Frame, on_one_line


class ReplyDecoder(Protocol):
    """The decoder of a backend's reply, as its conversation uses it; see `Conversation` for the members."""

    ended: bool

    @property
    def finishing(self) -> int:
        """Frames since every choice has its finish reason."""
        ...

    @property
    def context_window(self) -> ContextWindow:
        """What the reply reported about the model's context window."""
        ...

    @property
    def delta_fields(self) -> Sequence[bytes]:
        """The opening bytes of the fields whose text may be read in batches of frames."""
        ...

    def begin(self, notes: Sequence[Event], /) -> None:
        """Take notes about the request, which are delivered at the start of the turn."""
        ...

    def feed(self, frame: Frame, /) -> Sequence[Event]:
        """The events of one frame."""
        ...

    def end(self) -> Sequence[Event]:
        """The events caused by the end of the stream."""
        ...

    def feed_plain(self, body: bytes, /) -> Sequence[Event]:
        """The events of a reply that is not streamed."""
        ...

    def reasoning(self) -> str:
        """The reasoning so far, as the fields in which the server needs it back."""
        ...


def fit_request(request: Request, limits: Limits) -> tuple[Request, Restore]:
    """The request as the server accepts it, with the client's JSON where possible, and how to restore its calls."""
    lower, restore = lowered(request, limits)
    return with_original_fields(request, lower, limits.schema_field), restore


class LoweredConversation:
    """One request to such a server and its answer. A backend adds its decoder and `start`."""

    _decoder: ReplyDecoder

    @property
    def context_window(self) -> ContextWindow:
        return self._decoder.context_window

    def __init__(self, request: Request, limits: Limits) -> None:
        self._request, self._restore = fit_request(request, limits)
        self._names = [tool.name for tool in self._request.tools]
        self._notes: Sequence[Note] = self._restore.notes  # to be delivered with the turn
        self._is_unchanged = not self._notes and not self._restore.table

    @property
    def delta_fields(self) -> Sequence[bytes]:
        """None if calls must be restored, which happens delta by delta."""
        return () if self._restore.table else self._decoder.delta_fields

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
        return self._restored(self._decoder.feed_plain(on_one_line(body)))  # parts of it may be written to a stream

    def stand_in(self, call: str, delivered: str) -> None:
        """Do nothing: such a server gets the whole history with the client's ids in the next request."""

    def reasoning(self) -> str:
        return self._decoder.reasoning()

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        return http_failure(status, headers, body)

    def _restored(self, events: Sequence[Event]) -> Sequence[Event]:
        if self._is_unchanged or not events:
            return events
        if self._notes:
            events = [*self._notes, *events]
            self._notes = ()
        return [out for event in events for out in self._restore.feed(event)]
