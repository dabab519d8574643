"""Errors, by the party at fault.

    ToolwireError
    ├── BadRequest          the client's fault; names the field
    ├── BackendFault        the fault of a model's server; carries a Failure
    │   ├── RateLimited     its rate limit or quota is reached
    │   ├── ReplyTooLarge   its reply exceeds the limit
    │   └── TooManyCalls    its turn exceeds the limit of calls
    ├── SettingsError       an invalid setting; names the field
    ├── WrongDialect        bytes that are not in the stated dialect
    ├── FedAfterEnd         a stage was fed after its end
    ├── StoreFailed         the store cannot be used now (memory/store.py)
    │   ├── Overtaken       another process has taken over the run or lease
    │   └── NotUsable       the database refuses connections (memory/postgres/faults.py)
    ├── TooManyRuns         the limit of unfinished background runs is reached (memory/store.py)
    ├── TooManyTools        the gateway adds more tools than a request may have (gateway/tools/tools.py)
    ├── Locked              another request continues the conversation (gateway/responses/conversation_lock.py)
    ├── Overloaded          too much is in flight (gateway/memory_budget.py)
    └── InternalError       ours
        └── OutOfOrder      an event that the order of events does not allow

The errors of `toolwire.agent` belong to the same tree; docs/library.md shows all of it. A `Failure` is an error as a
value: it travels inside `TurnFailed`, and every dialect can write it.
"""

import copyreg
from calendar import timegm
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

import msgspec

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""The failure code of a request that does not fit into the model's context window."""

THREAD_GONE = "thread_gone"
"""The failure code of a conversation whose thread is gone; nothing was sent yet."""

UNAVAILABLE = "backend_unavailable"
"""The failure code of a request for a backend that cannot be asked until its operator changes something."""


class Failure(msgspec.Struct, frozen=True):
    """Why a turn could not be delivered, independent of any dialect."""

    status: int
    code: str
    message: str
    type: str = ""
    param: str | None = None
    retry_after: str = ""
    retryable: bool = False
    quoted: bool = False
    """The message is the backend's own, which may repeat a prompt or a key: it is not logged."""
    hint: str = ""
    """Advice for the user, also appended to the message."""
    url: str = ""
    """The URL of the backend, for the log."""

    def pause(self, now: float) -> float | None:
        """Seconds to wait according to Retry-After, a number or a date; None if it is absent or unreadable."""
        try:
            seconds = float(self.retry_after)
        except ValueError:
            pass
        else:
            return seconds if seconds >= 0 else None
        try:
            seconds = timegm(parsedate_to_datetime(self.retry_after).utctimetuple()) - now
        except (ValueError, OverflowError):
            return None
        return seconds if seconds > 0 else None


def split_validation_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """The message of a msgspec error and the path of the field it is about."""
    text, _, path = str(error).partition(" - at `$")
    return text, path.removesuffix("`").removeprefix(".")


class ToolwireError(Exception):
    """The base of every error Toolwire raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the message and the fields, whatever `__init__` takes: process pools send errors."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    failure_code: ClassVar[str] = ""
    """The code of its failure. An error without one is reported as an internal error, without its message."""
    failure_status: ClassVar[int] = 500

    @property
    def failure(self) -> Failure:
        """The error as a value that every dialect can write."""
        if not self.failure_code:
            return Failure(500, "internal_error", "Toolwire met an internal error.")
        return Failure(self.failure_status, self.failure_code, str(self) or type(self).__name__)


class BadRequest(ToolwireError):
    """The client's request is invalid; `param` is the path of the offending field."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status

    @property
    def failure(self) -> Failure:
        return Failure(self.status, self.code, self.message, param=self.param)


class BackendFault(ToolwireError):
    """The server of a model refused the request or failed, or its reply cannot be used."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self._failure = failure

    @property
    def failure(self) -> Failure:
        return self._failure


class RateLimited(BackendFault):
    """The server's rate limit or quota is reached; `failure.retry_after` says how long to wait, if the server does."""


def fault_of(failure: Failure) -> BackendFault:
    """The error for a failed turn."""
    return RateLimited(failure) if failure.status == 429 else BackendFault(failure)


class ReplyTooLarge(BackendFault):
    """The backend's reply exceeds the limit of bytes."""

    def __init__(self, limit: int) -> None:
        message = f"The reply has more than the limit of {limit} bytes (server.max_reply)."
        super().__init__(Failure(502, "reply_too_large", message))


MAX_CALLS = 10_000
"""Maximum calls, or other items, of one turn; far more than any model makes."""


class TooManyCalls(BackendFault):
    """The backend sent more calls in one turn than any model would make."""

    def __init__(self) -> None:
        message = f"The turn has more than the limit of {MAX_CALLS} calls or other items."
        super().__init__(Failure(502, "reply_too_large", message))


class SettingsError(ToolwireError):
    """One line about an invalid setting, which names the field."""

    failure_code = "invalid_settings"


class WrongDialect(ToolwireError):
    """A stream or a body is not in the stated dialect."""

    failure_code = "wrong_dialect"
    failure_status = 502

    def __init__(self, expected: str, found: str, message: str = "") -> None:
        super().__init__(message or f"This is {found!r}, not {expected!r}.")
        self.expected = expected
        self.found = found


class FedAfterEnd(ToolwireError):
    """`feed` or `end` was called after `end`."""

    failure_code = "fed_after_end"

    def __init__(self, stage: str) -> None:
        super().__init__(f"{stage} has ended: use a new one for each turn.")


class InternalError(ToolwireError):
    """A fault of Toolwire's own."""


class OutOfOrder(InternalError):
    """An event that the table in `order.py` does not allow. If a caller made the events, the caller is at fault."""

    failure_code = "out_of_order"

    def __init__(self, state: str, event: str, needed: str = "") -> None:
        super().__init__(f"{event} while {state}" + (f": {needed}" if needed else ""))
