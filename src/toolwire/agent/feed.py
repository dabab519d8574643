"""A bounded queue of events: a slow reader slows the stream instead of filling memory."""

import asyncio
from collections.abc import AsyncIterator

from toolwire.agent.events import AgentEvent, TaskEnded, ToolOutput

BOUND = 1600
"""Events that may wait before the stream has to."""


class Feed:
    """The events of one task: the agent puts them in, the reader iterates until the task has ended."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self._taken = asyncio.Event()

    def put(self, event: AgentEvent) -> None:
        """Add an event without waiting; output of running tools is dropped when far too many events wait."""
        if not isinstance(event, ToolOutput) or self._events.qsize() < 2 * BOUND:
            self._events.put_nowait(event)

    async def room(self) -> None:
        """Wait until there is room for more events."""
        while self._events.qsize() >= BOUND:
            self._taken.clear()
            await self._taken.wait()

    async def __aiter__(self) -> AsyncIterator[AgentEvent]:
        is_over = False
        while not is_over:
            event = await self._events.get()
            self._taken.set()
            is_over = isinstance(event, TaskEnded)
            yield event
