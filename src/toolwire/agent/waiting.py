"""Waiting for the end of a task, come what may."""

import asyncio
from typing import Any


async def wait_through(task: "asyncio.Future[Any]") -> None:
    """Wait until a task is done, however often whoever waits is cancelled; the cancellation goes on after that.

    What a task cleans up must be over before anything that it uses is closed. Its result is left to the caller.
    """
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError
