"""The required fields of a response object and its events, and the request settings that a response repeats.

A server may repeat more than was sent: it fills in defaults and adds its own tools. Only a contradiction of the request
is wrong.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from toolwire.check.turns.loose import Json, as_list, as_number, as_object, as_objects, as_text, quote


class _Field(msgspec.Struct, frozen=True):
    """What is required of one field of a response."""

    openai: bool = False
    """OpenAI requires it; any other field is required by Open Responses only."""
    nullable: bool = True
    echo: str = ""
    """The rule by which it repeats the field of the request, if it does."""


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


def field_faults(response: Json) -> Iterator[tuple[str, str]]:
    """The rules about fields that a response breaks, each with the detail."""
    for rule, by_openai in (("fields", True), ("open-fields", False)):
        lacking = [name for name, field in FIELDS.items() if field.openai is by_openai and name not in response]
        if lacking:
            yield rule, f"lacks {', '.join(lacking)}."
    null = [name for name, field in FIELDS.items() if not field.nullable and response.get(name, "") is None]
    if null:
        yield "open-fields", f"has null for {', '.join(null)}."


def head_faults(response: Json) -> Iterator[str]:
    """The missing or invalid fields among `object`, `created_at` and `model`."""
    if response.get("object") != "response":
        yield "object"
    if as_number(response.get("created_at")) is None:
        yield "created_at"
    if not as_text(response.get("model")):
        yield "model"


def usage_faults(response: Json) -> Iterator[str]:
    """The missing details of the usage, if there is a usage."""
    usage = as_object(response.get("usage"))
    if as_number(usage.get("input_tokens")) is None or as_number(usage.get("output_tokens")) is None:
        return
    for details, count in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
        if as_number(as_object(usage.get(details)).get(count)) is None:
            yield f"{details}.{count}"


def find_echo_fields(rule: str, request: Json) -> list[str]:
    """The fields of a request that test an echo rule."""
    return [name for name, field in FIELDS.items() if field.echo == rule and request.get(name) is not None]


def echo_faults(request: Json, response: Json) -> Iterator[tuple[str, str]]:
    """The echo rules that a response breaks, each with the detail; missing fields break another rule."""
    for name, field in FIELDS.items():
        sent = request.get(name) if field.echo else None
        if sent is not None and name in response and not _repeats(name, sent, response[name]):
            yield field.echo, f"has the {name} {quote(response[name])}, the request {quote(sent)}."


def _repeats(name: str, sent: Any, returned: Any) -> bool:
    match name:
        case "tools":
            return all(any(_is_tool(each, tool) for each in as_objects(returned)) for tool in as_objects(sent))
        case "reasoning":  # OpenAI reports the summary it made where `auto` was requested
            return _contains(as_object(sent).get("effort"), as_object(returned).get("effort"))
        case _:
            return _contains(sent, returned)


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
