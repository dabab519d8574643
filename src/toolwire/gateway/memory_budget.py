"""The memory budget for requests and replies in flight.

Decompressed request bodies and collected replies count. Bytes are reserved before they are read, so that a gateway at
its limit refuses a request instead of growing.
"""

from types import TracebackType

from toolwire.backoff import retry_after
from toolwire.core.errors import Failure, ToolwireError

RETRY_AFTER = 2
"""Seconds after which a client may retry: most bodies are sent on quickly."""


class Overloaded(ToolwireError):
    """The memory budget has no room for these bytes now."""

    def __init__(self, limit: int, status: int) -> None:
        super().__init__("overloaded")
        self._limit = limit
        self._status = status

    @property
    def failure(self) -> Failure:
        message = f"The memory budget of {self._limit} bytes is used up (server.max_in_flight); try again soon."
        return Failure(self._status, "overloaded", message, retry_after=retry_after(RETRY_AFTER))


class MemoryBudget:
    """The bytes of all requests and replies together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0


class Reservation:
    """The bytes of one request and its reply, which are released together."""

    def __init__(self, budget: MemoryBudget, status: int = 503) -> None:
        """`status` is that of the failure when there is no room."""
        self._budget = budget
        self._status = status
        self._size = 0

    def check(self, size: int) -> None:
        """Raise `Overloaded` if there is no room for this many more bytes."""
        if self._budget.reserved + size > self._budget.limit:
            raise Overloaded(self._budget.limit, self._status)

    def grow(self, size: int) -> None:
        """Reserve this many more bytes. Raises `Overloaded`."""
        if not self.try_grow(size):
            raise Overloaded(self._budget.limit, self._status)

    def try_grow(self, size: int) -> bool:
        """Reserve this many more bytes; False if there is no room for them."""
        if self._budget.reserved + size > self._budget.limit:
            return False
        self._budget.reserved += size
        self._size += size
        return True

    def try_resize(self, size: int) -> bool:
        """Reserve this many bytes in all; False if there is no room for them."""
        return self.try_grow(size - self._size)

    def shrink(self, size: int) -> None:
        """Release this many bytes."""
        self._budget.reserved -= size
        self._size -= size

    def release(self) -> None:
        """Release all bytes."""
        self.shrink(self._size)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
