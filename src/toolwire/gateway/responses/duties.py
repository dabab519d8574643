"""What a process does for all that use the store, beside answering: again and again, as long as it serves."""

import asyncio
from collections.abc import Awaitable, Callable

from toolwire.gateway.exchange import Shared
from toolwire.gateway.responses.background import Background
from toolwire.gateway.responses.take_over import TakeOver
from toolwire.memory.leases import Leases
from toolwire.memory.membership import Membership
from toolwire.memory.store import StoreFailed

PAUSE = 1.0
"""Seconds between two rounds."""
COUNT_PAUSE = 30.0
"""The same for counting what the store holds, which takes long if that is much."""


class Duties:
    """Runs that others want to end, runs that nobody has, and what the store lets go."""

    def __init__(
        self, shared: Shared, membership: Membership, background: Background, leases: Leases, take_over: TakeOver
    ) -> None:
        self._shared = shared
        self._store = shared.store
        self._membership = membership
        self._background = background
        self._leases = leases
        self._take_over = take_over
        self._tasks: list[asyncio.Task[None]] = []
        membership.on_lost += [background.lose_all, take_over.forget]

    async def start(self) -> None:
        await self._membership.start()
        rounds = (
            (self._listen, PAUSE),
            (self._take_over.look_unless_draining, PAUSE),
            (self._tidy, PAUSE),
            (self._count, COUNT_PAUSE),
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._again_and_again(*each)) for each in rounds]

    async def stop(self) -> None:
        """Stop, and leave what is left to others."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._membership.leave()

    async def _again_and_again(self, work: Callable[[], Awaitable[None]], pause: float) -> None:
        while True:
            try:
                await work()
            except StoreFailed:
                pass  # the store says so itself
            except Exception as error:  # noqa: BLE001 - the process goes on, and so must its duties
                self._shared.log.crashed("", error)
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        """Hear what others want of the runs here, and keep what could not be kept."""
        if self._background.count:
            for fence in await self._store.cancelled(await self._membership.id()):
                self._background.cancel(fence)
        await self._background.keep_rest()
        await self._background.doubtful.delete()
        await self._leases.give_back_rest()

    async def _tidy(self) -> None:
        await self._store.maintain(await self._membership.id())

    async def _count(self) -> None:
        self._shared.metrics.stored = await self._store.stats()
