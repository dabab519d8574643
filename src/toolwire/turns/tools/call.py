"""Calls as tools receive them.

Arguments stay text until the tool reads them. A call that cannot run, because its tool does not exist or its arguments
do not fit, gets a result with the reason, and the turn continues.
"""

from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.core.text import replace_lone_surrogates
from toolwire.turns.tools.schema import decode_value

LOCAL_SHELL = "local_shell"


class FunctionPayload(msgspec.Struct, frozen=True):
    """The arguments of a function, as JSON text."""

    arguments: str


class CustomPayload(msgspec.Struct, frozen=True):
    """The free text that a custom tool takes."""

    input: str


class LocalShellPayload(msgspec.Struct, frozen=True):
    """A command for the built-in shell tool of the Responses API."""

    command: tuple[str, ...] = ()
    working_directory: str = ""
    timeout_ms: int | None = None
    env: dict[str, str] = {}
    with_escalated_permissions: bool = False
    justification: str = ""


Arguments = TypeVar("Arguments")
Payload: TypeAlias = FunctionPayload | CustomPayload | LocalShellPayload


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool, under the name that the tool has in the registry."""

    name: str
    call_id: str
    payload: Payload

    @property
    def text(self) -> str:
        """The payload as text."""
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
            read: Any = msgspec.json.decode(replace_lone_surrogates(self.text))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return {}
        return cast("dict[str, Any]", read) if isinstance(read, dict) else {}

    def with_arguments(self, **arguments: Any) -> "ToolCall":
        """The same call of a function with these arguments instead of its own."""
        text = msgspec.json.encode(arguments).decode()
        return msgspec.structs.replace(self, payload=FunctionPayload(text))


class ToolError(ToolwireError):
    """A failure that the model should read: the call fails, and the turn continues."""

    failure_code = "tool_failed"


class FatalToolError(ToolwireError):
    """A failure that no answer of the model can repair: it ends the turn."""

    failure_code = "tool_failed"


def read_arguments(call: ToolCall, kind: type[Arguments]) -> Arguments:
    """Read the arguments of a call as a value of this type. Raises `ToolError` if they do not fit it."""
    if isinstance(call.payload, CustomPayload):
        raise ToolError(f"{call.name} takes arguments, not free text")
    try:
        return decode_value(replace_lone_surrogates(call.text) or "{}", kind)
    except msgspec.ValidationError as error:
        raise ToolError(f"invalid arguments for {call.name}: {error}") from None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ToolError(f"failed to parse function arguments: {error}") from None
