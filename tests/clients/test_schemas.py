"""Every frame of every situation fits the types of the installed SDK, made strict, and OpenAI's published schema."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from jsonschema import Draft202012Validator
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from tests.clients.turns import TIME, TURNS, WEATHER
from tests.support.fold import fold_chat
from tests.support.gateway import read_sse
from tests.support.schemas import HAS_SPECS, OPENAI, SPECS, component, faults, load
from toolwire.backends.demo import MODELS

TOOLS = {"tools": [WEATHER, TIME, {"type": "custom", "custom": {"name": "run"}}]}
FUNCTIONS = {"functions": [WEATHER["function"]]}
DEMOS = [model for model in MODELS if model != "demo-silent"]  # which says nothing for an hour

SITUATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{model: (model, "openai-json", TOOLS) for model in DEMOS},
    **{f"{model}-as-xml": (model, "obsidian-xml", TOOLS) for model in DEMOS},
    **{turn: (f"up/client-{turn}", "openai-json", TOOLS) for turn in TURNS},
    "without-tools": ("demo", "openai-json", {}),
    "functions": ("up/client-one-call", "openai-json", FUNCTIONS),
    "nobody": ("nobody", "openai-json", {}),
}

# The SDK's types let nearly everything be left out. These are always there; of `usage` that holds when it is asked for.
ALWAYS = {
    "ChatCompletionChunk": ["id", "object", "created", "model", "choices", "usage"],
    "Choice": ["index", "finish_reason"],
    "ChatCompletionMessage": ["role", "content", "refusal"],
    "CompletionUsage": ["prompt_tokens_details", "completion_tokens_details"],
}
# What the SDK's types do not know: the vendors' reasoning, and custom calls in a stream.
EXTRA = {
    "ChoiceDelta": {"reasoning_content": {"type": "string"}},
    "ChatCompletionMessage": {"reasoning_content": {"type": "string"}},
    "ChoiceDeltaToolCall": {
        "type": {"enum": ["function", "custom"]},
        "custom": {"properties": {"name": {"type": "string"}, "input": {"type": "string"}}, "required": ["input"]},
    },
}


class Said(msgspec.Struct):
    """What one situation brings: a stream, a plain answer, or errors in their place."""

    frames: list[tuple[str, Any]] = []
    plain: Any = None
    errors: list[Any] = []

    @property
    def chunks(self) -> Iterator[Any]:
        return (value for kind, value in self.frames if kind == "data" and value != "[DONE]" and "error" not in value)


@pytest.fixture(scope="module", params=SITUATIONS)
def said(request: pytest.FixtureRequest, base_url: str, http: httpx.Client) -> Said:
    model, mode, tools = SITUATIONS[request.param]
    url, headers = f"{base_url}/chat/completions", {"x-proxy-output-mode": mode}
    body = {"model": model, "messages": [{"role": "user", "content": "The weather in Paris?"}], **tools}
    said = Said()
    streamed = http.post(url, headers=headers, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    if streamed.status_code == 200:
        said.frames = list(read_sse(streamed))
        said.errors += [value for _, value in said.frames if "error" in value and isinstance(value, dict)]
    else:
        said.errors.append(streamed.json())
    plain = http.post(url, headers=headers, json=body)
    if plain.status_code == 200:
        said.plain = plain.json()
    else:
        said.errors.append(plain.json())
    return said


def strict(type: Any) -> Draft202012Validator:
    """A validator for an SDK type that also refuses keys it does not know."""
    schema = TypeAdapter(type).json_schema()
    for name, part in {schema["title"]: schema, **schema["$defs"]}.items():
        if "properties" in part:
            part["properties"] |= EXTRA.get(name, {})
            part["required"] = [*part.get("required", ()), *ALWAYS.get(name, ())]
            part["additionalProperties"] = False
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    if not HAS_SPECS:
        pytest.skip(f"needs {SPECS}")
    document = load(OPENAI)
    kinds = document["components"]["schemas"]["ChatCompletionMessageToolCallChunk"]["properties"]["type"]
    kinds["enum"].append("custom")
    return document


def test_chunks_fit_the_sdk(said: Said):
    assert not faults(strict(ChatCompletionChunk), said.chunks)


def test_chunks_fit_the_published_schema(said: Said, published: dict[str, Any]):
    assert not faults(component(published, "CreateChatCompletionStreamResponse"), said.chunks)


def test_plain_answers_fit_the_sdk(said: Said):
    assert not faults(strict(ChatCompletion), [said.plain] if said.plain else [])


def test_plain_answers_fit_the_published_schema(said: Said, published: dict[str, Any]):
    assert not faults(component(published, "CreateChatCompletionResponse"), [said.plain] if said.plain else [])


def test_errors_have_exactly_the_known_fields(said: Said):
    assert all(set(error["error"]) == {"message", "type", "param", "code"} for error in said.errors)


def test_errors_fit_the_published_schema(said: Said, published: dict[str, Any]):
    assert not faults(component(published, "ErrorResponse"), said.errors)


def test_frames_keep_the_order_of_a_stream(said: Said):
    if said.frames:
        fold_chat(said.frames)


def test_without_an_error_there_are_both_answers(said: Said):
    assert said.errors or (said.frames and said.plain)
