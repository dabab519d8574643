"""Objects and checks that Chat Completions and Responses share."""

from collections.abc import Mapping, Sequence

import msgspec

from toolwire.core.allowance import Allowance
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.raw import Json
from toolwire.core.request import Role, ToolChoice, ToolMode
from toolwire.dialects.reading import DeclaredTools

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def encode_error_object(failure: Failure) -> Json:
    """A failure as OpenAI's error object."""
    default = "server_error" if failure.status >= 500 else "invalid_request_error"
    return {
        "message": failure.message,
        "type": failure.type or _TYPES.get(failure.status, default),
        "param": failure.param,
        "code": failure.code or None,
    }


def encode_model(name: str, owner: str) -> Json:
    """Encode a model. `owner` is the name of its backend."""
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def encode_models(found: Sequence[tuple[str, str]], query: Mapping[str, str]) -> Json:
    """Encode models, each given with the name of its backend. OpenAI's list has no pages."""
    return {"object": "list", "data": [encode_model(*each) for each in found]}


def encode_allowances(allowances: Sequence[Allowance], now: float) -> list[tuple[bytes, bytes]]:
    """What is left of limits, as OpenAI's headers."""
    return [
        (f"x-ratelimit-{name}-{each.kind}".encode(), value.encode())
        for each in allowances
        for name, value in (
            ("limit", str(each.limit)),
            ("remaining", str(each.remaining)),
            ("reset", f"{each.reset}s"),
        )
    ]


class Audio(msgspec.Struct, gc=False):
    """Audio as Base64."""

    data: str
    format: str


ROLES: dict[str, Role] = {"system": "system", "developer": "developer", "user": "user", "assistant": "assistant"}
MODES: dict[str, ToolMode] = {"auto": "auto", "none": "none", "required": "required"}


def check_choice(
    choice: ToolChoice, declared: DeclaredTools, field: str = "tool_choice", *, needs_tools: bool = False
) -> ToolChoice | None:
    """Return the tool choice, or None if it has no effect. Raises `BadRequest` if the declared tools cannot satisfy it.

    `needs_tools`: the choice is invalid without declared tools, even if it demands no call.
    """
    if not declared.tools and not declared.hosted:
        if needs_tools or choice.mode == "required":
            demand = "asks for a call" if choice.mode == "required" else "limits the tools"
            raise BadRequest(f"{field} {demand}, but no tools are declared.", field)
        return choice if choice.mode == "none" else None  # the gateway may add tools of its own
    names = {tool.name for tool in declared.tools}
    for name in (choice.name, *choice.allowed):
        if name and name not in names:
            raise BadRequest(f"{field} names {name!r}, which is not a declared tool.", field)
    return choice
