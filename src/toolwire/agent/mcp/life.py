"""What a connection and its owner know of each other, without the `mcp` package."""

from typing import Any, Protocol

import msgspec

from toolwire.agent.registry import Emit, Result


class NotRunning(Exception):
    """There is no connection, and why."""


class SessionGone(NotRunning):
    """The server has forgotten the session, and so has not run the call."""


class CallFailed(Exception):
    """The call has no result, and why. The server is still there."""


class Offer(msgspec.Struct, frozen=True):
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: msgspec.Raw
    reads_only: bool = False
    """The server says that it changes nothing."""


class Life(Protocol):
    """A connection, from when it is made until it is over."""

    why: str
    """Why it is over, once it is."""

    @property
    def is_over(self) -> bool: ...

    @property
    def broke(self) -> bool:
        """It was open, and ended without being asked to."""
        ...

    async def opened(self) -> None: ...

    def stop(self, why: str) -> None: ...

    async def closed(self) -> None: ...

    async def call(self, tool: str, arguments: dict[str, Any], emit: Emit) -> Result: ...

    async def resources(self) -> Result: ...

    async def read(self, uri: str) -> Result: ...


class Owner(Protocol):
    """Whom a connection tells what becomes of it."""

    instructions: str
    """What the server says about the use of its tools."""

    def offer(self, offers: tuple[Offer, ...]) -> None: ...

    def say(self, message: str) -> None: ...

    def lose(self, life: Life) -> None: ...
