"""The fields of a Chat Completions request that are decoded. Every optional field may also be null."""

from typing import Any

import msgspec

from toolwire.core.raw import Maybe
from toolwire.dialects.openai import Audio


class ImageUrl(msgspec.Struct, gc=False):
    """An image by URL."""

    url: str
    detail: str | None = None


class File(msgspec.Struct, gc=False):
    """A file by its bytes or by id."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class ContentPart(msgspec.Struct, gc=False):
    """One part of a message's content, of any type."""

    type: str
    cache_control: Maybe = msgspec.UNSET
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    file: File | None = None
    input_audio: Audio | None = None


class FunctionCall(msgspec.Struct, gc=False):
    """The function of a call, and its arguments in any form."""

    name: str | None = None
    arguments: Maybe = msgspec.UNSET


class CustomCall(msgspec.Struct, gc=False):
    """The custom tool of a call, and its input."""

    name: str = ""
    input: str = ""


class ToolCall(msgspec.Struct, gc=False):
    """A call in an assistant message."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None
    custom: CustomCall | None = None
    arguments: Maybe = msgspec.UNSET
    extra_content: Maybe = msgspec.UNSET
    """Gemini's signature of a call, which must be sent back with it."""


class ChatMessage(msgspec.Struct, gc=False):
    """A message of any role."""

    role: str
    content: str | list[ContentPart | str] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | None = None
    reasoning_content: Maybe = msgspec.UNSET
    reasoning: Maybe = msgspec.UNSET
    reasoning_details: Maybe = msgspec.UNSET
    cache_control: Maybe = msgspec.UNSET
    audio: Maybe = msgspec.UNSET


class NamedTool(msgspec.Struct, gc=False):
    """A tool by name."""

    name: str | None = None


class ToolFields(NamedTool):
    """The declaration of a function or of a custom tool."""

    description: str | None = None
    parameters: Maybe = msgspec.UNSET
    strict: bool | None = None
    format: Maybe = msgspec.UNSET


class ToolDeclaration(ToolFields):
    """A tool: nested under its type as the API documents it, or flat as many clients send it."""

    type: str | None = None
    function: ToolFields | None = None
    custom: ToolFields | None = None
    cache_control: Maybe = msgspec.UNSET


class AllowedTools(msgspec.Struct, gc=False):
    """A tool choice that limits the model to some of the tools."""

    mode: str = "auto"
    tools: list["ToolChoiceParam"] = []


class ToolChoiceParam(NamedTool):
    """A `tool_choice` that is an object, or one tool of its `allowed_tools`; nested or flat."""

    type: str | None = None
    function: NamedTool | None = None
    custom: NamedTool | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchema(msgspec.Struct, gc=False):
    """The schema of structured output."""

    name: str = ""
    schema: Maybe = msgspec.UNSET
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, gc=False):
    """The `response_format` of a request."""

    type: str
    json_schema: JsonSchema | None = None


class StreamOptions(msgspec.Struct, gc=False):
    """The `stream_options` of a request."""

    include_usage: bool | None = None


class Body(msgspec.Struct, gc=False):
    """The whole request. Other fields are passed on unchanged."""

    model: str
    messages: list[ChatMessage] | None = None
    input: Maybe = msgspec.UNSET
    """A Responses field that some clients send; so is `instructions`."""
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Maybe = msgspec.UNSET
    tool_choice: Maybe = msgspec.UNSET
    parallel_tool_calls: bool | None = None
    functions: list[ToolFields] | None = None
    function_call: NamedTool | str | None = None
    response_format: ResponseFormat | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, Any] | None = None


class KnownBody(Body, forbid_unknown_fields=True):
    """A request without other fields. Most are of this type, and are decoded only once."""
