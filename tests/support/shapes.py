"""Requests and answers of Chat and Messages, and requests of Responses, held against the published types.

The types of the installed `openai` and `anthropic` packages judge, made strict: a key they do not know is a fault, as
it is at the services. Responses answers have `schemas`, which this file follows.
"""

import json
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
from pydantic import TypeAdapter

from tests.support.schemas import SPECS, faults, models, type_names
from tests.support.scripts import Name

Json = dict[str, Any]

# The types let nearly everything be left out. These are always there; of `usage` that holds when it is asked for.
ALWAYS: dict[str, list[str]] = {
    "ChatCompletionChunk": ["id", "object", "created", "model", "choices"],
    "Choice": ["index", "finish_reason"],
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
        "custom": {"properties": {"name": {"type": "string"}, "input": {"type": "string"}}, "required": ["input"]},
    },
    "Message": {"id": {"type": "string"}},
    "ResponseCustomToolCallParam": {"status": {"type": "string"}},
    # No longer in the types, and still taken for models that sample.
    "MessageCreateParamsNonStreaming": {name: {"type": "number"} for name in ("temperature", "top_p", "top_k")},
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
    schema = TypeAdapter(type).json_schema()
    for name, part in {schema["title"]: schema, **schema.get("$defs", {})}.items():
        if "properties" not in part:
            continue
        known: Json = part["properties"]
        known |= EXTRA.get(name, {})
        always = [key for key in ALWAYS.get(name, ()) if key in known]
        part["required"] = LENIENT.get(name) or [*part.get("required", ()), *always]
        part.setdefault("additionalProperties", False)
    return Draft202012Validator(schema)


def request_errors(kind: Name, body: Json) -> list[str]:
    """What the types say against a request of ours; whether it streams is no matter of shape."""
    shape = {name: value for name, value in body.items() if name != "stream"}
    return faults(strict(REQUESTS[kind]), [shape])


def chunk_errors(chunks: Iterable[Json]) -> list[str]:
    return faults(strict(ChatCompletionChunk), chunks)


def completion_errors(body: Json) -> list[str]:
    return faults(strict(ChatCompletion), [body])


def message_errors(body: Json) -> list[str]:
    return faults(strict(Message), [body])


def message_event_errors(data: Json) -> list[str]:
    """What is wrong with one event of a Messages stream; `ping` and `error` are no part of the union."""
    if data["type"] == "ping":
        return [] if data == {"type": "ping"} else [f"a ping has more than its type: {data}"]
    if data["type"] == "error":
        return faults(strict(ErrorResponse), [data])
    known = message_events().get(data["type"])
    return faults(strict(known), [data]) if known is not None else [f"there is no event {data['type']!r}"]


@lru_cache
def message_events() -> dict[str, Any]:
    return {name: model for model in models(RawMessageStreamEvent) for name in type_names(model)}


def error_errors(dialect: Name, body: Json) -> list[str]:
    """What is wrong with an error object."""
    if dialect == "messages":
        if body.get("error", {}).get("type") == "request_too_large":  # which the service says and its types lack
            body = {**body, "error": {**body["error"], "type": "invalid_request_error"}}
        return faults(strict(ErrorResponse), [body])
    keys = {"message", "type", "param", "code"}
    if set(body) != {"error"} or set(body["error"]) != keys:
        return [f"an error object has just {sorted(keys)}: {body}"]
    return []


# The documents beside the repository, for those who have them

DOCUMENTS = {"chat": "openai-chat.schema.json", "messages": "anthropic-messages.schema.json"}
HAS_DOCUMENTS = all((SPECS / name).exists() for name in DOCUMENTS.values())


@lru_cache
def document(dialect: Name, root: str) -> Draft202012Validator:
    """One root of a published document: `ChatCompletion`, `Message`, …"""
    whole = json.loads((SPECS / DOCUMENTS[dialect]).read_bytes())
    return Draft202012Validator({**whole, "$ref": f"#/roots/{root}"})
