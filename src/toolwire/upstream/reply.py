"""The interface of upstreams and their replies.

Every failure of a connection is a `Broken`, which holds the failure to report.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Protocol, TypeAlias

import msgspec

from toolwire.core.backend import Opening
from toolwire.core.errors import BackendFault, Failure

Origin: TypeAlias = tuple[str, str | None, int | None]
"""Scheme, host and port of a server."""
Take: TypeAlias = Callable[[bytes], bool]
"""Takes bytes when they arrive, in place of the task that waits for them. Returns False if that task must go on."""


UNREACHABLE_SECONDS = 120.0
"""Seconds for which a failed connection counts, unless a later one is made."""

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that a header value must not contain."""


class Broken(BackendFault):
    """The connection to the backend could not be made, or broke."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds to wait: for a connection, the first byte, the next byte, the next visible event, the end of the turn.

    `after_finish`: for further frames after the finish reason, if the backend leaves the stream open.
    """

    connect: Annotated[float, msgspec.Meta(gt=0)] = 10
    first_byte: Annotated[float, msgspec.Meta(gt=0)] = 600
    idle: Annotated[float, msgspec.Meta(gt=0)] = 300
    progress: Annotated[float, msgspec.Meta(gt=0)] = 900
    total: Annotated[float, msgspec.Meta(gt=0)] = 3600
    after_finish: Annotated[float, msgspec.Meta(gt=0)] = 2

    def name_of(self, limit: str) -> str:
        """The name of a limit's setting, for error messages."""
        return f"timeouts.{limit}"


class Reply(Protocol):
    """A reply whose headers have arrived."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the reply."""
        ...

    def read_nowait(self) -> bytes:
        """The bytes that have arrived; empty if none have."""
        ...

    async def read(self, take: Take | None = None) -> bytes | None:
        """The next bytes; empty at the end. Raises `Broken`.

        `take` may be called with bytes that arrive during the wait; None once it has returned False.
        """
        ...

    def is_whole(self) -> bool:
        """Whether the body is complete and read."""
        ...

    def close(self) -> None:
        """Close the connection if the reply is incomplete."""
        ...


class Upstream:
    """Sends the first message of a conversation to a backend. The defaults suit a backend without HTTP."""

    origin: Origin | None = None
    """The server that requests go to; None if they stay in this process and its children."""
    url: str = ""
    """Its address without credentials; empty if it has none."""
    _last_fault: tuple[str, float] = ("", 0.0)
    """Why the last connection failed, and when."""

    def start(self) -> None:
        """Start workers, so that they are ready before the first request."""

    def unreachable(self) -> str:
        """Why the last connection failed; empty if it did not, or long ago."""
        reason, at = self._last_fault
        return reason if time.monotonic() - at < UNREACHABLE_SECONDS else ""

    def note_connection(self, fault: str = "") -> None:
        """Note that a connection was made, or why it failed."""
        self._last_fault = (fault, time.monotonic()) if fault else ("", 0.0)

    async def stop(self) -> None:
        """Stop workers and close connections."""

    def make_headers(self, opening: Opening, key: str) -> Mapping[str, str]:
        """The headers of the request."""
        return {}

    async def open(self, opening: Opening, key: str) -> Reply:
        """Send the opening; returns when the headers of the reply have arrived. Raises `Broken`."""
        raise NotImplementedError


def make_broken(code: str, message: str, status: int = 502, hint: str = "") -> Broken:
    """A retryable failure of the connection; `hint` tells the user what to do about it."""
    return Broken(Failure(status, code, message, retryable=True, hint=hint))


def sanitize_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a reply, with spaces in place of control characters (RFC 9110, section 5.5)."""
    if not CONTROL.search("".join(headers.values())):
        return headers
    return {name.lower(): CONTROL.sub(" ", value).strip() for name, value in headers.items()}
