"""The required fields of a response object and its events, and the request settings that a response repeats.

A server may repeat more than was sent: it fills in defaults and adds its own tools. Only a contradiction of the request
is wrong.
"""

from collections.abc import Iterator
from typing import Any

from toolwire.check.turns.loose import Json, as_list, as_number, as_object, as_objects, as_text, shown

FIELDS = (
    "error",
    "incomplete_details",
    "instructions",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)
"""Fields that OpenAI requires besides `id`, `object`, `created_at`, `model` and `output`."""
OPEN_FIELDS = (
    "background",
    "completed_at",
    "frequency_penalty",
    "max_output_tokens",
    "max_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "text",
    "top_logprobs",
    "truncation",
    "usage",
)
"""Fields that Open Responses requires in addition."""
NOT_NULL = (
    "background",
    "frequency_penalty",
    "parallel_tool_calls",
    "presence_penalty",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
)
ECHOES = {
    "echo-tools": ("tools", "tool_choice", "parallel_tool_calls"),
    "echo-sampling": ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
    "echo": (
        "background",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "previous_response_id",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "store",
        "text",
        "truncation",
    ),
}
"""The request fields that a response repeats, by rule."""
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
    lacking = [name for name in FIELDS if name not in response]
    if lacking:
        yield "fields", f"lacks {', '.join(lacking)}."
    lacking = [name for name in OPEN_FIELDS if name not in response]
    null = [name for name in NOT_NULL if name in response and response[name] is None]
    if lacking:
        yield "open-fields", f"lacks {', '.join(lacking)}."
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


def echoed(rule: str, request: Json) -> list[str]:
    """The fields of a request that test an echo rule."""
    return [name for name in ECHOES[rule] if request.get(name) is not None]


def echo_faults(request: Json, response: Json) -> Iterator[tuple[str, str]]:
    """The echo rules that a response breaks, each with the detail; missing fields break another rule."""
    for rule in ECHOES:
        for name in echoed(rule, request):
            if name in response and not _repeats(name, request[name], response[name]):
                yield rule, f"has the {name} {shown(response[name])}, the request {shown(request[name])}."


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
