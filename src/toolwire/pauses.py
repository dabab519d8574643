"""Pauses before a server is asked again, varied at random so that not all clients come back at once."""

import random
import time
from math import ceil

from toolwire.core.errors import Failure

SPREAD = 0.25
"""How much longer a pause may get. One that a server asked for never gets shorter."""
FIRST_PAUSE = 0.5
"""Seconds before the first retry, where the server asks for no pause. Each further one takes twice as long."""
LONGEST_PAUSE = 60.0
"""The longest that a pause grows to; a server may ask for a longer one."""
JITTER = 0.1
"""How much shorter or longer such a pause may get."""


def backoff(failure: Failure, attempt: int, longest: float) -> float | None:
    """Seconds before the `attempt`-th retry, counted from 1.

    None if there is to be none: the failure is final, or the server asks for more than `longest`.
    """
    if not failure.retryable and failure.code != "backend_timeout":
        return None
    requested = failure.pause(time.time())
    if requested is not None:
        return spread(requested) if requested <= longest else None
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(1 - JITTER, 1 + JITTER)


def spread(seconds: float) -> float:
    """A pause of so many seconds or a little more."""
    return seconds * random.uniform(1, 1 + SPREAD)


def retry_after(seconds: int) -> str:
    """The value of a `Retry-After` header of the gateway's, in whole seconds."""
    return str(random.randint(seconds, ceil(seconds * (1 + SPREAD))))
