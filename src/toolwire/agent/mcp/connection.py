"""One life of one server: a task that connects, lists the tools, stays, and closes again.

The `mcp` package keeps its connections in task groups, so whoever enters one must leave it. That is this task, and
nobody else: it is asked to leave by an event, or by its own cancel scope, which spares the package's clean-up.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio
import msgspec
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolwire import __version__
from toolwire.agent.mcp.content import as_parts, as_result
from toolwire.agent.mcp.life import CallFailed, NotRunning, Owner, SessionGone
from toolwire.agent.mcp.listing import offers, resources
from toolwire.agent.mcp.reasons import is_cut, reason, wants_newer
from toolwire.agent.mcp.settings import Server
from toolwire.agent.mcp.transports import Health, transport
from toolwire.agent.registry import Emit, Result
from toolwire.core.request import TextPart

FAREWELL = 3.0
"""Seconds that an open connection has to be closed politely."""
CANCELLING = 1.0
"""Seconds that calls have to be cancelled at the server before it is left."""
LISTING_AGAIN = 0.5
"""Seconds between two listings: a server must not keep us at it."""
LISTENING_AGAIN = 5.0
"""Seconds before a lost subscription is asked for again."""

T = TypeVar("T")

for _name in ("mcp", "client"):  # the names under which the package logs, bodies and all
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class Connection:
    """A connection that opens when it is made. Over is over: the next one is another."""

    def __init__(self, server: Server, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        self.why = ""
        """Why it is over, once it is."""
        self._server = server
        self._owner = owner
        self._health = Health(self._hang_up)
        self._client: Client | None = None
        self._settled = asyncio.Event()
        self._leaving = asyncio.Event()
        self._stale = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._was_stopped = False
        self._has_babbled = False
        self._scope = anyio.CancelScope()
        self._timer = loop.call_later(server.start_timeout, self._give_up)
        self._task = loop.create_task(self._live(), name=f"mcp {server.name}")
        self._task.add_done_callback(self._end)

    # A connection's life

    @property
    def is_over(self) -> bool:
        return bool(self.why) or self._leaving.is_set()

    @property
    def broke(self) -> bool:
        """It was open, and ended without being asked to."""
        return self._client is not None and not self._was_stopped

    async def opened(self) -> None:
        """Wait until it is open. Raises `NotRunning`."""
        await self._settled.wait()
        if self.why:
            raise NotRunning(self.why)

    def stop(self, why: str) -> None:
        """Begin to close it."""
        self.why = self.why or why
        self._was_stopped = True
        if self._client is None:
            self._scope.cancel()
        else:
            self._leave_soon()

    async def closed(self) -> None:
        """Wait until nothing of it is left."""
        await asyncio.wait({self._task, *self._calls})

    async def _live(self) -> None:
        with self._scope:
            if self._server.url:
                await self._meet("auto")
                return
            try:
                # Servers made with rmcp before 3.0 end when the first thing they hear is the question of newer clients.
                await self._meet("legacy")
            except (MCPError, RuntimeError, ExceptionGroup) as error:
                if not wants_newer(error):
                    raise
                await self._meet("auto")

    async def _meet(self, mode: str) -> None:
        about = Implementation(name="toolwire", version=__version__)
        way = transport(self._server, self._health)
        async with Client(way, mode=mode, client_info=about, message_handler=self._hear, cache=None) as client:
            self._owner.offer(await offers(client))
            self._owner.instructions = client.instructions or ""
            self._timer.cancel()
            self._client = client
            self._settled.set()
            await self._stay(client)

    async def _stay(self, client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._list_again, client)
            if _tells_changes(client):
                group.start_soon(self._listen, client)
            await self._leaving.wait()
            await self._drop_calls()
            group.cancel_scope.cancel()

    async def _drop_calls(self) -> None:
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=CANCELLING)

    def _leave_soon(self) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(FAREWELL, self._scope.cancel)

    def _hang_up(self) -> None:
        """The other side is gone. While it is being opened, that is an error already."""
        if self._client is not None:
            self._leave_soon()

    def _give_up(self) -> None:
        """The time to start is over, and whoever waits is told before the process is gone."""
        self.why = self._told(f"it did not start within {self._server.start_timeout:g} seconds")
        self._settled.set()
        self._scope.cancel()

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._timer.cancel()
        error = None if task.cancelled() else task.exception()
        self.why = self.why or self._told("it ended" if error is None else reason(error, self._server))
        self._settled.set()
        self._owner.lose(self)

    def _told(self, why: str) -> str:
        """A reason, with what else is known about it."""
        refusal, last = self._health.refusal, self._health.tail.text
        if refusal and self._client is None:
            why = f"{why} ({refusal})"
        return f"{why}\nIt wrote:\n{last}" if last else why

    # What it says by itself

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._stale.set()
        elif isinstance(message, Exception) and not self._has_babbled:
            self._has_babbled = True
            self._owner.say("writes to its standard output what is no message")

    async def _list_again(self, client: Client) -> None:
        """List the tools whenever they have changed; changes in the meantime are one."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                with anyio.fail_after(self._server.start_timeout):
                    self._owner.offer(await offers(client))
            except (MCPError, RuntimeError, TimeoutError, ValidationError) as error:
                if not self.is_over:
                    self._owner.say(f"has new tools, but does not list them: {reason(error, self._server)}")
            await anyio.sleep(LISTING_AGAIN)

    async def _listen(self, client: Client) -> None:
        """Keep a subscription, without which newer servers do not tell of changes. `_hear` gets them."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        pass
            except SubscriptionLost:
                pass
            except MCPError:
                return
            await anyio.sleep(LISTENING_AGAIN)
            self._stale.set()  # nobody told what has changed in the meantime

    # What it is asked

    async def call(self, tool: str, arguments: dict[str, Any], emit: Emit) -> Result:
        """Call a tool. Raises `NotRunning`, `SessionGone` or `CallFailed`."""

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            if message:
                emit(f"{message}\n")

        client = self._open_client()
        return as_result(await self._ask(client.call_tool(tool, arguments, progress_callback=progress), tool))

    async def resources(self) -> Result:
        """The resources as JSON."""
        client = self._open_client()
        found = await self._ask(resources(client), "resources/list")
        return Result((TextPart(msgspec.json.encode(found).decode()),))

    async def read(self, uri: str) -> Result:
        client = self._open_client()
        return Result(as_parts((await self._ask(client.read_resource(uri), "resources/read")).contents))

    def _open_client(self) -> Client:
        if self._client is None or self.is_over:
            raise NotRunning(self.why or "it ended")
        return self._client

    async def _ask(self, asking: Coroutine[Any, Any, T], what: str) -> T:
        """Ask within the time that a call has. Whoever stops waiting cancels the request, at the server too."""
        task = asyncio.get_running_loop().create_task(asking)
        self._calls.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait({task}, timeout=self._server.timeout)
        finally:
            is_late = not task.done()
            task.cancel()
        if is_late:
            raise CallFailed(f"{what} did not answer within {self._server.timeout:g} seconds and was cancelled")
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return task.result()
        if self._health.session_is_gone:
            self.stop("its session is gone")
            raise SessionGone(self.why)
        if self.is_over or is_cut(error):
            self._leave_soon()
            await asyncio.wait({self._task}, timeout=FAREWELL)
            raise NotRunning(self.why or "it ended")
        assert error is not None
        raise CallFailed(reason(error, self._server))

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may be gone


def _tells_changes(client: Client) -> bool:
    tools = client.server_capabilities.tools
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and bool(tools.list_changed)
