"""Limits of each key in this process: turns and tokens per minute, and turns at once.

A minute is the last 60 seconds at any moment. A turn reserves an estimate of its tokens; when it ends, what it used
takes the place of the estimate, and counts for the minute in which it ended. A turn that failed before it showed
anything gives its tokens back.
"""

import time
from collections import deque
from collections.abc import Callable
from math import ceil

from toolwire.backoff import retry_after
from toolwire.core.allowance import Allowance
from toolwire.core.errors import Failure, ToolwireError
from toolwire.core.request import Request
from toolwire.core.tokens import estimate_tokens
from toolwire.memory.store import KeyLimits

MINUTE = 60.0
RETRY_AFTER_TURN = 2
"""Seconds after which a client may retry if a turn has to end first."""
NO_LIMITS = KeyLimits()


class LimitReached(ToolwireError):
    """A limit of the key has no room for the turn now."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self._seconds = max(1, ceil(seconds))

    @property
    def failure(self) -> Failure:
        again = retry_after(self._seconds)
        return Failure(429, "rate_limit_exceeded", str(self), "rate_limit_error", retry_after=again, retryable=True)


class Window:
    """Amounts of the last minute, each with its time."""

    def __init__(self) -> None:
        self._amounts: deque[tuple[float, int]] = deque()
        self.total = 0

    def add(self, now: float, amount: int) -> None:
        """Add an amount, which counts for a minute."""
        if amount:
            self._amounts.append((now, amount))
            self.total += amount

    def forget(self, now: float) -> None:
        """Drop what is a minute old."""
        while self._amounts and self._amounts[0][0] <= now - MINUTE:
            self.total -= self._amounts.popleft()[1]

    def wait_for(self, room: int, now: float) -> float | None:
        """Seconds until this much has been dropped; None if there is less."""
        for at, amount in self._amounts:
            room -= amount
            if room <= 0:
                return at + MINUTE - now
        return None

    def reset(self, now: float) -> int:
        """Seconds until all is dropped."""
        return ceil(self._amounts[-1][0] + MINUTE - now) if self._amounts else 0


class Meter:
    """The turns of one key."""

    def __init__(self, key: str, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = key
        self._clock = clock
        self.limits = limits
        self._turns = Window()
        self._tokens = Window()
        self._reserved = 0  # tokens of turns that run
        self._running = 0

    def take(self, request: Request) -> "Ticket":
        """Admit a turn. Raises `LimitReached`."""
        limits, now = self.limits, self._clock()
        self._forget(now)
        if limits.concurrent_turns and self._running >= limits.concurrent_turns:
            raise self._refuse(f"{limits.concurrent_turns} turns at once", RETRY_AFTER_TURN)
        most = limits.requests_per_minute
        if most and self._turns.total >= most:
            wait = self._turns.wait_for(self._turns.total - most + 1, now)
            raise self._refuse(f"{most} requests per minute", wait or MINUTE)
        reserved, most = 0, limits.tokens_per_minute
        if most:
            # A turn that is larger than the whole limit is admitted when nothing else is used.
            reserved = min(estimate_tokens(request) + (request.sampling.max_tokens or 0), most)
            excess = self._tokens.total + self._reserved + reserved - most
            if excess > 0:
                wait = self._tokens.wait_for(excess, now)
                raise self._refuse(f"{most} tokens per minute", RETRY_AFTER_TURN if wait is None else wait)
        if limits.requests_per_minute:
            self._turns.add(now, 1)
        self._reserved += reserved
        self._running += 1
        return Ticket(self, reserved)

    def settle(self, reserved: int, used: int) -> None:
        """End a turn: count what it used in place of what it reserved."""
        self._running -= 1
        self._reserved -= reserved
        if self.limits.tokens_per_minute:
            self._tokens.add(self._clock(), used)

    def list_allowances(self) -> list[Allowance]:
        """What is left of the limits per minute."""
        now, limits = self._clock(), self.limits
        self._forget(now)
        out: list[Allowance] = []
        if most := limits.requests_per_minute:
            out.append(Allowance("requests", most, max(0, most - self._turns.total), self._turns.reset(now)))
        if most := limits.tokens_per_minute:
            left = max(0, most - self._tokens.total - self._reserved)
            out.append(Allowance("tokens", most, left, self._tokens.reset(now)))
        return out

    def _forget(self, now: float) -> None:
        self._turns.forget(now)
        self._tokens.forget(now)

    def _refuse(self, limit: str, seconds: float) -> LimitReached:
        return LimitReached(f"The key `{self._key}` has reached its limit of {limit}.", seconds)


class Ticket:
    """The place of one turn in the limits of its key."""

    def __init__(self, meter: Meter, reserved: int) -> None:
        self._meter: Meter | None = meter
        self._reserved = reserved

    def settle(self, used: int | None) -> None:
        """End the turn, once; None if it is not known what it used, which is then what it reserved."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.settle(self._reserved, self._reserved if used is None else used)


class Meters:
    """The meters of all keys with limits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters: dict[str, Meter] = {}

    def find(self, key: str, limits: KeyLimits) -> Meter | None:
        """The meter of a key with these limits, which may have changed; None without limits."""
        meter = self._meters.get(key)
        if meter is None:
            if limits == NO_LIMITS:
                return None
            meter = self._meters[key] = Meter(key, limits, self._clock)
        meter.limits = limits
        return meter
