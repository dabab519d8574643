"""A deadline for waits that follow each other quickly.

`asyncio.timeout` makes and cancels a timer for every wait. Here one timer serves them all: it is left where it is while
deadlines only move away, and set anew when it rings too early.
"""

import asyncio


class Alarm:
    """`with alarm.at(when): await …` raises `TimeoutError` when the wait lasts longer. One task at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self._when = 0.0
        self._task: asyncio.Task[object] | None = None
        self._waiting = False
        self._rang = False

    def at(self, when: float) -> "Alarm":
        self._when = when
        return self

    def __enter__(self) -> None:
        self._waiting = True
        self._rang = False
        if self._when < self._rings_at or (self._timer is None and self._when != float("inf")):
            self._set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._waiting = False
        if self._rang and kind is asyncio.CancelledError and self._task is not None and self._task.uncancel() == 0:
            raise TimeoutError

    def close(self) -> None:
        """No more waits: drop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = None

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._task = asyncio.current_task(self._loop) or self._task
        self._rings_at = self._when
        self._timer = self._loop.call_at(self._when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._rings_at = 0.0
        if not self._waiting:
            return
        if self._loop.time() < self._when:
            self._set()
        elif self._task is not None:
            self._rang = True
            self._task.cancel()
