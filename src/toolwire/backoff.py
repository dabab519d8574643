"""When a server is asked again: the delay before a retry, and how many retries a backend gets.

Delays are varied at random, so that clients which failed together do not return together.
"""

import random
import time
from math import ceil

from toolwire.core.errors import Failure

SPREAD = 0.25
"""Share by which a delay may get longer. One that a server asked for never gets shorter."""
FIRST_DELAY = 0.5
"""Seconds before the first retry, where the server asks for no delay. Each further one takes twice as long."""
MAX_DELAY = 60.0
"""Seconds that such a delay grows to; a server may ask for a longer one."""
JITTER = 0.1
"""Share by which such a delay may get shorter or longer."""
RESERVE = 10
"""Retries that a backend has at first, and gets back within a minute."""
MAX_SAVED_RETRIES = 100


def retry_delay(failure: Failure, attempt: int, max_delay: float) -> float | None:
    """Seconds before the `attempt`-th retry, counted from 1.

    None if there is to be none: the failure is final, or the server asks for more than `max_delay`.
    """
    if not failure.retryable and failure.code != "backend_timeout":
        return None
    requested = failure.pause(time.time())
    if requested is not None:
        return add_spread(requested) if requested <= max_delay else None
    return min(MAX_DELAY, FIRST_DELAY * 2 ** (attempt - 1)) * random.uniform(1 - JITTER, 1 + JITTER)


def add_spread(seconds: float) -> float:
    """This delay, or one that is a little longer."""
    return seconds * random.uniform(1, 1 + SPREAD)


def retry_after(seconds: int) -> str:
    """The value of a `Retry-After` header that the gateway sends, in whole seconds."""
    return str(random.randint(seconds, ceil(seconds * (1 + SPREAD))))


class RetryBudget:
    """The retries of one backend: a share of its requests, and a small reserve for one that has few.

    A server in trouble must not get several times the requests.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = float(RESERVE)
        self._since = 0.0

    def earn(self) -> None:
        """Count a request that is made for the first time."""
        self._left = min(MAX_SAVED_RETRIES, self._left + self._share)

    def spend(self, now: float) -> bool:
        """Take one retry, at this time in seconds; whether there is one."""
        refilled = self._left + RESERVE * (now - self._since) / 60 if self._since else self._left
        self._since = now
        self._left = max(self._left, min(RESERVE, refilled))
        if self._left < 1:
            return False
        self._left -= 1
        return True
