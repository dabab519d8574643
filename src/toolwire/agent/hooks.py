"""Functions of a user around calls: an approver, and hooks before and after.

Plain functions run in a thread, as tools do; async ones in the event loop.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec

from toolwire.agent.approval import Approver, Policy, refusal_of
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import CallHooks
from toolwire.turns.tools.concurrency import call_function
from toolwire.turns.tools.registry import Context, Result, Tool, as_result

_Changed: TypeAlias = ToolCall | Result | str | None
_Replaced: TypeAlias = Result | str | None

BeforeCall: TypeAlias = Callable[[ToolCall, Context[Any]], _Changed | Awaitable[_Changed]]
"""Receives a call before it runs. None runs it as it is, a `ToolCall` changes its arguments, and a text or a `Result`
replaces the run of the tool."""
AfterCall: TypeAlias = Callable[[ToolCall, Result, Context[Any]], _Replaced | Awaitable[_Replaced]]
"""Receives a call and its result. None leaves it as it is; a text or a `Result` replaces it."""


class CallOptions(msgspec.Struct, frozen=True):
    """The functions of a user around calls, and the dependencies of their tools."""

    approver: Approver | None = None
    """Asked where the configuration requires approval."""
    before: BeforeCall | None = None
    after: AfterCall | None = None
    deps: Any = None

    def hooks(self, context: Context, policy: Policy, approver: Approver | None, exempt: str) -> CallHooks:
        """The hooks for the calls of a task, which approve by this policy.

        Calls of the tool named `exempt`, by which the model gives its output, pass through none of them.
        """

        async def approve(tool: Tool, call: ToolCall) -> str:
            return "" if call.name == exempt else await refusal_of(call, tool, context, policy, approver)

        return CallHooks(
            lambda _: context,
            approve=approve,
            before=partial(_before, self.before, exempt) if self.before is not None else None,
            after=partial(_after, self.after, exempt) if self.after is not None else None,
        )


async def _before(function: BeforeCall, exempt: str, call: ToolCall, context: Context) -> ToolCall | Result:
    changed = await call_function(function, call, context) if call.name != exempt else None
    return call if changed is None else changed if isinstance(changed, ToolCall) else as_result(changed)


async def _after(function: AfterCall, exempt: str, call: ToolCall, result: Result, context: Context) -> Result:
    replaced = await call_function(function, call, result, context) if call.name != exempt else None
    return result if replaced is None else as_result(replaced)
