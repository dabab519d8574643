"""Decides whether a call may run: by policy, and by asking the user where the policy requires it."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from toolwire.agent.hooks import outcome
from toolwire.turns.tools.call import LocalShellPayload, ToolCall
from toolwire.turns.tools.registry import Tool

Policy: TypeAlias = Literal["never", "on-write", "always"]
"""When the user is asked: never, before calls that may write, or before every call."""

Approver: TypeAlias = Callable[[Tool, ToolCall], bool | str | Awaitable[bool | str]]
"""Asks somebody: True allows the call, False refuses it, and a text refuses it with a reason that the model reads."""

DENIED = "The user did not allow this call. Do not try it again in another way; ask what to do instead."
DENIED_BECAUSE = "The user did not allow this call, and says: "
NOBODY = "This call needs the approval of the user, and nobody is there to give it."
READ_ONLY = "read-only mode: {} may change something, and is off."


async def why_not(policy: Policy, approver: Approver | None, read_only: bool, tool: Tool, call: ToolCall) -> str:
    """Why a call may not run; empty if it may."""
    if read_only and tool.writes:
        return READ_ONLY.format(call.name)
    escalates = isinstance(call.payload, LocalShellPayload) and call.payload.with_escalated_permissions
    if policy == "never" or not (policy == "always" or tool.writes or escalates):
        return ""
    if approver is None:
        return NOBODY
    answer = await outcome(approver, tool, call)
    if isinstance(answer, str):
        return DENIED_BECAUSE + answer if answer.strip() else DENIED
    return "" if answer else DENIED
