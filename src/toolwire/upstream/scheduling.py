"""Deadlines for many short waits, and yielding to other tasks during long work.

`asyncio.timeout` creates and cancels a timer for every wait. Here one timer checks all deadlines 20 times a second.
"""

import asyncio
from typing import Protocol

PERIOD = 0.05
"""Seconds between two checks of all deadlines."""
YIELD_ITERATIONS = 3
"""Iterations of the event loop that a yield lasts: data arrives, its task is woken, and the task runs."""
STEP = 0.005
"""Seconds of work on a reply after which other tasks run. `perf_counter` measures them, because uvloop's clock
stands still during an iteration."""


class Tickable(Protocol):
    """A member of a `Ticker`."""

    def tick(self, now: float) -> None:
        """Called periodically with the time of the event loop."""
        ...


class Ticker:
    """Calls `tick` on all members periodically."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._members: set[Tickable] = set()
        self._running = False

    def join(self, member: Tickable) -> None:
        """Add a member."""
        self._members.add(member)
        if not self._running:
            self._running = True
            self.loop.call_later(PERIOD, self._tick)

    def leave(self, member: Tickable) -> None:
        """Remove a member."""
        self._members.discard(member)

    def _tick(self) -> None:
        now = self.loop.time()
        for member in tuple(self._members):
            member.tick(now)
        self._running = bool(self._members)
        if self._running:
            self.loop.call_later(PERIOD, self._tick)


class Alarm:
    """`with alarm.at(when): await …` raises `TimeoutError` when the wait lasts longer.

    Close it after the last wait.
    """

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._task: asyncio.Task[object] | None = None
        self._when = 0.0
        self._waiting = False
        self._expired = False
        ticker.join(self)

    def at(self, when: float) -> "Alarm":
        """Set the deadline."""
        self._when = when
        return self

    def __enter__(self) -> None:
        self._task = asyncio.current_task()  # a stream may be read by one task after another
        self._waiting = True
        self._expired = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._waiting = False
        if self._expired and kind is asyncio.CancelledError and self._task is not None and self._task.uncancel() == 0:
            raise TimeoutError

    def tick(self, now: float) -> None:
        """Interrupt the wait if its deadline has passed."""
        if self._waiting and not self._expired and now >= self._when and self._task is not None:
            self._expired = True
            self._task.cancel()

    def close(self) -> None:
        """Stop checking deadlines."""
        self._ticker.leave(self)


async def give_way() -> None:
    """Let all other ready tasks run."""
    for _ in range(YIELD_ITERATIONS):
        await asyncio.sleep(0)
