"""Runs plain and async functions, and waits for work that must not be abandoned halfway."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Never, TypeVar, cast

T = TypeVar("T")


def is_async_function(function: Callable[..., Any]) -> bool:
    """Whether a function is called in the event loop rather than in a thread."""
    inner = inspect.unwrap(function)
    call = getattr(inner, "__call__", None)  # noqa: B004 - of an object with an async `__call__`
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


async def call_function(function: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
    """Call an async function in the event loop, or a plain one in a thread, and return its result."""
    if is_async_function(function):
        return await cast("Awaitable[T]", function(*arguments))
    value = await run_in_thread(partial(function, *arguments))
    return await cast("Awaitable[T]", value) if isinstance(value, Awaitable) else cast("T", value)


async def run_in_thread(function: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Run a blocking function in a daemon thread of its own, and return or raise its outcome.

    A thread cannot be stopped: on cancellation it is abandoned, and `stop` is set for it to notice. A thread pool
    would keep the process alive until a function that hangs returns.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            report(partial(_raise, error))
        else:
            report(lambda: value)

    def report(outcome: Callable[[], T]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(outcome))

    threading.Thread(target=work, daemon=True, name="toolwire tool").start()
    try:
        return (await done)()
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        raise


def _raise(error: BaseException) -> Never:
    raise error


async def wait_until_done(task: "asyncio.Future[Any]") -> None:
    """Wait until a task is done; a cancellation of the waiter is deferred until then.

    A task must finish its clean-up before the resources it uses are closed. Its result is left to the caller.
    """
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError


async def run_to_completion(function: Callable[[], T]) -> T:
    """Run a function in a thread to its end, and ignore cancellation meanwhile.

    For functions that change files: a thread cannot be stopped, so the next call would run beside it, and the result
    would claim that nothing was changed.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function))
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()
