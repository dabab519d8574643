"""The required fields of a response object and its events, and the request settings that a response repeats.

A server may repeat more than was sent, such as defaults and tools of its own. Only a contradiction of the request is a
fault.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from toolwire.check.turns.loose import Json, as_list, as_number, as_object, as_objects, as_text, quote
from toolwire.check.turns.turn import as_usage


class _Field(msgspec.Struct, frozen=True):
    """The requirements of one field of a response."""

    openai: bool = False
    """OpenAI requires it; any other field is required by Open Responses only."""
    nullable: bool = True
    echo: str = ""
    """The rule that requires it to repeat the field of the request, if there is one."""


FIELDS = {
    "background": _Field(nullable=False, echo="echo"),
    "completed_at": _Field(),
    "error": _Field(openai=True),
    "frequency_penalty": _Field(nullable=False, echo="echo-sampling"),
    "incomplete_details": _Field(openai=True),
    "instructions": _Field(openai=True, echo="echo"),
    "max_output_tokens": _Field(echo="echo"),
    "max_tool_calls": _Field(echo="echo"),
    "metadata": _Field(openai=True, echo="echo"),
    "parallel_tool_calls": _Field(openai=True, nullable=False, echo="echo-tools"),
    "presence_penalty": _Field(nullable=False, echo="echo-sampling"),
    "previous_response_id": _Field(echo="echo"),
    "prompt_cache_key": _Field(echo="echo"),
    "reasoning": _Field(echo="echo"),
    "safety_identifier": _Field(echo="echo"),
    "service_tier": _Field(nullable=False),
    "store": _Field(nullable=False, echo="echo"),
    "temperature": _Field(openai=True, nullable=False, echo="echo-sampling"),
    "text": _Field(nullable=False, echo="echo"),
    "tool_choice": _Field(openai=True, nullable=False, echo="echo-tools"),
    "tools": _Field(openai=True, nullable=False, echo="echo-tools"),
    "top_logprobs": _Field(nullable=False, echo="echo-sampling"),
    "top_p": _Field(openai=True, nullable=False, echo="echo-sampling"),
    "truncation": _Field(nullable=False, echo="echo"),
    "usage": _Field(),
}
"""The required fields besides `id`, `object`, `created_at`, `model` and `output`."""
EVENT_FIELDS = {
    "response.output_text.delta": ("logprobs",),
    "response.output_text.done": ("logprobs",),
    "response.function_call_arguments.done": ("name",),
    "response.output_text.annotation.added": ("annotation", "annotation_index"),
    "error": ("code", "message", "param"),
}
"""Required fields of events that no other rule covers."""


def find_field_faults(response: Json) -> Iterator[tuple[str, str]]:
    """The rules about fields that a response breaks, each with the detail."""
    for rule, by_openai in (("fields", True), ("open-fields", False)):
        lacking = [name for name, field in FIELDS.items() if field.openai is by_openai and name not in response]
        if lacking:
            yield rule, f"lacks {', '.join(lacking)}."
    null = [name for name, field in FIELDS.items() if not field.nullable and response.get(name, "") is None]
    if null:
        yield "open-fields", f"has null for {', '.join(null)}."


def find_invalid_head(response: Json) -> list[str]:
    """The missing or invalid fields among `object`, `created_at` and `model`."""
    is_valid = {
        "object": response.get("object") == "response",
        "created_at": as_number(response.get("created_at")) is not None,
        "model": as_text(response.get("model")),
    }
    return [name for name, valid in is_valid.items() if not valid]


def find_usage_faults(response: Json) -> Iterator[tuple[str, str]]:
    """The rule about usage details, with the detail, if the usage lacks some."""
    usage = as_usage(response.get("usage"), "input_tokens", "output_tokens")
    if usage is None or (usage.cached is not None and usage.reasoning is not None):
        return
    lacking = ["input_tokens_details.cached_tokens"] if usage.cached is None else []
    lacking += ["output_tokens_details.reasoning_tokens"] if usage.reasoning is None else []
    yield "usage-details", f"reports the tokens without {', '.join(lacking)}."


def find_echo_fields(rule: str, request: Json) -> list[str]:
    """The fields of a request that test an echo rule."""
    return [name for name, field in FIELDS.items() if field.echo == rule and request.get(name) is not None]


def find_echo_faults(request: Json, response: Json) -> Iterator[tuple[str, str]]:
    """The echo rules that a response breaks, each with the detail; missing fields break another rule."""
    for name, field in FIELDS.items():
        sent = request.get(name) if field.echo else None
        if sent is None or name not in response:
            continue
        returned = response[name]
        if name == "tools":
            is_same = all(any(_is_tool(each, tool) for each in as_objects(returned)) for tool in as_objects(sent))
        elif name == "reasoning":  # OpenAI reports the summary it made where `auto` was requested
            is_same = _contains(as_object(sent).get("effort"), as_object(returned).get("effort"))
        else:
            is_same = _contains(sent, returned)
        if not is_same:
            yield field.echo, f"has the {name} {quote(returned)}, the request {quote(sent)}."


def _is_tool(returned: Json, tool: Json) -> bool:
    """Whether it is the declared tool; the schema of a strict tool may have been changed."""
    same = (returned.get("type"), returned.get("name")) == (tool.get("type"), tool.get("name"))
    return same and (tool.get("strict") is not False or _contains(tool, returned))


def _contains(sent: Any, returned: Any) -> bool:
    """Whether everything that was sent is returned; there may be more."""
    if isinstance(sent, dict):
        values = as_object(returned)
        return isinstance(returned, dict) and all(
            _contains(value, values.get(name)) for name, value in as_object(sent).items()
        )
    if isinstance(sent, list):
        parts, there = as_list(sent), as_list(returned)
        return len(parts) == len(there) and all(_contains(*both) for both in zip(parts, there, strict=True))
    if isinstance(sent, bool) or isinstance(returned, bool):
        return sent is returned
    return sent is None or sent == returned
