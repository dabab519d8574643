"""A conversation with a server that knows less than our form: the request is lowered, and its calls are restored."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolwire.backends.failures import refusal
from toolwire.core.errors import Failure
from toolwire.core.events import Event
from toolwire.core.identity import Call
from toolwire.core.lowering import lowered
from toolwire.core.names import Limits
from toolwire.core.request import Request
from toolwire.core.sse import Frame


class Decoder(Protocol):
    """What a backend's decoder is to its conversation."""

    ended: bool

    def begin(self, notes: Sequence[Event], /) -> None: ...

    def feed(self, frame: Frame, /) -> Sequence[Event]: ...

    def end(self) -> Sequence[Event]: ...

    def feed_plain(self, body: bytes, /) -> Sequence[Event]: ...

    def calls(self) -> Sequence[Call]: ...


class LoweredConversation:
    """One request to such a server and its answer. What is left to a backend is its decoder and how it starts."""

    _decoder: Decoder

    def __init__(self, request: Request, limits: Limits) -> None:
        self._request, self._restore = lowered(request, limits)
        self._names = [tool.name for tool in self._request.tools]

    def feed(self, frame: Frame) -> Sequence[Event]:
        return self._restored(self._decoder.feed(frame))

    @property
    def ended(self) -> bool:
        return self._decoder.ended

    def end(self) -> Sequence[Event]:
        return self._restored(self._decoder.end())

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        return self._restored(self._decoder.feed_plain(body))

    def calls(self) -> Sequence[Call]:
        return self._decoder.calls()

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        return refusal(status, headers, body)

    def _restored(self, events: Sequence[Event]) -> Sequence[Event]:
        if not self._restore.table:
            return events
        return [out for event in events for out in self._restore.feed(event)]
