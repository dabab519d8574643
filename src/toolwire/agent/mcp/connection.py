"""One connection to an MCP server: a task that connects, lists the tools, waits, and closes.

The `mcp` package keeps its connections in task groups, so the task that enters one must leave it. It leaves when an
event is set or its own cancel scope is cancelled, which does not interrupt the clean-up of the package.
"""

import asyncio
import logging
from typing import Any, cast

import anyio
import msgspec
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolwire import __version__
from toolwire.agent.mcp.content import as_result
from toolwire.agent.mcp.servers import CallFailed, ListedTool, NotRunning, Remote, SessionGone
from toolwire.agent.mcp.settings import Server
from toolwire.agent.mcp.transports import Health, open_transport
from toolwire.core.request import TextPart
from toolwire.turns.tools.registry import Emit, Result

CLOSE_TIMEOUT = 3.0
"""Seconds that closing an open connection may take."""
CANCEL_TIMEOUT = 1.0
"""Seconds that cancelling calls at the server may take."""
LISTING_INTERVAL = 0.5
"""Seconds between two listings, in case a server reports changes all the time."""
RESUBSCRIBE_DELAY = 5.0
"""Seconds before a lost subscription is renewed."""
MAX_PAGES = 200
"""Maximum pages of a list, in case it never ends."""

_CLOSED = ("Connection closed", "SSE stream ended")
"""Messages for a closed connection; servers use the same error code for other errors too."""

for _name in ("mcp", "client"):  # the package logs under these names, including message bodies
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class Connection:
    """A connection that opens on creation and cannot be reopened."""

    def __init__(self, server: Server, owner: Remote) -> None:
        self.why = ""
        """Why it has ended; empty before that."""
        self._server = server
        self._owner = owner
        self._health = Health(self._leave_soon, self.stop)
        self._client: Client | None = None
        self._settled = asyncio.Event()
        self._leaving = asyncio.Event()
        self._stale = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._reported_noise = False
        self._scope = anyio.CancelScope()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"mcp {server.name}")
        self._task.add_done_callback(self._end)

    # Opening and closing

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is ending."""
        return bool(self.why) or self._leaving.is_set()

    async def wait_until_open(self) -> None:
        """Wait until it is open. Raises `NotRunning`; after the timeout it does not wait for the process to end."""
        try:
            async with asyncio.timeout(self._server.start_timeout):
                await self._settled.wait()
        except TimeoutError:
            self.stop(self._with_details(f"it did not start within {self._server.start_timeout:g} seconds"))
        if self.why:
            raise NotRunning(self.why)

    def stop(self, why: str) -> None:
        """Begin to close it."""
        self.why = self.why or why
        if self._client is None:
            self._scope.cancel()
        else:
            self._leave_soon()

    async def wait_until_closed(self) -> None:
        """Wait until it is closed."""
        await asyncio.wait({self._task, *self._calls})

    async def _run(self) -> None:
        with self._scope:
            if self._server.url:
                await self._connect("auto")
                return
            try:
                # Servers built with rmcp before 3.0 exit on the first message of newer clients.
                await self._connect("legacy")
            except (MCPError, RuntimeError, ExceptionGroup) as error:
                if not needs_newer_protocol(error):
                    raise
                await self._connect("auto")

    async def _connect(self, mode: str) -> None:
        """Open the connection, and keep it open until `_leaving` is set."""
        about = Implementation(name="toolwire", version=__version__)
        streams = open_transport(self._server, self._health)
        async with Client(
            streams, mode=mode, client_info=about, message_handler=self._on_message, cache=None
        ) as client:
            self._owner.update_tools(await _list_tools(client))
            self._owner.instructions = client.instructions or ""
            self._client = client
            self._settled.set()
            async with anyio.create_task_group() as group:
                group.start_soon(self._refresh_tools, client)
                tools = client.server_capabilities.tools
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and tools.list_changed:
                    group.start_soon(self._subscribe, client)
                await self._leaving.wait()
                for call in self._calls:
                    call.cancel()
                if self._calls:
                    await asyncio.wait(self._calls, timeout=CANCEL_TIMEOUT)
                group.cancel_scope.cancel()

    def _leave_soon(self) -> None:
        """Begin to close it if it is open. While it opens, the end of the other side raises an error anyway."""
        if self._client is not None and not self._leaving.is_set():
            self._leaving.set()
            self._scope.deadline = asyncio.get_running_loop().time() + CLOSE_TIMEOUT

    def _end(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        was_stopped = bool(self.why)
        self.why = self.why or self._with_details("it ended" if error is None else describe_error(error, self._server))
        self._settled.set()
        self._owner.lose(self, broke=self._client is not None and not was_stopped)

    def _with_details(self, why: str) -> str:
        """A reason, with the HTTP status and the last lines of standard error, without credentials."""
        refusal, last = self._health.refusal, self._health.tail.text
        if refusal and self._client is None:
            why = f"{why} ({refusal})"
        return self._server.blanks.clean_text(f"{why}\nIt wrote:\n{last}" if last else why)

    # Notifications

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._stale.set()
        elif isinstance(message, Exception) and not self._reported_noise:
            self._reported_noise = True
            self._owner.say("writes text that is not a message to its standard output")

    async def _refresh_tools(self, client: Client) -> None:
        """List the tools whenever they have changed."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                with anyio.fail_after(self._server.start_timeout):
                    self._owner.update_tools(await _list_tools(client))
            except (MCPError, RuntimeError, TimeoutError, ValidationError) as error:
                if not self.is_over:
                    self._owner.say(f"has new tools, but cannot list them: {describe_error(error, self._server)}")
            await anyio.sleep(LISTING_INTERVAL)

    async def _subscribe(self, client: Client) -> None:
        """Keep a subscription, which newer servers require to report changes; `_on_message` receives them."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        pass
            except SubscriptionLost:
                pass
            except MCPError:
                return
            await anyio.sleep(RESUBSCRIBE_DELAY)
            self._stale.set()  # changes in the meantime were not reported

    # Calls

    async def call(self, tool: str, arguments: dict[str, Any], emit: Emit) -> Result:
        """Call a tool, and emit its progress; cancellation is passed on to the server.

        Raises `NotRunning`, `SessionGone` or `CallFailed`. Credentials of the server are blanked in all texts.
        """
        clean = self._server.blanks.clean_text

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            if message:
                emit(clean(f"{message}\n"))

        if self._client is None or self.is_over:
            raise NotRunning(self.why or "it ended")
        calling = self._client.call_tool(tool, arguments, progress_callback=progress)
        task = asyncio.get_running_loop().create_task(calling)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved if the caller is gone
        try:
            await asyncio.wait({task}, timeout=self._server.timeout)
        finally:
            is_late = not task.done()
            task.cancel()
        if is_late:
            raise CallFailed(f"{tool} did not answer within {self._server.timeout:g} seconds and was cancelled")
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            result = as_result(task.result())
            parts = [TextPart(clean(part.text)) if isinstance(part, TextPart) else part for part in result.parts]
            return Result(tuple(parts), result.failed)
        if self._health.session_is_gone:
            self.stop("its session is gone")
            raise SessionGone(self.why)
        if self.is_over or is_connection_closed(error):
            self._leave_soon()
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)
            raise NotRunning(self.why or "it ended")
        assert error is not None
        raise CallFailed(clean(describe_error(error, self._server)))


async def _list_tools(client: Client) -> tuple[ListedTool, ...]:
    """The tools of all pages. Raises `RuntimeError` if there are too many pages."""
    if client.server_capabilities.tools is None:
        return ()
    found: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            parameters = msgspec.Raw(msgspec.json.encode(tool.input_schema))
            reads_only = tool.annotations is not None and bool(tool.annotations.read_only_hint)
            found.append(ListedTool(tool.name, tool.description or tool.title or "", parameters, reads_only))
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found)
    raise RuntimeError("its list has no end")


# Errors of the package


def describe_error(error: BaseException, server: Server) -> str:
    """An error as a message for the user or the model."""
    match _first(error):
        case MCPError() as error:
            return "it ended" if is_connection_closed(error) else error.message
        case ValidationError() as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"its answer is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        case FileNotFoundError() as error if server.command:
            return f"there is no {str(error.filename or server.command)!r}"
        case OSError() as error:
            return error.strerror or str(error)
        case error:
            return str(error) or type(error).__name__


def is_connection_closed(error: BaseException | None) -> bool:
    """Whether the connection was closed before the answer."""
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message.startswith(_CLOSED)


def needs_newer_protocol(error: BaseException) -> bool:
    """Whether a server refuses the handshake of older protocol versions, but may support newer ones."""
    match _first(error):
        case MCPError() as error:
            return error.code in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND)
        case error:
            return isinstance(error, RuntimeError) and str(error).startswith("Unsupported protocol version")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
