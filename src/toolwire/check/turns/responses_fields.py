"""The fields of a Responses object and of its events: which there must be, and which tell the request again.

What a server tells of the request may be more than what was asked: defaults are filled in, and tools of its own stand
beside those of the client. It is wrong only where it contradicts the request.
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
"""What OpenAI requires besides `id`, `object`, `created_at`, `model` and `output`."""
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
"""What Open Responses requires besides."""
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
"""The fields that the response repeats, by the rule that wants it."""
EVENT_FIELDS = {
    "response.output_text.delta": ("logprobs",),
    "response.output_text.done": ("logprobs",),
    "response.function_call_arguments.done": ("name",),
    "response.output_text.annotation.added": ("annotation", "annotation_index"),
    "error": ("code", "message", "param"),
}
"""Those that no other rule looks at."""


def field_faults(response: Json) -> Iterator[tuple[str, str]]:
    """The rules about the fields of a response that one breaks, and how."""
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
    """What a response lacks of the fields that say which one it is, besides its id."""
    if response.get("object") != "response":
        yield "object"
    if as_number(response.get("created_at")) is None:
        yield "created_at"
    if not as_text(response.get("model")):
        yield "model"


def usage_faults(response: Json) -> Iterator[str]:
    """What is not told of the tokens, where they are told."""
    usage = as_object(response.get("usage"))
    if as_number(usage.get("input_tokens")) is None or as_number(usage.get("output_tokens")) is None:
        return
    for details, count in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
        if as_number(as_object(usage.get(details)).get(count)) is None:
            yield f"{details}.{count}"


def echoed(rule: str, request: Json) -> list[str]:
    """The fields of a request by which a rule of echoes can be seen."""
    return [name for name in ECHOES[rule] if request.get(name) is not None]


def echo_faults(request: Json, response: Json) -> Iterator[tuple[str, str]]:
    """The rules of echoes that a response breaks, and how. What it does not have at all breaks another one."""
    for rule in ECHOES:
        for name in echoed(rule, request):
            if name in response and not _tells(name, request[name], response[name]):
                yield rule, f"has the {name} {shown(response[name])}, the request {shown(request[name])}."


def _tells(name: str, asked: Any, told: Any) -> bool:
    match name:
        case "tools":
            return all(any(_is_tool(each, tool) for each in as_objects(told)) for tool in as_objects(asked))
        case "reasoning":  # OpenAI tells which summary it made, where `auto` was asked for
            return _holds(as_object(asked).get("effort"), as_object(told).get("effort"))
        case _:
            return _holds(asked, told)


def _is_tool(told: Json, tool: Json) -> bool:
    """Whether it is the tool that was declared. A strict one may have got another schema."""
    same = (told.get("type"), told.get("name")) == (tool.get("type"), tool.get("name"))
    return same and (tool.get("strict") is not False or _holds(tool, told))


def _holds(asked: Any, told: Any) -> bool:
    """Whether all that was asked is told; there may be more."""
    if isinstance(asked, dict):
        values = as_object(told)
        return isinstance(told, dict) and all(
            _holds(value, values.get(name)) for name, value in as_object(asked).items()
        )
    if isinstance(asked, list):
        parts, there = as_list(asked), as_list(told)
        return len(parts) == len(there) and all(_holds(*both) for both in zip(parts, there, strict=True))
    if isinstance(asked, bool) or isinstance(told, bool):
        return asked is told
    return asked is None or asked == told
