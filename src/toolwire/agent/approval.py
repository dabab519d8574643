"""The user's functions around calls: the approver, which decides whether a call may run, and two hooks.

Plain functions run in a thread, as tools do; async ones in the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.agent.tools.file_access import is_outside
from toolwire.turns.tools.call import LOCAL_SHELL, ToolCall
from toolwire.turns.tools.concurrency import call_function
from toolwire.turns.tools.registry import Context, Result, Tool

Policy: TypeAlias = Literal["never", "on-write", "always"]
"""When the user is asked: never, before calls that may write, or before every call."""

Approver: TypeAlias = Callable[[Tool, ToolCall], bool | str | Awaitable[bool | str]]
"""Asks the user: True allows the call, False refuses it, and a text refuses it with a reason that the model reads."""

_Changed: TypeAlias = ToolCall | Result | str | None
_Replaced: TypeAlias = Result | str | None

BeforeCall: TypeAlias = Callable[[ToolCall, Context[Any]], _Changed | Awaitable[_Changed]]
"""Receives a call before it runs. None leaves it unchanged, a `ToolCall` changes its arguments, and a text or a
`Result` becomes its result without running the tool."""
AfterCall: TypeAlias = Callable[[ToolCall, Result, Context[Any]], _Replaced | Awaitable[_Replaced]]
"""Receives a call and its result. None leaves the result unchanged; a text or a `Result` replaces it."""


class CallOptions(msgspec.Struct, frozen=True):
    """The user's functions around calls, and the dependencies that tools receive."""

    approver: Approver | None = None
    """Asked when the configuration requires approval."""
    before: BeforeCall | None = None
    after: AfterCall | None = None
    deps: Any = None


DENIED = "The user did not allow this call. Do not try it again in another way; ask what to do instead."
DENIED_BECAUSE = "The user did not allow this call, and says: "
NO_USER = "This call needs the user's approval, and no user is present to give it."
CONFINED = "No user is asked about calls, so no command may run without the sandbox."
READ_ONLY = "read-only mode: {} may change something, so it is refused."

USE_DEFAULT = "use_default"
COMMAND_DIRECTORIES = {"Bash": "cwd", "exec_command": "workdir", LOCAL_SHELL: "working_directory"}
"""For each tool that runs commands, the argument with the directory in which the command starts."""


def escalates(call: ToolCall, context: Context) -> bool:
    """Whether a call asks for more than the default: escalated permissions, or a start outside the roots."""
    if call.name not in COMMAND_DIRECTORIES:
        return False
    arguments = call.arguments
    directory = arguments.get(COMMAND_DIRECTORIES[call.name])
    is_elsewhere = isinstance(directory, str) and is_outside(directory, context)
    return is_elsewhere or leaves_sandbox(call)


def leaves_sandbox(call: ToolCall) -> bool:
    """Whether a call asks to run its command without a sandbox."""
    arguments = call.arguments if call.name in COMMAND_DIRECTORIES else {}
    return bool(
        arguments.get("with_escalated_permissions")
        or arguments.get("dangerouslyDisableSandbox")
        or arguments.get("sandbox_permissions", USE_DEFAULT) != USE_DEFAULT
    )


async def refusal_of(call: ToolCall, tool: Tool, context: Context, policy: Policy, approver: Approver | None) -> str:
    """The reason why a call may not run; an empty string if it may.

    Raises `ToolError` instead of asking about a call whose arguments are not valid.
    """
    if tool.writes and not context.writable:
        return READ_ONLY.format(call.name)
    if policy == "never" and context.sandbox and leaves_sandbox(call):
        return CONFINED
    if policy == "never" or not (policy == "always" or tool.writes or escalates(call, context)):
        return ""
    if approver is None:
        return NO_USER
    check = getattr(tool, "check_call", None)
    if check is not None:
        await asyncio.to_thread(check, call, context)
    answer = await call_function(approver, tool, call)
    if isinstance(answer, str):
        return DENIED_BECAUSE + answer if answer.strip() else DENIED
    return "" if answer else DENIED
