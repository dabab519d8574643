"""All MCP servers of a session: connected in parallel in the background, tools under names that models accept.

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
from toolwire.config.extras import missing_extra
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.concurrency import wait_until_done
from toolwire.turns.tools.registry import Registry

_LIMITS = Limits()

MAX_ADVICE = 4000
"""Characters of a server's instructions that a model is given."""


class Names:
    """Unique names of tools; a name is never given to another tool."""

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
    """Any number of servers; leaving the context ends them and waits for that. Raises `ServerFailed` without `mcp`."""

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
                remote.say(f"has settings that mean nothing here: {', '.join(remote.server.ignored)}")
            remote.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        closing = asyncio.gather(*(remote.close() for remote in self._remotes.values()))
        try:
            await wait_until_done(closing)  # so that no process is left behind
        finally:
            closing.result()

    async def ready(self) -> None:
        """Wait until every server is connected, or cannot be."""
        for remote in self._remotes.values():
            await remote.settled()

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
        """The tools that are known now, in the order of the servers."""
        return tuple(tool for remote in self._remotes.values() for tool in remote.tools)

    def update(self, registry: Registry) -> None:
        """Update the MCP tools in a registry; other tools stay."""
        for remote in self._remotes.values():
            registry.advise(f"the MCP server {remote.server.name}", remote.instructions[:MAX_ADVICE])
        now = set(self.tools)
        for old in [each for each in registry if isinstance(each, McpTool) and self._has_lost(each, now)]:
            registry.remove(old.name)
        for tool in self.tools:
            there = registry.get(tool.name)
            if there is None:
                registry.add(tool)
            elif there is not tool and tool not in self._left_out:
                self._left_out.add(tool)
                self._say(tool.server, f"has a tool {tool.tool} that is left out: {tool.name} is another tool's name")

    def _has_lost(self, tool: McpTool, now: set[McpTool]) -> bool:
        return tool not in now and self._remotes.get(tool.server) is tool.remote
