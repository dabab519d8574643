"""How many bytes of requests and replies the gateway holds at a time, and the most there may be.

Counted are request bodies, unpacked, and replies that are collected. Bytes are claimed before they are read, so that a
gateway which is full says so instead of growing.
"""

from types import TracebackType

from toolwire.core.errors import Failure, ToolwireError
from toolwire.pauses import retry_after

RETRY_AFTER = 2
"""Seconds after which a client may try again; a body is soon sent on."""


class Overloaded(ToolwireError):
    """There is no room for these bytes now."""

    def __init__(self, limit: int, status: int) -> None:
        super().__init__("overloaded")
        self._limit = limit
        self._status = status

    @property
    def failure(self) -> Failure:
        message = f"The gateway holds as many bytes as it may, {self._limit} (server.max_in_flight); try again soon."
        return Failure(self._status, "overloaded", message, retry_after=retry_after(RETRY_AFTER))


class Flight:
    """All bytes in flight."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Claim:
    """The bytes of one request and its reply; they are given back together."""

    def __init__(self, flight: Flight, status: int = 503) -> None:
        self._flight = flight
        self._status = status  # of the answer when there is no room
        self._held = 0

    def check(self, size: int) -> None:
        """See whether there is room for so many bytes more."""
        flight = self._flight
        if flight.held + size > flight.limit:
            raise Overloaded(flight.limit, self._status)

    def grow(self, size: int) -> None:
        """Take so many bytes more, or none if there is no room for them."""
        flight = self._flight
        if flight.held + size > flight.limit:
            raise Overloaded(flight.limit, self._status)
        flight.held += size
        self._held += size

    def takes(self, size: int) -> bool:
        """Take so many bytes more if there is room for them."""
        try:
            self.grow(size)
        except Overloaded:
            return False
        return True

    def holds(self, size: int) -> bool:
        """Hold just so many bytes from now on, if there is room for them."""
        return self.takes(size - self._held)

    def shrink(self, size: int) -> None:
        self._flight.held -= size
        self._held -= size

    def release(self) -> None:
        self.shrink(self._held)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
