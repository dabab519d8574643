"""Periodic work of a process: its heartbeat, cancellations, orphaned runs, expiry."""

import asyncio
from collections.abc import Awaitable, Callable

from toolwire.gateway.responses.recovery import Recovery
from toolwire.gateway.responses.run_task import BackgroundRuns
from toolwire.gateway.shared import Shared
from toolwire.memory.leases import Leases
from toolwire.memory.membership import Membership
from toolwire.memory.store import StoreFailed

INTERVAL = 1.0
"""Seconds between two rounds."""
STATS_INTERVAL = 30.0
"""Seconds between two counts of the store's contents, which are slow if there is much."""


class Maintenance:
    """Tasks that run as long as the process serves."""

    def __init__(
        self, shared: Shared, membership: Membership, runs: BackgroundRuns, leases: Leases, recovery: Recovery
    ) -> None:
        self._shared = shared
        self._store = shared.store
        self._membership = membership
        self._runs = runs
        self._leases = leases
        self._recovery = recovery
        self._tasks: list[asyncio.Task[None]] = []
        membership.on_lost += [runs.lose_all, recovery.forget_claims]

    async def start(self) -> None:
        """Join the other processes, and start the tasks."""
        await self._membership.start()
        jobs = (
            (self._update_runs, INTERVAL),
            (self._recovery.recover_unless_draining, INTERVAL),
            (self._expire, INTERVAL),
            (self._count, STATS_INTERVAL),
        )
        self._tasks = [asyncio.get_running_loop().create_task(self._repeat(*job)) for job in jobs]

    async def stop(self) -> None:
        """Stop the tasks, and leave the unfinished runs to other processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._membership.leave()

    async def _repeat(self, job: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            try:
                await job()
            except StoreFailed:
                pass  # reported by the store
            except Exception as error:  # noqa: BLE001 - the process goes on, and so must its maintenance
                self._shared.log.crash("", error)
            await asyncio.sleep(seconds)

    async def _update_runs(self) -> None:
        """Apply cancellations from other processes, and retry what the store refused."""
        if self._runs.count:
            for fence in await self._store.cancelled(await self._membership.id()):
                self._runs.cancel(fence)
        await self._runs.retry_unstored()
        await self._recovery.unconfirmed.delete()
        await self._leases.drop_rest()

    async def _expire(self) -> None:
        await self._store.maintain(await self._membership.id())

    async def _count(self) -> None:
        self._shared.process.metrics.stored = await self._store.stats()
