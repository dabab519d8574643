"""Lets other tasks of the event loop run during long work."""

import asyncio

ROUNDS = 3
"""Iterations of the event loop: data arrives, its task is woken, and the task runs."""


async def give_way() -> None:
    """Let all tasks run that are ready."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
