"""When a stream has failed: whether to ask again, and when."""

import random
import time

from toolwire.core.errors import Failure
from toolwire.transport.pauses import spread

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 60.0
"""Of our own; a server may ask for a longer one."""


def pause(failure: Failure, attempt: int, longest: float) -> float | None:
    """Seconds before the `attempt`-th new request, or None if it is not to be made."""
    if not failure.retryable and failure.code != "backend_timeout":
        return None
    asked = failure.pause(time.time())
    if asked is not None:
        return spread(asked) if asked <= longest else None
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.9, 1.1)
