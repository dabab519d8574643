"""Functions of a user around calls: an approver, and hooks before and after.

Plain functions run in a thread, as tools do; async ones in the event loop.
"""

from collections.abc import Awaitable, Callable
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
    """Asked when the configuration requires approval."""
    before: BeforeCall | None = None
    after: AfterCall | None = None
    deps: Any = None

    def hooks(self, context: Context, policy: Policy, approver: Approver | None, exempt: str) -> CallHooks:
        """The hooks for the calls of a task, which approve by this policy.

        Calls of the tool named `exempt`, by which the model gives its output, pass through none of them.
        """

        async def approve(tool: Tool, call: ToolCall) -> str:
            return "" if call.name == exempt else await refusal_of(call, tool, context, policy, approver)

        async def before(call: ToolCall, context: Context) -> ToolCall | Result:
            changed = None
            if self.before is not None and call.name != exempt:
                changed = await call_function(self.before, call, context)
            return call if changed is None else changed if isinstance(changed, ToolCall) else as_result(changed)

        async def after(call: ToolCall, result: Result, context: Context) -> Result:
            replaced = None
            if self.after is not None and call.name != exempt:
                replaced = await call_function(self.after, call, result, context)
            return result if replaced is None else as_result(replaced)

        return CallHooks(lambda _: context, approve=approve, before=before, after=after)
