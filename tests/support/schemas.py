"""Responses objects and stream events held against the types of the installed `openai` package, made strict.

The types let nearly everything be left out or be null. The tables here say what is always there and what may be null,
which is the sum of what OpenAI and Open Responses ask for: a client of either finds every field that it reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

Json = dict[str, Any]
Table = Mapping[str, Any]
"""By the name of a type, something about its fields."""

ERROR: Json = {
    "type": "object",
    "properties": {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    },
    "required": ["message", "type", "param", "code"],
    "additionalProperties": False,
}
"""What is told of an error, on Chat and on Responses."""

# Fields that the types let be left out, and that are always there.
ALWAYS: Table = {
    "Response": (
        *("background", "completed_at", "error", "frequency_penalty", "incomplete_details", "instructions"),
        *("max_output_tokens", "max_tool_calls", "metadata", "presence_penalty", "previous_response_id"),
        *("prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "status", "store", "temperature"),
        *("text", "top_logprobs", "top_p", "truncation", "usage"),
    ),
    "FunctionTool": ("description", "parameters", "strict"),
    "IncompleteDetails": ("reason",),
    "Reasoning": ("effort", "summary"),
    "ResponseCustomToolCall": ("id", "status"),
    "ResponseErrorEvent": ("code", "error", "param"),
    "ResponseFormatTextJSONSchemaConfig": ("description", "strict"),
    "ResponseFunctionCallArgumentsDoneEvent": ("name",),
    "ResponseFunctionToolCall": ("id", "status"),
    "ResponseFunctionToolCallOutputItem": ("call_id",),
    "ResponseOutputText": ("logprobs",),
    "ResponseOutputTextAnnotationAddedEvent": ("annotation",),
    "ResponseTextConfig": ("format",),
    "ResponseToolSearchCall": ("call_id",),
}
# Fields that the types lack, or are looser about than clients are.
FIELDS: Table = {
    "Response": {
        "created_at": {"type": "integer"},
        "completed_at": {"type": ["integer", "null"]},
        "frequency_penalty": {"type": "number"},
        "instructions": {"type": ["string", "null"]},
        "presence_penalty": {"type": "number"},
        "safety_identifier": {"type": ["string", "null"], "maxLength": 64},
        "store": {"type": "boolean"},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "ResponseCustomToolCall": {"status": {"enum": ["in_progress", "completed", "incomplete"]}},
    "ResponseErrorEvent": {"error": ERROR},
    "ResponseFunctionCallArgumentsDoneEvent": {"name": {"type": "string"}},
}
# The fields that may be null of those that may be left out, for the objects that we write ourselves.
NULLABLE: Table = {
    "Response": (
        *("completed_at", "conversation", "error", "incomplete_details", "instructions", "max_output_tokens"),
        *("max_tool_calls", "metadata", "moderation", "previous_response_id", "prompt", "prompt_cache_key"),
        *("prompt_cache_retention", "reasoning", "safety_identifier", "usage"),
    ),
    "CustomTool": ("allowed_callers",),
    "FunctionTool": ("allowed_callers", "description", "output_schema", "parameters", "strict"),
    "IncompleteDetails": (),
    "Reasoning": ("context", "effort", "generate_summary", "summary"),
    "ResponseCompactionItem": (),
    "ResponseCustomToolCall": ("caller",),
    "ResponseErrorEvent": ("code", "param"),
    "ResponseFormatTextJSONSchemaConfig": ("description",),
    "ResponseFunctionToolCall": ("caller",),
    "ResponseFunctionToolCallOutputItem": ("caller",),
    "ResponseOutputMessage": (),
    "ResponseOutputText": (),
    "ResponseReasoningItem": (),
    "ResponseReasoningSummaryPartDoneEvent": (),
    "ResponseTextConfig": (),
}


def event_errors(data: Json) -> list[str]:
    """What is wrong with one stream event, a sentence for each fault; the type is chosen by `type`."""
    known = events().get(str(data.get("type")))
    return faults(validator(known), [data]) if known else [f"there is no event {str(data.get('type'))!r}"]


def response_errors(data: Json) -> list[str]:
    """What is wrong with one response object, a sentence for each fault."""
    return faults(validator(Response), [data])


@lru_cache
def events() -> dict[str, type[BaseModel]]:
    """The events of the package by `type`."""
    return {name: model for model in models(ResponseStreamEvent) for name in type_names(model)}


@lru_cache
def validator(type: Any) -> Draft202012Validator:
    """A validator for a type of Responses. Fields that the type does not know may be there, as servers add some."""
    return Draft202012Validator(described(type, ALWAYS, FIELDS, NULLABLE))


def described(type: Any, always: Table, fields: Table, nullable: Table) -> Json:
    """The JSON schema of a package's type, with the fields of these tables."""
    schema = TypeAdapter(type).json_schema()
    for name, part in objects(schema):
        known: Json = part["properties"]
        for key in set(known) - {*part.get("required", ()), *nullable.get(name, known)}:
            known[key] = without_null(known[key])
        known |= fields.get(name, {})
        part["required"] = [*part.get("required", ()), *(key for key in always.get(name, ()) if key in known)]
    return schema


def objects(schema: Json) -> Iterator[tuple[str, Json]]:
    """The objects that a schema describes, by the names of their types."""
    return ((part["title"], part) for part in (schema, *schema.get("$defs", {}).values()) if "properties" in part)


def without_null(schema: Json) -> Json:
    others = [branch for branch in schema.get("anyOf", ()) if branch != {"type": "null"}]
    return {**schema, "anyOf": others} if others else schema


def models(union: Any) -> list[type[BaseModel]]:
    """The members of a union of the package that are objects, however it is wrapped."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        return [union]
    return [model for member in get_args(union) for model in models(member)]


def type_names(union: Any) -> list[str]:
    """What `type` may be in the members of a union of the package."""
    return [name for model in models(union) for name in get_args(model.model_fields["type"].annotation)]


def faults(validator: Draft202012Validator, values: Iterable[Any]) -> list[str]:
    """Where the values do not fit, and why."""
    errors = [inner for value in values for error in validator.iter_errors(value) for inner in explained(error)]
    return [f"{error.json_path}: {error.message}" for error in errors]


def explained(error: ValidationError) -> list[ValidationError]:
    """In place of "fits no branch of the union": what the branch says that is meant by the value's `type`."""
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.relative_schema_path[0], []).append(inner)
    meant = [branch for branch in branches.values() if not any(speaks_of_another_type(inner) for inner in branch)]
    return [leaf for inner in meant[0] for leaf in explained(inner)] if len(meant) == 1 else [error]


def speaks_of_another_type(error: ValidationError) -> bool:
    return error.validator in ("type", "enum", "const") and list(error.relative_path) in ([], ["type"])
