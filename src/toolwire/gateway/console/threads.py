"""Work on many bytes, which would keep turns waiting if the event loop did it.

It has threads of its own: whatever the console is asked for, the rest of the process finds its threads free.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Given = ParamSpec("Given")

SMALL = 64 * 1024
"""Bytes that are worked on at once."""
_threads = ThreadPoolExecutor(2, "console")


async def in_thread(work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
    """The result of work that a thread does."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *given, **named))


async def off_loop(size: int, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
    """The result of work on so many bytes, done in a thread if they are many."""
    return work(*given, **named) if size < SMALL else await in_thread(work, *given, **named)
