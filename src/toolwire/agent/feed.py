"""Events on their way to whoever watches: bounded, so that a slow watcher slows the stream and not the memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from toolwire.agent.events import AgentEvent, TaskEnded, ToolOutput

BOUND = 1600
"""Events that may wait before the stream does."""


class Feed:
    """One task's events. The engine puts them in and waits for room; the watcher iterates until the task has ended."""

    def __init__(self) -> None:
        self._events: deque[AgentEvent] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._ended = False

    def put(self, event: AgentEvent) -> None:
        """Never waits. What running tools put out is left out when far too much of it waits: results have it too."""
        if isinstance(event, ToolOutput) and len(self._events) >= 2 * BOUND:
            return
        self._events.append(event)
        self._ended = self._ended or isinstance(event, TaskEnded)
        self._arrived.set()

    async def room(self) -> None:
        """Wait until the watcher has caught up."""
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
