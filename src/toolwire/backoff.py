"""Retries: the delay before one, and the budget of each backend.

Delays have random jitter, so that clients that failed together do not return together.
"""

import random
import time
from math import ceil

from toolwire.core.errors import Failure

MAX_SPREAD = 0.25
"""Maximum share by which a requested delay is extended. It is never shortened."""
FIRST_DELAY = 0.5
"""Seconds before the first retry, if the server requests no delay; doubled for each further retry."""
MAX_DELAY = 60.0
"""Maximum seconds of such a delay; a server may request a longer one."""
JITTER = 0.1
"""Maximum share by which such a delay is shortened or extended."""
MIN_RETRIES_PER_MINUTE = 10
"""The initial budget of a backend, which is refilled within a minute."""
MAX_SAVED_RETRIES = 100


def choose_retry_delay(failure: Failure, attempt: int, max_delay: float) -> float | None:
    """Seconds before the `attempt`-th retry, counted from 1.

    None if there is no retry: the failure is final, or the server requests more than `max_delay`.
    """
    if not failure.retryable and failure.code != "backend_timeout":
        return None
    requested = failure.pause(time.time())
    if requested is not None:
        return add_spread(requested) if requested <= max_delay else None
    return min(MAX_DELAY, FIRST_DELAY * 2 ** (attempt - 1)) * random.uniform(1 - JITTER, 1 + JITTER)


def add_spread(seconds: float) -> float:
    """The delay with random spread, never shorter."""
    return seconds * random.uniform(1, 1 + MAX_SPREAD)


def retry_after(seconds: int) -> str:
    """The value of a `Retry-After` header that the gateway sends, in whole seconds."""
    return str(random.randint(seconds, ceil(seconds * (1 + MAX_SPREAD))))


class RetryBudget:
    """The retry budget of one backend: a share of its requests, and a minimum for one with few requests.

    It keeps retries from multiplying the load on a failing server.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = float(MIN_RETRIES_PER_MINUTE)
        self._since = 0.0

    def earn(self) -> None:
        """Count the first attempt of a request."""
        self._left = min(MAX_SAVED_RETRIES, self._left + self._share)

    def spend(self, now: float) -> bool:
        """Spend one retry at this time in seconds; returns False if none is left."""
        refilled = self._left + MIN_RETRIES_PER_MINUTE * (now - self._since) / 60 if self._since else self._left
        self._since = now
        self._left = max(self._left, min(MIN_RETRIES_PER_MINUTE, refilled))
        if self._left < 1:
            return False
        self._left -= 1
        return True
