"""One MCP server, whatever becomes of its connections, and its tools.

A call that meets a dead server says so in its result, and the next call starts the server again. No call is ever sent
twice, unless the server has refused it unread.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from toolwire.agent.call import ToolCall, ToolError, read_arguments
from toolwire.agent.mcp.life import CallFailed, Life, NotRunning, Offer, Owner, SessionGone
from toolwire.agent.mcp.settings import Server
from toolwire.agent.registry import Context, Result
from toolwire.agent.runtime import failure
from toolwire.core.events import CallKind

Say: TypeAlias = Callable[[str, str], None]
"""Takes the name of a server, and what there is to say about it."""
Connect: TypeAlias = Callable[[Server, Owner], Life]
Load: TypeAlias = Callable[[], Awaitable[Connect]]

LONGEST_PAUSE = 30.0


class McpTool:
    """A tool of an MCP server."""

    kind: CallKind = "function"
    format: msgspec.Raw | None = None

    def __init__(self, name: str, offer: Offer, remote: "Remote") -> None:
        self.name = name
        self.description = offer.description
        self.parameters: msgspec.Raw | None = offer.parameters
        self.parallel = remote.server.parallel
        self.writes = not (offer.reads_only and remote.server.trusted)
        self.tool = offer.name
        """What its server calls it."""
        self.offer = offer
        self.remote = remote

    @property
    def server(self) -> str:
        return self.remote.server.name

    async def run(self, call: ToolCall, context: Context) -> Result:
        if self.writes and not context.writable:
            raise ToolError(f"{self.name} may change something, and nothing may be changed now")
        arguments = read_arguments(call, dict[str, Any])
        return await self.remote.ask(lambda life: life.call(self.tool, arguments, context.emit))


class Remote:
    """A server that is connected when it is needed."""

    def __init__(self, server: Server, load: Load, name: Callable[[str, str], str], say: Say) -> None:
        self.server = server
        self.tools: tuple[McpTool, ...] = ()
        """Those that it listed last; they stay while it is not running."""
        self.instructions = ""
        self._load = load
        self._name = name
        self._say = say
        self._opening: asyncio.Task[Life] | None = None
        self._lives: set[Life] = set()
        self._failures = 0
        self._not_before = 0.0
        self._why = ""
        self._is_closed = False

    async def ask(self, question: Callable[[Life], Awaitable[Result]]) -> Result:
        """Ask the server something, and connect first if need be."""
        name = self.server.name
        try:
            result = await self._ask(question)
        except NotRunning as error:
            return failure(f"the MCP server {name} is not running: {error}")
        except CallFailed as error:
            return failure(f"the MCP server {name} has no result: {error}")
        self._failures = 0
        return result

    async def _ask(self, question: Callable[[Life], Awaitable[Result]]) -> Result:
        try:
            return await question(await self._connected())
        except SessionGone:
            return await question(await self._connected())

    # Its connections

    def start(self) -> None:
        """Begin to connect."""
        self._opening = asyncio.get_running_loop().create_task(self._open())
        self._opening.add_done_callback(self._note)

    async def settled(self) -> None:
        """Wait until it is connected, or cannot be."""
        if self._opening is not None:
            await asyncio.wait({self._opening})

    async def _connected(self) -> Life:
        if self._opening is None or _is_over(self._opening):
            self._check_pause()
            self.start()
        opening = self._opening
        assert opening is not None
        await asyncio.wait({opening})  # others may wait for it too
        if opening.cancelled():
            raise NotRunning("it was closed")
        return opening.result()

    def _check_pause(self) -> None:
        if self._is_closed:
            raise NotRunning("it was closed")
        seconds = self._not_before - time.monotonic()
        if seconds > 0:
            raise NotRunning(f"{self._why}\nIt can be started again in {seconds:.1f} seconds.")

    async def _open(self) -> Life:
        try:
            connect = await self._load()
        except ImportError as error:
            raise NotRunning(f"the package mcp cannot be loaded: {error}") from None
        life = connect(self.server, self)
        self._lives.add(life)
        await life.opened()
        return life

    def _note(self, opening: "asyncio.Task[Life]") -> None:
        error = None if opening.cancelled() else opening.exception()
        if error is not None:
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        """Count a failure: the first costs nothing, each further one without a result between a longer pause."""
        self._failures += 1
        pause = min(2.0 ** (self._failures - 2), LONGEST_PAUSE) if self._failures > 1 else 0.0
        self._not_before = time.monotonic() + pause
        self._why = why
        if not self._is_closed:
            self.say(f"is not running: {why}")

    async def close(self) -> None:
        """End its connections, and leave nothing of them."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        lives = tuple(self._lives)
        for life in lives:
            life.stop("it was closed")
        for life in lives:
            await life.closed()

    # What its connections tell

    def offer(self, offers: tuple[Offer, ...]) -> None:
        """Take the tools that the server has now. One that is the same stays the same."""
        known = {each.tool: each for each in self.tools}
        self.tools = tuple(
            old if (old := known.get(name)) is not None and old.offer == offer else self._tool(offer)
            for name, offer in {offer.name: offer for offer in offers}.items()
            if self.server.offers(name)
        )
        there = {offer.name for offer in offers}
        missing = [name for name in self.server.allow or () if name not in there]
        if missing:
            self.say(f"has no tool named {', '.join(missing)}")

    def _tool(self, offer: Offer) -> McpTool:
        return McpTool(self._name(self.server.name, offer.name), offer, self)

    def say(self, message: str) -> None:
        self._say(self.server.name, message)

    def lose(self, life: Life) -> None:
        self._lives.discard(life)
        if life.broke:
            self._fail(life.why)


def _is_over(opening: "asyncio.Task[Life]") -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().is_over
