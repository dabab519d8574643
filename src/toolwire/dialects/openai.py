"""What both OpenAI dialects write alike."""

import re
from typing import Any

import msgspec

from toolwire.core.errors import BadRequest, Failure, complaint

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def error_object(failure: Failure) -> dict[str, Any]:
    """A failure as OpenAI's error object."""
    default = "server_error" if failure.status >= 500 else "invalid_request_error"
    return {
        "message": failure.message,
        "type": failure.type or _TYPES.get(failure.status, default),
        "param": failure.param,
        "code": failure.code or None,
    }


def explained(error: msgspec.ValidationError, path: str = "") -> BadRequest:
    """What msgspec finds wrong with a value at this path, with the field it is about."""
    text, param = complaint(error)
    param = f"{path}.{param}" if path and param and not param.startswith("[") else path + param
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
        text = "This field is required"
    return BadRequest(f"{param}: {text}." if param else f"The body: {text}.", param or None)
