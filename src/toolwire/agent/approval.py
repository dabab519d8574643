"""Decides whether a call may run: by policy, and by asking the user where the policy requires it."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from toolwire.agent.tools.file_access import is_outside
from toolwire.turns.tools.call import LOCAL_SHELL, ToolCall
from toolwire.turns.tools.concurrency import call_function
from toolwire.turns.tools.registry import Context, Tool

Policy: TypeAlias = Literal["never", "on-write", "always"]
"""When the user is asked: never, before calls that may write, or before every call."""

Approver: TypeAlias = Callable[[Tool, ToolCall], bool | str | Awaitable[bool | str]]
"""Asks the user: True allows the call, False refuses it, and a text refuses it with a reason that the model reads."""

DENIED = "The user did not allow this call. Do not try it again in another way; ask what to do instead."
DENIED_BECAUSE = "The user did not allow this call, and says: "
NOBODY = "This call needs the approval of the user, and nobody is there to give it."
READ_ONLY = "read-only mode: {} may change something, and is off."


_DIRECTORIES = {"Bash": "cwd", "exec_command": "workdir", LOCAL_SHELL: "working_directory"}
"""For each tool that runs commands, the argument with the directory in which the command starts."""


def escalates(call: ToolCall, context: Context) -> bool:
    """Whether a call asks for more than the default: for permissions, or to start outside the roots."""
    if call.name not in _DIRECTORIES:
        return False
    arguments = call.arguments
    directory = arguments.get(_DIRECTORIES[call.name])
    is_elsewhere = isinstance(directory, str) and is_outside(directory, context)
    return is_elsewhere or bool(arguments.get("with_escalated_permissions"))


async def refusal_of(call: ToolCall, tool: Tool, context: Context, policy: Policy, approver: Approver | None) -> str:
    """The reason why a call may not run; an empty string if it may."""
    if tool.writes and not context.writable:
        return READ_ONLY.format(call.name)
    if policy == "never" or not (policy == "always" or tool.writes or escalates(call, context)):
        return ""
    if approver is None:
        return NOBODY
    answer = await call_function(approver, tool, call)
    if isinstance(answer, str):
        return DENIED_BECAUSE + answer if answer.strip() else DENIED
    return "" if answer else DENIED
