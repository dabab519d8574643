"""What both OpenAI dialects have in common."""

from typing import Any

from toolwire.core.errors import Failure

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
