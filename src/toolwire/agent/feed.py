"""A bounded queue of events: a slow reader slows the stream instead of filling memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from toolwire.agent.events import AgentEvent, TaskEnded, ToolOutput

BOUND = 1600
"""Events that may wait before the stream has to."""


class Feed:
    """The events of one task: the agent puts them in, the reader iterates until the task has ended."""

    def __init__(self) -> None:
        self._events: deque[AgentEvent] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._ended = False

    def put(self, event: AgentEvent) -> None:
        """Add an event without waiting; output of running tools is dropped when far too many events wait."""
        if isinstance(event, ToolOutput) and len(self._events) >= 2 * BOUND:
            return
        self._events.append(event)
        self._ended = self._ended or isinstance(event, TaskEnded)
        self._arrived.set()

    async def room(self) -> None:
        """Wait until there is room for more events."""
        while len(self._events) >= BOUND:
            self._taken.clear()
            await self._taken.wait()

    async def __aiter__(self) -> AsyncIterator[AgentEvent]:
        while True:
            while self._events:
                event = self._events.popleft()
                self._taken.set()
                yield event
            if self._ended:
                return
            self._arrived.clear()
            await self._arrived.wait()
