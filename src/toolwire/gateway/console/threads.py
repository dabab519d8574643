"""Work on many bytes, which would keep turns waiting if the event loop did it."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Given = ParamSpec("Given")

SMALL = 64 * 1024
"""Bytes that are worked on at once."""


async def off_loop(size: int, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
    """The result of work on so many bytes, done in a thread if they are many."""
    return work(*given, **named) if size < SMALL else await asyncio.to_thread(work, *given, **named)
