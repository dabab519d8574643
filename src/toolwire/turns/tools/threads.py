"""Functions that block, in threads that nobody has to wait for.

A thread cannot be stopped. Those of a pool would keep the process until a function that hangs comes back; these do not.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Never, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What the function returns or raises. Whoever stops waiting leaves it to itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            tell(partial(_raise, error))
        else:
            tell(lambda: value)

    def tell(outcome: Callable[[], T]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(outcome))

    threading.Thread(target=work, daemon=True, name="toolwire tool").start()
    return (await done)()


def _raise(error: BaseException) -> Never:
    raise error
