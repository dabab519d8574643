"""All MCP servers of a session: connected concurrently in the background, tools under names that models accept.

async with Servers(read_config(text), say) as servers:
    await servers.ready()
    servers.update(registry)
"""

import asyncio
from collections.abc import Iterable
from typing import Self

from toolwire.adapt.names import Limits, flat_name
from toolwire.agent.errors import ServerFailed
from toolwire.agent.mcp.remote import McpTool, Remote, Say
from toolwire.agent.mcp.settings import Server
from toolwire.imports import missing_extra
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.concurrency import wait_until_done
from toolwire.turns.tools.registry import FunctionTool, Registry, Result, tool

_LIMITS = Limits()

MAX_INSTRUCTIONS_CHARS = 4000
"""Maximum characters of a server's instructions that the model gets."""


class Names:
    """Assigns unique names to tools; a name is never reused for another tool."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def of(self, server: str, tool: str) -> str:
        """The name of a tool, the same each time."""
        if (server, tool) not in self._given:
            flat = flat_name(server, tool)
            name = _LIMITS.name(flat)
            while name in self._taken:
                name = _LIMITS.other_name(flat)
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
    """Any number of servers; leaving the context ends them and waits for that.

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

    def get(self, name: str) -> Remote:
        """The server with this name. Raises `ToolError`."""
        if name not in self._remotes:
            raise ToolError(f"there is no MCP server {name!r}; there are: {', '.join(self._remotes)}")
        return self._remotes[name]

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


def resource_tools(servers: Servers) -> tuple[FunctionTool, FunctionTool]:
    """A tool that lists the resources of MCP servers, and one that reads them."""

    @tool(parallel=True)
    async def list_mcp_resources(server: str) -> Result:
        """List the resources of an MCP server.

        Args:
            server: The name of the server.
        """
        return await servers.get(server).ask(lambda connection: connection.resources())

    @tool(parallel=True)
    async def read_mcp_resource(server: str, uri: str) -> Result:
        """Read a resource of an MCP server.

        Args:
            server: The name of the server.
            uri: The address of the resource, as list_mcp_resources gives it.
        """
        return await servers.get(server).ask(lambda connection: connection.read(uri))

    return list_mcp_resources, read_mcp_resource
