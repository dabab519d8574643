"""Long work on one event loop, and others who wait."""

import asyncio

ROUNDS = 3
"""Of the loop: one hears that something has come for somebody, the next wakes them, and in the third they run."""


async def give_way() -> None:
    """Let all others run who have something to do."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
