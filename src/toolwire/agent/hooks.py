"""Functions of a user that are asked about calls: plain ones run in a thread, as tools do, async ones in the loop."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import After, Before
from toolwire.turns.tools.registry import Context, Result, as_result, in_thread, is_async_function

T = TypeVar("T")
_Changed: TypeAlias = ToolCall | Result | str | None
_Replaced: TypeAlias = Result | str | None

BeforeCall: TypeAlias = Callable[[ToolCall, Context[Any]], _Changed | Awaitable[_Changed]]
"""Sees a call before it runs. None lets it run as it is, a `ToolCall` has other arguments, and a text or a `Result` is
read by the model in place of running the tool."""
AfterCall: TypeAlias = Callable[[ToolCall, Result, Context[Any]], _Replaced | Awaitable[_Replaced]]
"""Sees a call and its result. None leaves it as it is; a text or a `Result` takes its place."""


async def outcome(function: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
    """What a plain or async function returns."""
    if is_async_function(function):
        return await cast("Awaitable[T]", function(*arguments))
    value = await in_thread(partial(function, *arguments))
    return await cast("Awaitable[T]", value) if isinstance(value, Awaitable) else cast("T", value)


def before_hook(function: BeforeCall, *, ignored: str) -> Before:
    """The hook before calls, but not before those of the tool that is ignored."""

    async def before(call: ToolCall, context: Context) -> ToolCall | Result:
        if call.name == ignored:
            return call
        changed = await outcome(function, call, context)
        return call if changed is None else changed if isinstance(changed, ToolCall) else as_result(changed)

    return before


def after_hook(function: AfterCall, *, ignored: str) -> After:
    """The hook after calls, but not after those of the tool that is ignored."""

    async def after(call: ToolCall, result: Result, context: Context) -> Result:
        if call.name == ignored:
            return result
        replaced = await outcome(function, call, result, context)
        return result if replaced is None else as_result(replaced)

    return after
