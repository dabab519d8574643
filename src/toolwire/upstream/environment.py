"""Decides which environment variables child processes inherit."""

import os
from collections.abc import Collection, Mapping

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
"""A variable whose name contains one of these, in any case, counts as a secret."""


def inherited(
    secrets: Collection[str] = (), allowed: Collection[str] = (), environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables that a child process inherits: all except secrets, unless those are allowed by name."""
    return {
        name: value
        for name, value in environment.items()
        if name in allowed or not (name in secrets or any(word in name.upper() for word in SECRET_WORDS))
    }
