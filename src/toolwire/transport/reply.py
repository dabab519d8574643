"""A backend's reply as it travels: status, headers, bytes as they come.

Everything that can go wrong on the way is a `Broken`, which knows its failure.
"""

from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, Protocol

import msgspec

from toolwire.core.backend import Opening
from toolwire.core.errors import BackendFault, Failure


class Broken(BackendFault):
    """The connection to the backend could not be made, or broke."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds to wait: for a connection, the first byte, any byte, anything for the client, the whole turn.

    `after_finish`: for further frames once the backend has given its finish reason and leaves the stream open.
    """

    connect: float = 10
    first_byte: float = 600
    idle: float = 300
    progress: float = 900
    total: float = 3600
    after_finish: Annotated[float, msgspec.Meta(gt=0)] = 2


class Reply(Protocol):
    status: int

    @property
    def headers(self) -> Mapping[str, str]: ...

    def read_nowait(self) -> bytes:
        """What is there already; nothing if nothing is."""
        ...

    async def read(self) -> bytes:
        """The next bytes; nothing at the end. Raises `Broken`."""
        ...

    def is_whole(self) -> bool:
        """All of it was read."""
        ...

    def close(self) -> None: ...


class Upstream(Protocol):
    """Where a conversation's opening goes."""

    def open(self, opening: Opening, key: str) -> Coroutine[Any, Any, Reply]:
        """Send the opening; returns when the reply's headers are there. Raises `Broken`."""
        ...


def broken(code: str, message: str, status: int = 502) -> Broken:
    return Broken(Failure(status, code, message, retryable=True))
