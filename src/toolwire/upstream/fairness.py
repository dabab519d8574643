"""Lets other tasks of the event loop run during long work."""

import asyncio

ROUNDS = 3
"""Iterations of the event loop: data arrives, its task is woken, and the task runs."""
STEP = 0.005
"""Seconds of work on what a backend sent, after which other tasks run. `perf_counter` measures them: the clock of
uvloop stands still between two iterations."""


async def give_way() -> None:
    """Let all tasks run that are ready."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
