"""App-server's errors as failures: those of a turn, and those of a request."""

import re
from typing import Any, cast

from toolwire.backends.codex.protocol import RpcError, TurnError
from toolwire.backends.failures import RETRYABLE_STATUS, find_retry_delay, make_http_failure, mark_context_overflow
from toolwire.core.errors import CONTEXT_LENGTH_EXCEEDED, Failure
from toolwire.core.events import FILTER_REASONS, Reason

OVERLOADED = -32001

_KINDS: dict[str, tuple[int, str, bool]] = {
    "badRequest": (400, "bad_request", False),
    "contextWindowExceeded": (400, CONTEXT_LENGTH_EXCEEDED, False),
    "cyberPolicy": (400, "cyber_policy", False),
    "flexUnavailable": (429, "flex_unavailable", True),
    "httpConnectionFailed": (502, "backend_unreachable", True),
    "internalServerError": (502, "server_error", True),
    "misalignmentPolicyViolation": (400, "policy_violation", False),
    "modelNotFound": (404, "model_not_found", False),
    "policyCapacityUnavailable": (503, "server_is_overloaded", True),
    "rateLimitExceeded": (429, "rate_limit_exceeded", True),
    "responseStreamConnectionFailed": (502, "backend_unreachable", True),
    "responseStreamDisconnected": (502, "stream_cut", True),
    "responseTooManyFailedAttempts": (502, "server_error", True),
    "serverOverloaded": (503, "server_is_overloaded", True),
    "sessionBudgetExceeded": (429, "usage_limit_reached", False),
    "unauthorized": (401, "unauthorized", False),
    "usageLimitExceeded": (429, "usage_limit_reached", False),
}
"""The status, the code and whether to retry, by app-server's name for the error."""

_CODES = {401: "unauthorized", 403: "forbidden", 404: "model_not_found", 429: "rate_limit_exceeded"}
_CUT = "stream disconnected before completion"
_UNROUTED = "workspace routing discovery"
_INCOMPLETE = re.compile(r"Incomplete response returned, reason: (\w+)")
_STATUS = re.compile(r"unexpected status (\d{3})")
_GONE = ("thread not found", "no rollout found", "invalid thread id", "no active turn")
_TOOLS = ("dynamic tool", "deferred dynamic tool", "duplicate dynamic tool")


def find_incomplete_reason(error: TurnError | None) -> Reason | None:
    """Why the response is incomplete; None for any other error."""
    found = _INCOMPLETE.search(error.message) if error is not None else None
    if found is None:
        return None
    return "filter" if found[1] in FILTER_REASONS else "length"


def make_turn_failure(error: TurnError | None) -> Failure:
    """Why a turn failed, with app-server's message and the status of its server, if it is known."""
    if error is None:
        return Failure(502, "server_error", "Codex ended the turn without saying why.", retryable=True)
    message = error.message
    info = error.codex_error_info
    kind = next(iter(info), "") if isinstance(info, dict) else info or ""
    inside: Any = info.get(kind) if isinstance(info, dict) else None
    status: Any = cast("dict[str, Any]", inside).get("httpStatusCode") if isinstance(inside, dict) else None
    if not isinstance(status, int):
        found = _STATUS.search(message)
        status = int(found[1]) if found else 0
    if not 400 <= status < 600:  # not an HTTP error
        status = None
    if kind in _KINDS:
        usual, code, again = _KINDS[kind]
        if status is not None:
            usual, again = status, again and status in RETRYABLE_STATUS
            code = _CODES.get(status, "bad_request" if status < 500 else code)
        failure = Failure(usual, code, message, retry_after=find_retry_delay(message), retryable=again)
    elif message.startswith("{"):
        failure = make_http_failure(status or 400, {}, message.encode())
    elif message.startswith(_CUT):
        failure = Failure(502, "stream_cut", message, retryable=True)
    elif message.startswith(_UNROUTED):
        failure = Failure(502, "backend_unreachable", message, retryable=True)
    elif kind == "other":  # in any other case, this kind means that the server refused the request
        failure = Failure(status or 400, "bad_request", message)
    else:
        failure = Failure(502, "server_error", message)
    return mark_context_overflow(failure)


def make_request_failure(error: RpcError) -> Failure:
    """Why a request to app-server failed. One code stands for many errors, so the message decides."""
    text = error.message
    if error.code == OVERLOADED:
        return Failure(503, "server_is_overloaded", text, retryable=True)
    if text.startswith(_GONE):
        return Failure(404, "thread_not_found", text, retryable=True)
    if text.startswith(_TOOLS):
        return Failure(400, "invalid_tools", text, param="tools")
    data: Any = error.data
    if isinstance(data, dict) and "input_error_code" in data:
        return Failure(400, str(cast("dict[str, Any]", data)["input_error_code"]), text)
    return Failure(500, "codex_refused", text or "Codex refused the request.")
