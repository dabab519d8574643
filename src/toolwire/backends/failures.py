"""A server's errors as failures.

Three shapes occur: `{"error": {"message", "type", "param", "code"}}`, which Gemini puts into a list, the ChatGPT
backend's `{"detail": "…"}`, and anything that a proxy may send. The status is kept. A body that is not JSON is quoted
up to 300 characters.

A full context window has the code `context_length_exceeded` whatever the server calls it, because clients react to it.
"""

import re
from calendar import timegm
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime
from math import ceil
from typing import Any

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.core.errors import CONTEXT_LENGTH_EXCEEDED, Failure
from toolwire.core.events import FILTER_REASONS
from toolwire.core.request import Omission

STATUS = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "bio_policy": 400,
    CONTEXT_LENGTH_EXCEEDED: 400,
    "cyber_policy": 400,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 503,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "server_is_overloaded": 503,
    "slow_down": 503,
    "timeout_error": 504,
    "usage_limit_reached": 429,
    "usage_not_included": 429,
    "vector_store_timeout": 504,
}
"""The HTTP status that corresponds to an error code inside a stream."""

_RATE_LIMITS = frozenset(("rate_limit_exceeded", "rate_limit_error"))
_RETRYABLE = _RATE_LIMITS | {"api_error", "overloaded_error", "server_error", "server_is_overloaded", "slow_down"}
RETRYABLE_STATUS = frozenset((408, 409, 429, 500, 502, 503, 504, 529))
_FINAL = FILTER_REASONS | {"insufficient_quota", "usage_limit_reached", "usage_not_included"}

NO_SUCH_ENDPOINT = "no_such_endpoint"
"""The failure code for a path that the server does not have."""
_NO_ENDPOINT = (404, 405, 501)
_STOCK_PHRASES = frozenset(("", "not found", "404 not found", "404 page not found", "method not allowed"))
"""The messages of web frameworks for an unknown path. Those for an unknown model differ."""
_WEB_PAGE = re.compile(r"\s*<(?:!doctype html|html)\b(?:.*?<title[^>]*>\s*([^<]{1,100}))?", re.IGNORECASE | re.DOTALL)


class Error(msgspec.Struct):
    """The error object of a server."""

    message: str | None = None
    type: str | None = None
    param: Any = None
    code: Any = None


class _Body(msgspec.Struct):
    error: Error | str | None = None
    detail: Any = None
    message: str | None = None


class _Said(msgspec.Struct):
    refusal: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: _Said | None = None


class _Details(msgspec.Struct):
    reason: str | None = None


class _Turn(msgspec.Struct):
    """The end of a completion, a message or a response."""

    choices: list[_Choice] = []
    stop_reason: str | None = None
    incomplete_details: _Details | None = None


_decode = msgspec.json.Decoder(_Body | list[_Body]).decode
_decode_turn = msgspec.json.Decoder(_Turn).decode


def make_http_failure(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """The failure of an HTTP error."""
    error = _read_error(body)
    code = _as_text(error.code)
    quoted = error.message or ""
    page = _WEB_PAGE.match(quoted)
    if status in _NO_ENDPOINT and not code and (page or quoted.lower().strip(" .") in _STOCK_PHRASES):
        code = NO_SUCH_ENDPOINT
    if page:
        title = (page[1] or "").strip()
        quoted, message = "", f"The backend answered with status {status} and a web page{title and f': {title}'}."
    else:
        message = quoted or f"The backend answered with status {status}."
    return mark_context_overflow(
        Failure(
            status=status if 400 <= status < 600 else 502,
            code=code,
            message=message,
            type=error.type or "",
            param=_as_text(error.param) or None,
            retry_after=read_retry_after(headers.get("retry-after", "")),
            retryable=status in RETRYABLE_STATUS and not {code, error.type} & _FINAL,
            quoted=bool(quoted),
        ),
        error.type or "",
    )


def make_stream_failure(given: Any) -> Failure:
    """The failure of an error inside a stream: an error object, a message alone, or neither."""
    try:
        error = msgspec.convert(given, Error)
    except msgspec.ValidationError:
        error = Error(message=given if isinstance(given, str) else None)
    kind = _as_text(error.type)
    code = _as_text(error.code) or kind or "server_error"
    message = error.message or "The backend failed without saying why."
    limited = code in _RATE_LIMITS
    return mark_context_overflow(
        Failure(
            STATUS.get(code, 502),
            code,
            message,
            param=_as_text(error.param) or None,
            retry_after=(find_retry_delay(message) or "1") if limited else "",
            retryable=code in _RETRYABLE or (code not in STATUS and kind in _RETRYABLE),
            quoted=error.message is not None,
        ),
        kind,
    )


def complete_error(error: Error, later: Error) -> Error:
    """An error, with missing fields taken from a later one."""
    pairs = zip(msgspec.structs.astuple(error), msgspec.structs.astuple(later), strict=True)
    return Error(*(first or second for first, second in pairs))


FAILED_REASONS: dict[str, int] = {
    "abort": 502,
    "aborted": 502,
    "canceled": 502,
    "cancelled": 502,
    "error": 502,
    "failed": 502,
    "insufficient_system_resource": 503,
    "malformed_function_call": 502,
    "malformed_model_output": 502,
    "malformed_response": 502,
    "malformed_tool_use": 502,
    "network_error": 502,
    "server_error": 502,
    "timeout": 504,
}
"""Finish reasons that mean failure, with the corresponding HTTP status."""


def make_finish_failure(reason: str) -> Failure:
    """The failure of a finish reason in `FAILED_REASONS`."""
    code = reason.lower()
    return Failure(FAILED_REASONS[code], code, f"The backend ended the turn with the reason {code!r}.", retryable=True)


_WINDOW = r"context[ _-](?:length|window|size|limit)|max_model_len|model token limit|number of tokens allowed"
_PASSED = r"exceed|longer than|greater than|larger than|more than|maximum|overflow|reached|ran out|only"
_OVERFLOW = re.compile(
    rf"(?:{_PASSED}).{{0,120}}?(?:{_WINDOW})|(?:{_WINDOW}).{{0,120}}?(?:{_PASSED})"
    r"|maximum (?:model|prompt|input|sequence) length"  # vLLM, xAI, TensorRT-LLM
    r"|(?:prompt|input) is too long"  # Anthropic, Bedrock, Fireworks
    r"|token count.{0,60}? exceeds"  # Gemini, Copilot
    r"|reduce the length of the (?:messages|prompt|input)"  # Groq, vLLM
    r"|prompt exceeds max length"  # GLM
    r"|range of input length should be"  # DashScope
    r"|`inputs` tokens \+ `max_new_tokens` must be",  # Text Generation Inference
    re.IGNORECASE | re.DOTALL,
)
"""Error messages of servers for a request that exceeds the model's context window. The first two lines cover OpenAI,
OpenRouter, DeepSeek, Mistral, vLLM, SGLang, llama.cpp, Ollama and LM Studio."""

_OTHER_CAUSES = frozenset((401, 403, 404, 429))
"""Statuses of failures with another cause, whatever the message: tokens per minute are not a context window."""


def mark_context_overflow(failure: Failure, kind: str = "") -> Failure:
    """The failure, with the code `context_length_exceeded` if its message or the server's `kind` says so."""
    text = f"{failure.code} {kind} {failure.message}"
    if failure.status in _OTHER_CAUSES or not _OVERFLOW.search(text):
        return failure
    status = failure.status if failure.status < 500 else STATUS[CONTEXT_LENGTH_EXCEEDED]
    return msgspec.structs.replace(failure, status=status, code=CONTEXT_LENGTH_EXCEEDED, retryable=False)


_PAUSE = re.compile(r"try again in (\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|seconds?|milliseconds?)\b", re.IGNORECASE)
"""The retry delay in the message of a rate limit inside a stream; an HTTP error has a header for it."""

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MAX_DATE_CHARS = 40


def read_retry_after(header: str) -> str:
    """The seconds or the HTTP date of a `Retry-After` header; empty if it is neither."""
    if _SECONDS.fullmatch(header):
        return header
    if len(header) > _MAX_DATE_CHARS:
        return ""
    try:
        return formatdate(timegm(parsedate_to_datetime(header).utctimetuple()), usegmt=True)  # UTC, also without a zone
    except (ValueError, OverflowError):
        return ""


def find_retry_delay(message: str) -> str:
    """The seconds to wait according to an error message; empty if it names none."""
    wait = _PAUSE.search(message)
    if wait is None:
        return ""
    number = float(wait[1]) / (1000 if wait[2].lower().startswith("m") else 1)
    return str(max(1, ceil(number)))


def _read_error(body: bytes) -> Error:
    try:
        decoded = _decode(body)
    except UNREADABLE:
        return Error(message=body[:300].decode("utf-8", "replace").strip() or None)
    read = decoded if isinstance(decoded, _Body) else next(iter(decoded), _Body())
    if isinstance(read.error, Error):
        return read.error
    message = read.error or read.message or read.detail
    if message is not None:
        if not isinstance(message, str):  # FastAPI's list of problems
            message = msgspec.json.encode(message)[:300].decode("utf-8", "replace")
        return Error(message=message)
    # Some filters answer with a turn instead of an error; its finish reason and its text become the error.
    try:
        turn = _decode_turn(body)
    except msgspec.ValidationError:
        return Error()
    choice = turn.choices[0] if turn.choices else _Choice()
    details, said = turn.incomplete_details or _Details(), choice.message or _Said()
    reason = choice.finish_reason or turn.stop_reason or details.reason
    if not reason:
        return Error()
    default = f"The backend ended the turn with the reason {reason!r}."
    return Error(said.refusal or said.content or default, code=reason.lower())


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


# Optional parts of a request that a server refuses by name.

_REFUSING_STATUS = (400, 422)
_INCLUDE = re.compile(r"""['"`]include\b|\binclude\[|encrypted content is not supported""")
_REASONING_FIELD = re.compile(r"""\breasoning_(?:content|details)\b|\bmessages?\b.*[.'"`\]]reasoning\b""", re.DOTALL)
"""Reasoning fields of a message. `reasoning` alone may also be the field of a request."""
_SIGNATURE = re.compile(
    r"signature.*thinking|thinking.*signature"
    r"|(?:corrupted|invalid) thought[ _]signature|thought[ _]signature is (?:not valid|invalid)",
    re.DOTALL,
)
"""How Anthropic and Google refuse a signature. That one is missing is another matter."""
_SEARCH_FIELD = re.compile(r"\btool_search|\bdefer_loading\b|\btool_reference\b")
_INVALID = re.compile(r"does not match|invalid (?:value|type)|input should be|must be one of|deserialize")
_REFUSES = re.compile(r"not (?:supported|permitted|allowed)|unsupported|unexpected|unknown|unrecogni|extra|forbidden")
_WANTS = re.compile(r"missing|required|passed back|must be (?:passed|provided|included|present|set)")


class RefusedPart(msgspec.Struct, frozen=True):
    """A part that a server refuses: `always`, or only in this request."""

    part: Omission
    always: bool


def find_refused_part(failure: Failure) -> RefusedPart | None:
    """The optional part that the server refused, or None if the failure has another cause."""
    if failure.status not in _REFUSING_STATUS:
        return None
    message = failure.message.lower()
    if failure.code == "invalid_encrypted_content" or _SIGNATURE.search(message):
        return RefusedPart("reasoning", always=False)
    if (failure.param or "").startswith("include") or _INCLUDE.search(message):
        return RefusedPart("include", always=True)
    if _SEARCH_FIELD.search(f"{message} {failure.param}") and (_REFUSES.search(message) or _INVALID.search(message)):
        return RefusedPart("tool_search", always=True)
    if not _REASONING_FIELD.search(f"{message} {failure.param}"):
        return None
    # DeepSeek and Kimi name the field when it is missing.
    is_wanted = _WANTS.search(message) and not _REFUSES.search(message)
    return None if is_wanted else RefusedPart("reasoning", always=True)
