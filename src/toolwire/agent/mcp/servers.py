"""All MCP servers of a session: connected at once in the background, their tools by names that models take.

async with Servers(read_config(text), say) as servers:
    await servers.ready()
    servers.update(registry)
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from toolwire.agent.call import mcp_name
from toolwire.agent.mcp.remote import Connect, McpTool, Remote, Say
from toolwire.agent.mcp.settings import Server
from toolwire.agent.registry import Registry
from toolwire.core.names import Limits

_LIMITS = Limits()

MOST_ADVICE = 4000
"""Characters of a server's instructions that a model is given."""


class Names:
    """What tools are called here. A name is given once and for good, and never to another tool."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def of(self, server: str, tool: str) -> str:
        if (server, tool) not in self._given:
            name = self._new(mcp_name(server, tool))
            self._given[server, tool] = name
            self._taken.add(name)
        return self._given[server, tool]

    def _new(self, flat: str) -> str:
        name = _LIMITS.name(flat)
        while name in self._taken:
            name = _LIMITS.other_name(flat)
            flat += "."
        return name


class Servers:
    """Any number of servers. Leaving the context ends them all, and waits until they are gone."""

    def __init__(self, servers: Iterable[Server], say: Say) -> None:
        self._names = Names()
        self._say = say
        self._loading: asyncio.Task[Connect] | None = None
        self._left_out: set[McpTool] = set()
        self._remotes: dict[str, Remote] = {}
        for server in servers:
            if server.name in self._remotes:
                raise ValueError(f"there are two MCP servers named {server.name!r}")
            self._remotes[server.name] = Remote(server, self._load, self._names.of, say)

    async def __aenter__(self) -> Self:
        """Begin to connect, and wait for nobody."""
        for remote in self._remotes.values():
            if remote.server.ignored:
                remote.say(f"has settings that mean nothing here: {', '.join(remote.server.ignored)}")
            remote.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = asyncio.get_running_loop().create_task(self._close())
        is_cancelled = False
        while not closing.done():
            try:
                await asyncio.wait({closing})
            except asyncio.CancelledError:
                is_cancelled = True  # but no process is left behind for that
        closing.result()
        if is_cancelled:
            raise asyncio.CancelledError

    async def ready(self) -> None:
        """Wait until every server is connected, or cannot be."""
        for remote in self._remotes.values():
            await remote.settled()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._remotes)

    def get(self, name: str) -> Remote | None:
        return self._remotes.get(name)

    @property
    def tools(self) -> tuple[McpTool, ...]:
        """The tools that are known now, in the order of the servers."""
        return tuple(tool for remote in self._remotes.values() for tool in remote.tools)

    def update(self, registry: Registry) -> None:
        """Make a registry hold these tools as they are now. The others in it stay as they are."""
        for remote in self._remotes.values():
            registry.advise(f"the MCP server {remote.server.name}", remote.instructions[:MOST_ADVICE])
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

    async def _load(self) -> Connect:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(asyncio.to_thread(_import))
        return await asyncio.shield(self._loading)

    async def _close(self) -> None:
        await asyncio.gather(*(remote.close() for remote in self._remotes.values()))
        if self._loading is not None:
            await asyncio.wait({self._loading})


def _import() -> Connect:
    from toolwire.agent.mcp.connection import Connection  # noqa: PLC0415  (0.7 s, which most sessions do not need)

    return Connection
