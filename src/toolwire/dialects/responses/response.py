"""The response object: the fields of the request with defaults, and the output."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.errors import Failure
from toolwire.core.events import Reason, Usage
from toolwire.core.raw import NULL, Fields, Json, fields_of, list_of, object_in, to_raw
from toolwire.core.request import Request
from toolwire.core.sse import on_one_line

TRUE = msgspec.Raw(b"true")

Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

# The fields that every response repeats from its request, with their defaults.
_DEFAULTS: Json = {
    "previous_response_id": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": None, "summary": None},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": False,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}
# All fields of a request that a response repeats; those without a default only if they were sent.
_REPEATED = frozenset((*_DEFAULTS, "conversation", "user", "prompt", "prompt_cache_retention"))
# The other fields, with their initial values.
_HEAD: Json = {
    "id": "",
    "object": "response",
    "created_at": 0,
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "model": "",
    "output": [],
}
# Fields whose values come from us, never from the backend's response.
_OUR_FIELDS = frozenset(
    (*_HEAD, "usage", "previous_response_id", "conversation", "store", "background", "required_action")
)
_FAILED_CODES = frozenset(
    (
        "rate_limit_exceeded",
        "invalid_prompt",
        "context_length_exceeded",
        "insufficient_quota",
        "usage_not_included",
        "server_is_overloaded",
        "slow_down",
        "cyber_policy",
        "bio_policy",
        "misalignment_policy_violation",
        "owner_lost",
    )
)
"""Codes of a failed response that clients understand, and `owner_lost` for an orphaned run. Any other code becomes
`server_error`."""

INCOMPLETE: dict[Reason, str] = {"length": "max_output_tokens", "filter": "content_filter"}
"""Finish reasons that make a response incomplete."""


class ResponseObject:
    """One response, from its creation to its end."""

    def __init__(self, request: Request, id: str, created: int) -> None:
        self.id = id
        self.status: Status = "in_progress"
        self.required_action: Json | None = None
        self.usage: Usage | None = None
        self.notes = b""
        """The turn's telemetry as JSON, sent only on a socket, which has no comments."""
        self.created = created
        self._request_fields = repeat_fields(request.fields)
        self._stored = request.fields.get("store") == TRUE
        self._head = {**_HEAD, "id": id, "created_at": created, "model": request.model}
        self._original: Fields = {}

    def adopt(self, data: bytes) -> None:
        """Adopt the unknown fields of the backend's response object."""
        if data:
            self._original = object_in(fields_of(data), "response") or self._original

    def end(self, reason: Reason, output: list[msgspec.Raw], waiting: list[Json], now: int) -> None:
        """Complete the response. Calls whose outputs can be submitted are listed in `required_action`."""
        self.status = "incomplete" if reason in INCOMPLETE else "completed"
        self._head["output"] = output
        if reason in INCOMPLETE:
            self._head["incomplete_details"] = {"reason": INCOMPLETE[reason]}
        else:
            self._head["completed_at"] = now
            if waiting and self._stored:
                calls = {"tool_calls": waiting}
                self.required_action = {"type": "submit_tool_outputs", "submit_tool_outputs": calls}

    def fail(self, failure: Failure, output: list[msgspec.Raw]) -> None:
        """Mark the response as failed."""
        self.status = "failed"
        self._head["output"] = output
        self._head["error"] = {"code": failed_code_of(failure), "message": failure.message}

    def cancel(self, output: list[msgspec.Raw]) -> None:
        """Mark the response as cancelled."""
        self.status = "cancelled"
        self._head |= {"output": output, "error": None}

    def leave_unstored(self) -> None:
        """Mark the response as not stored, so that no outputs can be submitted for it."""
        self._stored = False
        self._request_fields["store"] = False
        self.required_action = None

    def encode(self, output: list[msgspec.Raw] | None = None, notes: bytes = b"") -> msgspec.Raw:
        """Encode the object as JSON, with this output and telemetry instead of its own."""
        original = {name: value for name, value in self._original.items() if name not in _OUR_FIELDS and value != NULL}
        fields: Json = {**self._head, **_DEFAULTS, **original, **self._request_fields, "usage": None}
        if self.usage is not None:
            received = msgspec.json.decode(self._original.get("usage", b"null"))
            fields["usage"] = encode_usage(self.usage, received or {})
        fields["status"] = self.status
        if output is not None:
            fields["output"] = output
        if self.required_action is not None:
            fields["required_action"] = self.required_action
        if notes or self.notes:
            fields["toolwire"] = msgspec.Raw(notes or self.notes)
        return to_raw(fields)


def failed_code_of(failure: Failure) -> str:
    """The code of a failed response for this failure."""
    return failure.code if failure.code in _FAILED_CODES else "server_error"


def encode_usage(usage: Usage, original: Mapping[str, Any] = {}) -> Json:
    """Encode token counts, with the unknown fields of the backend's usage object."""
    input_details = {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_write}
    output_details = {"reasoning_tokens": usage.reasoning}
    return {
        **original,
        "input_tokens": usage.input,
        "input_tokens_details": {**(original.get("input_tokens_details") or {}), **input_details},
        "output_tokens": usage.output,
        "output_tokens_details": {**(original.get("output_tokens_details") or {}), **output_details},
        "total_tokens": usage.input + usage.output,
    }


def repeat_fields(request_fields: Fields) -> Json:
    """The fields of a request that a response repeats."""
    present = {name: bytes(value) for name, value in request_fields.items() if name in _REPEATED and value != NULL}
    shown: Json = {name: msgspec.Raw(on_one_line(value)) for name, value in present.items()}
    if "tools" in shown:
        shown["tools"] = _tools_with_nulls[bytes(shown["tools"])]
    if present.get("tool_choice", b"").startswith(b"{"):
        shown["tool_choice"] = _add_defaults(shown["tool_choice"], b'"allowed_tools"', {"mode": "auto"})
    for name in ("text", "reasoning"):
        if name in shown:
            shown[name] = {**_DEFAULTS[name], **fields_of(shown[name])}
    if "text" in shown:
        format = shown["text"]["format"]
        if format == NULL:
            shown["text"]["format"] = _DEFAULTS["text"]["format"]
        elif isinstance(format, msgspec.Raw):
            defaults = {"description": "", "strict": False}
            shown["text"]["format"] = _add_defaults(format, b'"json_schema"', defaults)
    if present.get("conversation", b"").startswith(b'"'):
        shown["conversation"] = {"id": shown["conversation"]}
    return shown


@Cache
def _tools_with_nulls(tools: bytes) -> msgspec.Raw:
    """The tools with explicit nulls. An agent repeats its tools in every request, so the result is cached."""
    nulls = {"description": None, "parameters": None, "strict": None}
    return to_raw([_add_defaults(tool, b'"function"', nulls) for tool in list_of(tools)])


def _add_defaults(raw: msgspec.Raw, type: bytes, defaults: Json) -> Json:
    """The fields of an object, with defaults if it is of this type."""
    fields = fields_of(raw)
    return {**defaults, **fields} if fields.get("type") == msgspec.Raw(type) else {**fields}
