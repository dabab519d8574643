"""The clock that measures ages in a store. It never goes back, and follows jumps of the wall clock slowly."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

DAY = 86_400.0


def read_steady_clock() -> float:
    """Seconds since the machine started, including time asleep if the system counts it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


def read_boot_id() -> str:
    """The id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class StoreClock:
    """Follows the wall clock from the latest time that the store has seen.

    If the wall clock is ahead, because it jumped or because nothing ran for a while, this clock catches up at a rate
    that would expire a whole store in a day, or in `max_age` if that is less. So little expires if a wrong clock is
    corrected soon. If the wall clock is behind, this clock runs at its normal rate.
    """

    def __init__(self, max_age: float, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._rate = max_age / min(DAY, max_age) if max_age else 1.0
        self._now: float | None = None
        self._seen = 0.0
        self._lock = threading.Lock()

    def start(self, latest: float | None) -> None:
        """Start from the latest time in the store; None if the store is empty. Only the first call has an effect."""
        with self._lock:
            if self._now is None:
                self._now = latest if latest is not None else self._wall()
                self._seen = self._steady()

    def __call__(self) -> float:
        with self._lock:
            if self._now is None:
                return self._wall()
            steady = self._steady()
            passed, self._seen = max(0.0, steady - self._seen), steady
            self._now += passed
            ahead = self._wall() - self._now
            if ahead > 0:
                self._now += min(ahead, passed * self._rate)
            return self._now
