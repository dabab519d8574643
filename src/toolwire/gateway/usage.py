"""Writes what each turn used to the store, soon after the turn has ended.

Turns that end together are written together. A row that cannot be written waits until the store works again; each turn
counts once, however often its row is sent.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import UNSET

from toolwire.core.events import TurnFailed, Usage
from toolwire.gateway.keys import Keys
from toolwire.memory.sql.store import Store
from toolwire.memory.sql.usage import HOUR
from toolwire.memory.store import StoreFailed, UsageRow
from toolwire.turns.observers import TurnObserver, TurnOutcome, TurnReport

DELAY = 0.05
"""Seconds that a row waits for others."""
RETRY_DELAY = 1.0
"""Seconds between two attempts while the store fails."""
MAX_BATCH = 500
"""Maximum rows of one write."""
MAX_WAITING = 50_000
"""Maximum rows that wait for the store; further ones are dropped, and counted in the metrics."""
LAST_WRITE_TIMEOUT = 5.0
"""Seconds for writing what is left when the process ends."""
MAX_TEXT = 256
MAX_TOKENS = 10**12
"""Numbers of servers beyond this are not believed, so that sums stay in range."""


class UsageRecorder(TurnObserver):
    """Records the turns of one process that asked a backend."""

    def __init__(
        self, store: Store, keys: Keys, count_dropped: Callable[[int], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._keys = keys
        self._count_dropped = count_dropped
        self._clock = clock
        self._waiting: list[UsageRow] = []
        self._writer: asyncio.Task[None] | None = None

    def end(self, report: TurnReport, outcome: TurnOutcome) -> None:
        """Record a turn. One that another process took over is recorded there."""
        if report.backend is UNSET or report.outcome == "lost":
            return
        if len(self._waiting) >= MAX_WAITING:
            self._count_dropped(1)
            return
        self._waiting.append(self._make_row(report, outcome))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_later())

    def _make_row(self, report: TurnReport, outcome: TurnOutcome) -> UsageRow:
        stats, now, key = outcome.stats, self._clock(), report.key or ""
        usage = stats.usage or Usage()
        return UsageRow(
            report.turn,
            span=0,
            at=now,
            hour=int(now // HOUR),
            key=key,
            team=self._keys.find_team(key),
            model=_clean(report.model or ""),
            backend=report.backend or "",
            dialect=report.dialect,
            outcome=report.outcome or _find_outcome(report, outcome),
            turns=1,
            input=_limit(usage.input),
            output=_limit(usage.output),
            cached=_limit(usage.cached),
            cache_write=_limit(usage.cache_write),
            reasoning=_limit(usage.reasoning),
            calls=stats.call_count,
            notes=sum(stats.counts.values()),
            duration=round(outcome.seconds * 1000),
        )

    async def _write_later(self) -> None:
        await asyncio.sleep(DELAY)
        while self._waiting:
            try:
                await self._write()
            except StoreFailed:  # reported by the store
                await asyncio.sleep(RETRY_DELAY)
        self._writer = None

    async def _write(self) -> None:
        batch = self._waiting[:MAX_BATCH]
        await self._store.put_usage(batch)
        del self._waiting[: len(batch)]

    async def close(self) -> None:
        """Write what is left, unless the store fails."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait((self._writer,))
        with suppress(StoreFailed, TimeoutError):
            async with asyncio.timeout(LAST_WRITE_TIMEOUT):
                while self._waiting:
                    await self._write()


def _find_outcome(report: TurnReport, outcome: TurnOutcome) -> str:
    """How a turn in the foreground ended."""
    if report.status == 499:
        return "cancelled"
    is_failed = outcome.failure is not None or isinstance(outcome.stats.ending, TurnFailed)
    return "failed" if is_failed else "completed"


def _clean(text: str) -> str:
    """A name that a client sent, as every engine can store it."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_TEXT])


def _limit(tokens: int) -> int:
    return max(0, min(tokens, MAX_TOKENS))
