"""Threads for work on many bytes, which would block the event loop.

The console has its own, so that it never takes the threads that the rest of the process needs.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_threads = ThreadPoolExecutor(2, "console")


async def in_thread(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """The result of work that a thread does."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *given, **named))
