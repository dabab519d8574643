"""MCP servers, connected concurrently in the background, and their tools, under names that models accept.

async with Servers(read_config(text), say) as servers:
    await servers.ready()
    servers.update(registry)

A call to a dead server fails with the reason, and the next call restarts the server. No call is sent twice, unless the
server has refused it without running it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec

from toolwire.adapt.names import Limits, flatten_name
from toolwire.agent.errors import ServerFailed
from toolwire.agent.mcp.settings import Server
from toolwire.core.events import CallKind
from toolwire.imports import install_command, missing_extra
from toolwire.turns.tools.call import ToolCall, ToolError, read_arguments
from toolwire.turns.tools.calls import failure
from toolwire.turns.tools.concurrency import wait_until_done
from toolwire.turns.tools.registry import Context, Emit, Registry, Result

if TYPE_CHECKING:
    from toolwire.agent.mcp.connection import Connection

Say: TypeAlias = Callable[[str, str], None]
"""Receives the name of a server and a message about it."""

MAX_RESTART_DELAY = 30.0
"""Maximum seconds before a server that failed repeatedly is started again."""
MAX_INSTRUCTIONS_CHARS = 4000
"""Maximum characters of a server's instructions that the model gets."""
_LIMITS = Limits()


class NotRunning(Exception):
    """There is no connection; the message has the reason."""


class SessionGone(NotRunning):
    """The server has lost the session and has not run the call."""


class CallFailed(Exception):
    """The call has no result; the message has the reason. The server still runs."""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: msgspec.Raw
    reads_only: bool = False
    """Whether the server declares it read-only."""


class McpTool:
    """A tool of an MCP server."""

    kind: CallKind = "function"
    format: msgspec.Raw | None = None

    def __init__(self, name: str, listed: ListedTool, remote: "Remote") -> None:
        self.name = name
        self.description = listed.description
        self.parameters: msgspec.Raw | None = listed.parameters
        self.parallel = remote.server.parallel
        self.writes = not (listed.reads_only and remote.server.trusted)
        self.tool = listed.name
        """The name of the tool on its server."""
        self.listed = listed
        self.remote = remote

    @property
    def server(self) -> str:
        """The name of its server."""
        return self.remote.server.name

    def check_call(self, call: ToolCall, context: Context) -> None:
        """Raise `ToolError` if the arguments of a call are not a JSON object."""
        read_arguments(call, dict[str, Any])

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Call the tool on its server."""
        if self.writes and not context.writable:
            raise ToolError(f"{self.name} may change something, which read-only mode forbids")
        arguments = read_arguments(call, dict[str, Any])
        return await self.remote.call(self.tool, arguments, context.emit)


class Remote:
    """A server that is connected when needed."""

    def __init__(self, server: Server, name: Callable[[str, str], str], say: Say) -> None:
        self.server = server
        self.tools: tuple[McpTool, ...] = ()
        """The last list of tools; it stays while the server is not running."""
        self.instructions = ""
        self._name = name
        self._say = say
        self._opening: asyncio.Task[Connection] | None = None
        self._connections: set[Connection] = set()
        self._failures = 0
        self._not_before = 0.0
        self._why = ""
        self._is_closed = False

    @property
    def state(self) -> str:
        """The state of the connection, for users."""
        if self._opening is None or not self._opening.done():
            return "connecting"
        return f"not running: {self._why}" if _is_over(self._opening) else "connected"

    @property
    def problem(self) -> str:
        """Why it is not connected; empty if it is connected, or connecting."""
        return self._why if self._opening is not None and _is_over(self._opening) else ""

    async def call(self, tool: str, arguments: dict[str, Any], emit: Emit) -> Result:
        """Call a tool on the server, connecting first if necessary."""
        name = self.server.name
        try:
            try:
                result = await (await self._connect()).call(tool, arguments, emit)
            except SessionGone:  # the server has not run the call
                result = await (await self._connect()).call(tool, arguments, emit)
        except NotRunning as error:
            return failure(f"the MCP server {name} is not running: {error}")
        except CallFailed as error:
            return failure(f"the MCP server {name} has no result: {error}")
        self._failures = 0
        return result

    # Connections

    def start(self) -> None:
        """Begin to connect."""
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def wait_until_settled(self) -> None:
        """Wait until it is connected, or has failed to."""
        if self._opening is not None:
            await asyncio.wait({self._opening})

    async def _connect(self) -> "Connection":
        if self._opening is None or _is_over(self._opening):
            if self._is_closed:
                raise NotRunning("it was closed")
            seconds = self._not_before - time.monotonic()
            if seconds > 0:
                raise NotRunning(f"{self._why}\nIt can be started again in {seconds:.1f} seconds.")
            self.start()
        opening = self._opening
        assert opening is not None
        await asyncio.wait({opening})  # without cancelling it for others
        if opening.cancelled():
            raise NotRunning("it was closed")
        return opening.result()

    async def _open(self) -> "Connection":
        try:
            try:
                # takes 0.7 s, and most sessions do not need it
                module = await asyncio.to_thread(import_module, "toolwire.agent.mcp.connection")
            except ImportError as error:
                raise NotRunning(f"the package mcp cannot be loaded: {error}; try {install_command('mcp')}") from None
            connection: Connection = module.Connection(self.server, self)
            self._connections.add(connection)
            await connection.wait_until_open()
        except Exception as error:
            self._fail(str(error))
            raise
        return connection

    def _fail(self, why: str) -> None:
        """Count a failure; each consecutive one after the first doubles the delay before a restart."""
        self._failures += 1
        pause = min(2.0 ** (self._failures - 2), MAX_RESTART_DELAY) if self._failures > 1 else 0.0
        self._not_before = time.monotonic() + pause
        self._why = why
        if not self._is_closed:
            self.say(f"is not running: {why}")

    async def close(self) -> None:
        """Close its connections and wait until they are closed."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        connections = tuple(self._connections)
        for connection in connections:
            connection.stop("it was closed")
        for connection in connections:
            await connection.wait_until_closed()

    # Called by its connections

    def update_tools(self, listed: tuple[ListedTool, ...]) -> None:
        """Take the current list of tools; unchanged tools stay the same objects."""
        known = {each.tool: each for each in self.tools}
        listed_by_name = {each.name: each for each in listed}
        tools: list[McpTool] = []
        for name, each in listed_by_name.items():
            if self.server.offers(name):
                old = known.get(name)
                if old is None or old.listed != each:
                    old = McpTool(self._name(self.server.name, name), each, self)
                tools.append(old)
        self.tools = tuple(tools)
        missing = [name for name in self.server.allow or () if name not in listed_by_name]
        if missing:
            self.say(f"has no tool named {', '.join(missing)}")

    def say(self, message: str) -> None:
        """Report something about this server to the user."""
        self._say(self.server.name, message)

    def lose(self, connection: "Connection", *, broke: bool) -> None:
        """Forget a connection that has ended; `broke`: it was open, and we did not stop it."""
        self._connections.discard(connection)
        if broke:
            self._fail(connection.why)


def _is_over(opening: "asyncio.Task[Connection]") -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().is_over


class Names:
    """Assigns unique names to tools; a name is never reused for another tool."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def of(self, server: str, tool: str) -> str:
        """The name of a tool, the same each time."""
        if (server, tool) not in self._given:
            flat = flatten_name(server, tool)
            name = _LIMITS.fit_name(flat)
            while name in self._taken:
                name = _LIMITS.make_other_name(flat)
                flat += "."
            self._given[server, tool] = name
            self._taken.add(name)
        return self._given[server, tool]


def require_package() -> None:
    """Raise `ServerFailed` unless the package `mcp` is installed."""
    missing = missing_extra("mcp")
    if missing:
        raise ServerFailed(missing)


class Servers:
    """Any number of servers; leaving the context ends them and waits for their end.

    `say` receives messages about servers. Raises `ServerFailed` without the package `mcp`, and `ValueError` if two
    servers have the same name.
    """

    def __init__(self, servers: Iterable[Server], say: Say) -> None:
        self._names = Names()
        self._say = say
        self._left_out: set[McpTool] = set()
        self._remotes: dict[str, Remote] = {}
        for server in servers:
            if server.name in self._remotes:
                raise ValueError(f"there are two MCP servers named {server.name!r}")
            self._remotes[server.name] = Remote(server, self._names.of, say)
        if self._remotes:
            require_package()

    async def __aenter__(self) -> Self:
        """Begin to connect without waiting."""
        for remote in self._remotes.values():
            if remote.server.ignored:
                remote.say(f"has unknown settings: {', '.join(remote.server.ignored)}")
            remote.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        closing = asyncio.gather(*(remote.close() for remote in self._remotes.values()))
        try:
            await wait_until_done(closing)  # so that no process is left behind
        finally:
            closing.result()

    async def ready(self) -> None:
        """Wait until every server is connected, or has failed to."""
        for remote in self._remotes.values():
            await remote.wait_until_settled()

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """The servers in their order."""
        return tuple(self._remotes.values())

    @property
    def tools(self) -> tuple[McpTool, ...]:
        """The tools that are listed now, in the order of the servers."""
        return tuple(tool for remote in self._remotes.values() for tool in remote.tools)

    def update(self, registry: Registry) -> None:
        """Update the MCP tools in a registry; other tools stay."""
        for remote in self._remotes.values():
            registry.advise(f"the MCP server {remote.server.name}", remote.instructions[:MAX_INSTRUCTIONS_CHARS])
        now = set(self.tools)
        for old in [each for each in registry if isinstance(each, McpTool)]:
            if old not in now and self._remotes.get(old.server) is old.remote:
                registry.remove(old.name)
        for each in self.tools:
            there = registry.get(each.name)
            if there is None:
                registry.add(each)
            elif there is not each and each not in self._left_out:
                self._left_out.add(each)
                self._say(each.server, f"has a tool {each.tool} that is left out: another tool is named {each.name}")
