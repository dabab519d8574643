"""The environment of processes that we start: one place decides what they inherit."""

import os
from collections.abc import Collection, Mapping

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
"""A variable whose name contains one of these, in any case, counts as a secret."""


def inherited(
    secrets: Collection[str] = (), allowed: Collection[str] = (), environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables that a process inherits: no secrets, be they named as such or by their name, unless allowed."""
    return {
        name: value
        for name, value in environment.items()
        if name in allowed or not (name in secrets or any(word in name.upper() for word in SECRET_WORDS))
    }
