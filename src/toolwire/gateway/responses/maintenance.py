"""Periodic work of a process: its heartbeat, cancellations, orphaned runs, expiry."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from toolwire.config.settings import turn_bounds_of
from toolwire.gateway.responses.operations import State
from toolwire.memory.clock import DAY
from toolwire.memory.store import StoreFailed

INTERVAL = 1.0
"""Seconds between two rounds."""
STATS_INTERVAL = 30.0
"""Seconds between two counts of the store's contents, which are slow in a large store."""

ROLL_UP_INTERVAL = 60.0
"""Seconds between two sums of old usage; several processes may do it at once."""


class Maintenance:
    """Tasks that run as long as the process serves."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tasks: list[asyncio.Task[None]] = []
        state.membership.on_lost += [state.runs.lose_all, state.recovery.forget_claims]

    async def start(self) -> None:
        """Join the store, and start the tasks."""
        state, store = self._state, self._state.shared.store

        async def update_runs() -> None:
            """Apply cancellations from other processes, and retry what the store refused."""
            if state.runs.count:
                for fence in await store.list_cancelled(await state.membership.id()):
                    state.runs.cancel(fence)
            await state.runs.retry_unstored()
            await state.recovery.unconfirmed.delete()
            await state.leases.drop_rest()

        async def expire() -> None:
            await store.maintain(await state.membership.id(), turn_bounds_of(state.shared.settings))

        async def count() -> None:
            state.shared.process.metrics.stored = await store.stats()

        async def roll_up() -> None:
            before = time.time() - state.shared.settings.usage.days * DAY
            while await store.roll_up_usage(before):
                pass

        await state.membership.start()
        jobs = (
            (update_runs, INTERVAL),
            (state.recovery.recover_unless_draining, INTERVAL),
            (expire, INTERVAL),
            (count, STATS_INTERVAL),
            *(((roll_up, ROLL_UP_INTERVAL),) if state.shared.settings.usage.enabled else ()),
        )
        self._tasks = [asyncio.get_running_loop().create_task(self._repeat(*job)) for job in jobs]

    async def stop(self) -> None:
        """Stop the tasks, and leave the unfinished runs to other processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._state.membership.leave()

    async def _repeat(self, job: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            try:
                await job()
            except StoreFailed:
                pass  # reported by the store
            except Exception as error:  # noqa: BLE001 - the process goes on, and so must its maintenance
                self._state.shared.log.crash("", error)
            await asyncio.sleep(seconds)
