"""Deadlines for many short waits.

`asyncio.timeout` makes and cancels a timer for every wait. Here one timer ticks for all of them, as long as there are
any: whoever waits is looked at twenty times a second, which is as exact as these deadlines need to be.
"""

import asyncio
from typing import Protocol

PERIOD = 0.05


class Ticked(Protocol):
    def tick(self, now: float) -> None: ...


class Ticker:
    """Calls `tick` on everybody who joined, until they leave."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._members: set[Ticked] = set()
        self._running = False

    def join(self, member: Ticked) -> None:
        self._members.add(member)
        if not self._running:
            self._running = True
            self._loop.call_later(PERIOD, self._tick)

    def leave(self, member: Ticked) -> None:
        self._members.discard(member)

    def _tick(self) -> None:
        now = self._loop.time()
        for member in tuple(self._members):
            member.tick(now)
        self._running = bool(self._members)
        if self._running:
            self._loop.call_later(PERIOD, self._tick)


class Alarm:
    """`with alarm.at(when): await …` raises `TimeoutError` when the wait lasts longer.

    It belongs to one task, and is closed when that has nothing more to wait for.
    """

    def __init__(self, ticker: Ticker, task: "asyncio.Task[object]") -> None:
        self._ticker = ticker
        self._task = task
        self._when = 0.0
        self._waiting = False
        self._rang = False
        ticker.join(self)

    def at(self, when: float) -> "Alarm":
        self._when = when
        return self

    def __enter__(self) -> None:
        self._waiting = True
        self._rang = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._waiting = False
        if self._rang and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise TimeoutError

    def tick(self, now: float) -> None:
        if self._waiting and not self._rang and now >= self._when:
            self._rang = True
            self._task.cancel()

    def close(self) -> None:
        self._ticker.leave(self)
