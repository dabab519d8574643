"""Requests and answers of Chat and Messages, and requests of Responses, held against the published types.

The types of the installed `openai` and `anthropic` packages judge, made strict: a key they do not know is a fault, as
it is at the services. Responses answers have `schemas`, which this file follows.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from anthropic.types import ErrorResponse, Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from jsonschema import Draft202012Validator
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from tests.support.google_shapes import google_error_faults
from tests.support.schemas import ERROR, described, faults, models, objects, type_names
from tests.support.scripts import Name

Json = dict[str, Any]

# The types let nearly everything be left out. These are always there; of `usage` that holds when it is asked for.
ALWAYS: dict[str, list[str]] = {
    "ChatCompletionChunk": ["id", "object", "created", "model", "choices"],
    "Choice": ["index", "finish_reason"],
    "ChoiceDeltaToolCallFunction": ["arguments"],
    "ChoiceLogprobs": ["content", "refusal"],
    "ChatCompletionMessage": ["role", "content", "refusal"],
    "CompletionUsage": ["prompt_tokens_details", "completion_tokens_details"],
    "Message": ["stop_reason", "stop_sequence", "container", "diagnostics", "stop_details"],
    "Delta": ["stop_reason", "stop_sequence", "container", "stop_details"],
    "Usage": [
        "cache_creation",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "inference_geo",
        "output_tokens_details",
        "server_tool_use",
        "service_tier",
        "speed",
    ],
    "MessageDeltaUsage": ["output_tokens_details", "server_tool_use"],
}
# What the types do not know: the vendors' reasoning, custom calls in a stream, and fields of items that the service
# sends itself and takes back.
EXTRA: dict[str, Json] = {
    "ChoiceDelta": {"reasoning_content": {"type": "string"}},
    "ChatCompletionMessage": {"reasoning_content": {"type": "string"}},
    "ChoiceDeltaToolCall": {
        "type": {"enum": ["function", "custom"]},
        "custom": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        },
    },
    "Message": {"id": {"type": "string"}},
    "ResponseCustomToolCallParam": {"status": {"type": "string"}},
    # No longer in the types, and still taken for models that sample.
    "MessageCreateParamsNonStreaming": {name: {"type": "number"} for name in ("temperature", "top_p", "top_k")},
}
# What may be null of that which may be left out of an answer of Chat.
NULLABLE: dict[str, list[str]] = {
    "ChatCompletion": ["metadata", "moderation", "service_tier"],
    "ChatCompletionChunk": ["moderation", "service_tier", "usage"],
    "ChatCompletionMessage": ["audio", "content", "refusal"],
    "Choice": ["finish_reason", "logprobs"],
    "ChoiceDelta": ["content", "refusal"],
    "ChoiceDeltaFunctionCall": [],
    "ChoiceDeltaToolCall": [],
    "ChoiceDeltaToolCallFunction": [],
    "CompletionTokensDetails": [],
    "CompletionUsage": [],
    "PromptTokensDetails": [],
}
# What the types ask for and the services do without: a message of the model needs neither id nor annotations.
LENIENT: dict[str, list[str]] = {
    "ResponseOutputMessageParam": ["role", "content"],
    "ResponseOutputTextParam": ["type", "text"],
}
REQUESTS: dict[Name, Any] = {
    "chat": CompletionCreateParamsNonStreaming,
    "responses": ResponseCreateParamsNonStreaming,
    "messages": MessageCreateParamsNonStreaming,
}


@lru_cache
def strict(type: Any) -> Draft202012Validator:
    """A validator for a type of a package that also refuses keys the type does not know."""
    schema = described(type, ALWAYS, EXTRA, NULLABLE)
    for name, part in objects(schema):
        part["required"] = LENIENT.get(name) or part["required"]
        part["additionalProperties"] = False
    return Draft202012Validator(schema)


def request_errors(kind: Name, body: Json) -> list[str]:
    """What the types say against a request of ours; whether it streams is no matter of shape."""
    shape = {name: value for name, value in body.items() if name != "stream"}
    return faults(strict(REQUESTS[kind]), [shape])


def chunk_errors(chunks: Iterable[Json]) -> list[str]:
    return faults(strict(ChatCompletionChunk), map(_without_signatures, chunks))


def completion_errors(body: Json) -> list[str]:
    return faults(strict(ChatCompletion), [_without_signatures(body)])


def _without_signatures(value: Any) -> Any:
    """A completion without the field in which Google's endpoint has the signature of a call."""
    if isinstance(value, list):
        return [_without_signatures(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_signatures(each) for name, each in value.items() if name != "extra_content"}
    return value


def message_errors(body: Json) -> list[str]:
    return faults(strict(Message), [body])


def message_event_errors(data: Json) -> list[str]:
    """What is wrong with one event of a Messages stream; `ping` and `error` are no part of the union."""
    type = str(data.get("type"))
    if type == "ping":
        return [] if data == {"type": "ping"} else [f"a ping has more than its type: {data}"]
    if type == "error":
        return faults(strict(ErrorResponse), [data])
    known = message_events().get(type)
    return faults(strict(known), [data]) if known is not None else [f"there is no event {type!r}"]


@lru_cache
def message_events() -> dict[str, Any]:
    return {name: model for model in models(RawMessageStreamEvent) for name in type_names(model)}


def error_errors(dialect: Name, body: Json) -> list[str]:
    """What is wrong with an error object."""
    if dialect == "gemini":
        return google_error_faults(body)
    if dialect == "messages":
        match body:
            case {"error": {"type": "request_too_large", **other}}:  # which the service says and its types lack
                body = {**body, "error": {"type": "invalid_request_error", **other}}
        return faults(strict(ErrorResponse), [body])
    return faults(Draft202012Validator(_ERROR_BODY), [body])


_ERROR_BODY: Json = {"properties": {"error": ERROR}, "required": ["error"], "additionalProperties": False}
