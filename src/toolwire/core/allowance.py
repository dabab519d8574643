"""What is left of a client's limit, as a value that every dialect can write as headers."""

from typing import Literal

import msgspec


class Allowance(msgspec.Struct, frozen=True):
    """One limit per minute, and what is left of it."""

    kind: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset: int
    """Seconds until all of it is there again, if nothing is used meanwhile."""
