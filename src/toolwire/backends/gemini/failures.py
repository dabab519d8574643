"""Google's errors as failures.

    {"error": {"code": 429, "message": "…", "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.4s"}]}}

Errors of streams come in a list. A wrong key has the status 400.
"""

import re
from math import ceil
from typing import Any

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.backends.failures import RETRYABLE_STATUS, mark_context_overflow
from toolwire.core.errors import Failure

_CODES = {
    "DEADLINE_EXCEEDED": "timeout_error",
    "INVALID_ARGUMENT": "invalid_request_error",
    "NOT_FOUND": "model_not_found",
    "PERMISSION_DENIED": "permission_error",
    "RESOURCE_EXHAUSTED": "rate_limit_exceeded",
    "UNAUTHENTICATED": "invalid_api_key",
    "UNAVAILABLE": "server_is_overloaded",
}
"""The failure code of each status; others keep their own word."""

_DELAY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


class _Violation(msgspec.Struct, rename="camel"):
    quota_id: str = ""


class _Detail(msgspec.Struct, rename="camel"):
    reason: str = ""
    retry_delay: str = ""
    violations: list[_Violation] = []


class Error(msgspec.Struct):
    """The error object of a server."""

    code: Any = None
    message: str = ""
    status: str = ""
    details: list[_Detail] = []


class _Body(msgspec.Struct):
    error: Error


_decode = msgspec.json.Decoder(_Body | list[_Body]).decode


def refine_failure(failure: Failure, body: bytes) -> Failure:
    """The failure of an HTTP error with what Google's error object says of it."""
    try:
        decoded = _decode(body)
    except UNREADABLE:
        return failure
    read = decoded if isinstance(decoded, _Body) else next(iter(decoded), None)
    return failure if read is None else _refine(failure, read.error)


def make_stream_failure(given: Any) -> Failure:
    """The failure of an error inside a stream."""
    try:
        error = msgspec.convert(given, Error)
    except msgspec.ValidationError:
        error = Error(message=given if isinstance(given, str) else "")
    status = error.code if isinstance(error.code, int) and 400 <= error.code < 600 else 502
    message = error.message or "The backend failed without saying why."
    retryable = status in RETRYABLE_STATUS
    failure = Failure(status, "server_error", message, retryable=retryable, quoted=bool(error.message))
    return mark_context_overflow(_refine(failure, error))


def _refine(failure: Failure, error: Error) -> Failure:
    reasons = [detail.reason for detail in error.details]
    status, code = failure.status, _CODES.get(error.status, error.status.lower()) or failure.code
    if "API_KEY_INVALID" in reasons:
        status, code = 401, "invalid_api_key"
    if failure.code == "context_length_exceeded":
        code = failure.code
    quotas = [violation.quota_id for detail in error.details for violation in detail.violations]
    is_spent = any("PerDay" in quota for quota in quotas)
    found = next((delay for detail in error.details if (delay := _DELAY.fullmatch(detail.retry_delay))), None)
    return msgspec.structs.replace(
        failure,
        status=status,
        code="insufficient_quota" if is_spent else code,
        retry_after=f"{ceil(float(found[1]))}" if found else failure.retry_after,
        retryable=failure.retryable and not is_spent,
    )
