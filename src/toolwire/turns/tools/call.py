"""Calls in the form in which tools take them.

Arguments stay text until the tool reads them. A call that cannot be run, because its tool does not exist or its
arguments do not fit, gets a result that says so, and the turn goes on.
"""

from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.core.text import without_halves
from toolwire.turns.tools.types import decoded

LOCAL_SHELL = "local_shell"


class FunctionPayload(msgspec.Struct, frozen=True):
    """The arguments of a function, as JSON text."""

    arguments: str


class CustomPayload(msgspec.Struct, frozen=True):
    """The free text that a custom tool takes."""

    input: str


class LocalShellPayload(msgspec.Struct, frozen=True):
    """A command of the Responses API's own shell tool."""

    command: tuple[str, ...] = ()
    working_directory: str = ""
    timeout_ms: int | None = None
    env: dict[str, str] = {}
    with_escalated_permissions: bool = False
    justification: str = ""


Arguments = TypeVar("Arguments")
Payload: TypeAlias = FunctionPayload | CustomPayload | LocalShellPayload


class ToolCall(msgspec.Struct, frozen=True):
    """A tool to run. `name` is that of the registry."""

    name: str
    call_id: str
    payload: Payload

    @property
    def text(self) -> str:
        """What the call carries, as text."""
        match self.payload:
            case CustomPayload(input):
                return input
            case LocalShellPayload():
                return msgspec.json.encode(self.payload).decode()
            case FunctionPayload(arguments):
                return arguments

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a function by name; empty if the model wrote no JSON object."""
        try:
            read: Any = msgspec.json.decode(without_halves(self.text))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return {}
        return cast("dict[str, Any]", read) if isinstance(read, dict) else {}

    def with_arguments(self, **arguments: Any) -> "ToolCall":
        """The same call of a function with these arguments in place of its own."""
        text = msgspec.json.encode(arguments).decode()
        return msgspec.structs.replace(self, payload=FunctionPayload(text))


class ToolError(ToolwireError):
    """Something the model should read: the call failed, and the turn goes on."""

    failure_code = "tool_failed"


class FatalToolError(ToolwireError):
    """Something no answer to the model can mend: the turn ends."""

    failure_code = "tool_failed"


def read_arguments(call: ToolCall, kind: type[Arguments]) -> Arguments:
    """The arguments of a call as a value of this type; `ToolError` if they do not fit it."""
    if isinstance(call.payload, CustomPayload):
        raise ToolError(f"{call.name} takes arguments, not free text")
    try:
        return decoded(without_halves(call.text) or "{}", kind)
    except msgspec.ValidationError as error:
        raise ToolError(f"invalid arguments for {call.name}: {error}") from None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ToolError(f"failed to parse function arguments: {error}") from None
