"""How much of the processor's time goes into preparing turns for the console."""

import asyncio
import time
from collections.abc import Callable

from toolwire.core.bounds import Steps

SHARE = 0.005
"""How much of the time that turns take of the processor may go into preparing them, under load."""
NAP = 0.05
"""Seconds after which it is looked again whether there is time."""
AHEAD = 0.003
"""Seconds of work that may be done at once after a rest."""


class Pace:
    """Work that takes little of the time: next to nothing of a busy process, and more of one that has nothing to do.

    `share` gives the part of wall time that it may take now, besides a small part of this process's CPU time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, share: Callable[[], float]) -> None:
        self._loop = loop
        self._share = share
        self._credit = AHEAD
        self._since = loop.time()
        self._used = time.process_time()

    async def rest(self, is_hurried: Callable[[], bool]) -> None:
        """Wait until there is time for another step."""
        await asyncio.sleep(0)
        self._earn()
        while self._credit <= 0 and not is_hurried():
            await asyncio.sleep(NAP)
            self._earn()

    def _earn(self) -> None:
        now, used = self._loop.time(), time.process_time()
        earned = max((now - self._since) * self._share(), (used - self._used) * SHARE)
        self._credit = min(AHEAD, self._credit + earned)
        self._since, self._used = now, used

    def work(self, steps: Steps[bytes]) -> bytes | None:
        """Do steps for about a millisecond; the result, once there is one."""
        began = time.thread_time()
        try:
            while time.thread_time() - began < 0.001:
                next(steps)
        except StopIteration as end:
            return end.value
        finally:
            self._credit -= time.thread_time() - began
        return None
