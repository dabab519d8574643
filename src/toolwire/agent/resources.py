"""Resources that the runs of an agent share: an open model, entered toolsets, connected MCP servers.

They are opened for the first run and closed after the last, by one task, because some libraries require that the task
that enters a context also leaves it. Runs in different event loops share nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec

from toolwire.agent.mcp import Servers
from toolwire.agent.model import Model
from toolwire.turns.tools.concurrency import wait_until_done
from toolwire.turns.tools.registry import Tool


class Resources(msgspec.Struct, frozen=True):
    """Open resources."""

    model: Model
    tools: tuple[Tool, ...]
    """The tools of the toolsets."""
    servers: Servers | None


class SharedResources:
    """Opens the resources for the first user in an event loop, and closes them after the last one there."""

    def __init__(self, opening: Callable[[AsyncExitStack], Awaitable[Resources]]) -> None:
        self._opening = opening
        self._holders: dict[asyncio.AbstractEventLoop, _Holder] = {}

    async def acquire(self) -> Resources:
        """The open resources, which the caller must release. If opening fails, raises that error, and holds nothing."""
        loop = asyncio.get_running_loop()
        holder = self._holders.get(loop)
        if holder is None or not holder.users:
            holder = self._holders[loop] = _Holder(self._opening, holder)
        holder.users += 1
        try:
            return await asyncio.shield(holder.opened)
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        """Close the resources, unless they have other users."""
        loop = asyncio.get_running_loop()
        holder = self._holders[loop]
        holder.users -= 1
        if holder.users:
            return
        try:
            await holder.close()
        finally:
            if self._holders.get(loop) is holder:
                del self._holders[loop]


class _Holder:
    """The task that opens and closes the resources. It first waits for the `previous` one to close them."""

    def __init__(self, opening: Callable[[AsyncExitStack], Awaitable[Resources]], previous: "_Holder | None") -> None:
        loop = asyncio.get_running_loop()
        self.users = 0
        self.opened: asyncio.Future[Resources] = loop.create_future()
        self._opening = opening
        self._leaving = asyncio.Event()
        self._task = loop.create_task(self._hold(previous))

    async def _hold(self, previous: "_Holder | None") -> None:
        if previous is not None:
            await asyncio.wait([previous._task])
        try:
            async with AsyncExitStack() as stack:
                self.opened.set_result(await self._opening(stack))
                await self._leaving.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                self.opened.cancel()
                raise
            self.opened.set_exception(error)
            self.opened.exception()  # marks it as retrieved: all users may be gone

    async def close(self) -> None:
        """Close everything, and wait for that even if the caller is cancelled."""
        if self.opened.done():
            self._leaving.set()
        else:
            self._task.cancel()
        try:
            await wait_until_done(self._task)
        finally:
            if not self._task.cancelled():
                self._task.result()
