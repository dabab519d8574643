"""Commits the new events of all background runs of this process together, again and again.

Each tick is one statement, however many runs there are, and a run that is over before the next one needs none. What the
store did not confirm is sent again as it was, before anything that comes after it; only what is confirmed is shown.
"""

import asyncio
import time
from collections.abc import Callable

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.responses.event_log import RunLog
from toolwire.memory.store import Append, Fence, Store, StoreFailed

TICK = 0.05
"""Seconds between two flushes, and so the longest that an event waits for one."""
AT_ONCE = 8 * 1024 * 1024
"""Bytes of one flush; what is beyond them is sent right afterwards."""
UNCOMMITTED = 1024 * 1024
"""Bytes of one run that may wait to be committed. The backend is not read further until there are fewer."""
PATIENCE = 60.0
"""Seconds for which a run waits for a store that fails, before it gives up."""
LONGEST_PAUSE = 1.0
"""Seconds between two attempts while the store fails."""


class Flusher:
    """One task for all runs. `lost` and `cancelled` are called with the fences of runs that must stop."""

    def __init__(
        self, store: Store, metrics: Metrics, lost: Callable[[Fence], None], cancelled: Callable[[Fence], None]
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._lost = lost
        self._cancelled = cancelled
        self._logs: dict[Fence, RunLog] = {}  # that have something to send
        self._task: asyncio.Task[None] | None = None
        self._failed: StoreFailed | None = None
        self._tried = asyncio.Event()

    def flush(self, log: RunLog) -> None:
        """Have the log's new events committed with the next tick."""
        self._logs[log.fence] = log
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def room(self, log: RunLog) -> None:
        """Wait while too much of a run is not committed."""
        until = time.monotonic() + PATIENCE
        while log.uncommitted > UNCOMMITTED and not log.is_lost:
            await self._next_attempt(until)

    async def settle(self, log: RunLog, until: float) -> None:
        """Send nothing more of a run, and wait until it is known what became of all that was sent."""
        log.close()
        while not log.is_settled and not log.is_lost:
            await self._next_attempt(until)

    async def _next_attempt(self, until: float) -> None:
        """Wait for one flush. Raises what the store says when that takes too long."""
        tried = self._tried
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await tried.wait()
        except TimeoutError:
            raise self._failed or StoreFailed("busy", "the events of a run could not be committed in time") from None

    async def _run(self) -> None:
        pause = TICK
        try:
            while self._logs:
                await asyncio.sleep(pause)
                logs = self._due()
                if logs:
                    pause = min(2 * pause, LONGEST_PAUSE) if await self._fails(logs) else TICK
        finally:
            self._task = None

    def _due(self) -> list[RunLog]:
        """The logs whose events are sent now. Those that have none leave the table."""
        logs: list[RunLog] = []
        size = 0
        for fence, log in tuple(self._logs.items()):
            chunk = None if log.is_lost or size > AT_ONCE else log.to_send()
            if chunk is not None:
                logs.append(log)
                size += len(chunk.frames)
            elif size <= AT_ONCE:
                del self._logs[fence]
        return logs

    async def _fails(self, logs: list[RunLog]) -> bool:
        """Send what is due, and show what is committed of it."""
        sent = [(log, chunk) for log in logs if (chunk := log.to_send()) is not None]
        try:
            with self._metrics.using_store("append"):
                done = await self._store.append([Append(log.owner, log.fence, chunk) for log, chunk in sent])
        except StoreFailed as error:
            self._failed = error
            self._tell()
            return True
        now = time.monotonic()
        self._failed = None
        for log, _ in sent:
            if log.is_lost:
                continue
            if log.fence in done.lost:
                log.lose()
                self._lost(log.fence)
                continue
            self._metrics.flushed(now - log.sent_since)
            log.take_commit()
            if log.fence in done.cancelled:
                self._cancelled(log.fence)
        self._tell()
        return False

    def _tell(self) -> None:
        self._tried.set()
        self._tried = asyncio.Event()
