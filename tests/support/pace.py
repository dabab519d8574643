"""Tests of a time within which something comes: a busy machine makes them slower, and not fail."""

from collections.abc import Callable


def at_any_pace(attempt: Callable[[float], None]) -> None:
    """Call this with a factor for all its times, and again with a larger one if it fails: it was late, perhaps."""
    for factor in (1, 5):
        try:
            attempt(factor)
        except AssertionError:
            continue
        return
    attempt(25)
