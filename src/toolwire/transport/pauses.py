"""Pauses before somebody is asked again, each a little longer by chance, so that not all come back at once."""

import random
from math import ceil

SPREAD = 0.25
"""How much longer a pause may get. It never gets shorter: whoever asked for it meant it."""


def spread(seconds: float) -> float:
    """A pause that was asked for, as long as that or a little longer."""
    return seconds * random.uniform(1, 1 + SPREAD)


def retry_after(seconds: int) -> str:
    """A `Retry-After` of our own, in whole seconds."""
    return str(random.randint(seconds, ceil(seconds * (1 + SPREAD))))
