"""The interface between a connection and its owner, without the `mcp` package."""

from typing import Any, Protocol

import msgspec

from toolwire.turns.tools.registry import Emit, Result


class NotRunning(Exception):
    """There is no connection; the message says why."""


class SessionGone(NotRunning):
    """The server has lost the session and has not run the call."""


class CallFailed(Exception):
    """The call has no result; the message says why. The server is still there."""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: msgspec.Raw
    reads_only: bool = False
    """Whether the server declares it read-only."""


class ServerConnection(Protocol):
    """A connection to an MCP server."""

    why: str
    """Why it has ended; empty while it has not."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is ending."""
        ...

    @property
    def broke(self) -> bool:
        """Whether it was open and ended without being stopped."""
        ...

    async def opened(self) -> None:
        """Wait until it is open. Raises `NotRunning`."""
        ...

    def stop(self, why: str) -> None:
        """Begin to close it."""
        ...

    async def closed(self) -> None:
        """Wait until it is closed."""
        ...

    async def call(self, tool: str, arguments: dict[str, Any], emit: Emit) -> Result:
        """Call a tool."""
        ...

    async def resources(self) -> Result:
        """List the resources."""
        ...

    async def read(self, uri: str) -> Result:
        """Read a resource."""
        ...


class ConnectionOwner(Protocol):
    """The owner of a connection, which receives its changes."""

    instructions: str
    """The instructions of the server for the use of its tools."""

    def offer(self, offers: tuple[ListedTool, ...]) -> None:
        """Take the current list of tools."""
        ...

    def say(self, message: str) -> None:
        """Report something to the user."""
        ...

    def lose(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        ...
