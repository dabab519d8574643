"""The fields of a `generateContent` request that are decoded. Every optional field may also be null.

Google reads proto3 JSON: every field may be written in camelCase or in snake_case, and some clients mix both. `camel`
renames the fields of one object, never those of the objects in it, which may be data.
"""

import re

import msgspec

from toolwire.core.raw import Maybe, fields_of, list_of, to_raw
from toolwire.dialects.reading import begins_with

_snake_key = re.compile(rb'"[a-zA-Z0-9]+_[a-zA-Z0-9_]*"\s*:').search
_underscore = re.compile("_([a-z0-9])")


def camel(raw: msgspec.Raw) -> msgspec.Raw:
    """A JSON object with its own fields in camelCase; any other value as it is."""
    if not begins_with(raw, b"{") or not _snake_key(raw):
        return raw
    return to_raw({camel_name(name): value for name, value in fields_of(raw).items()})


def camel_name(name: str) -> str:
    """The name of a field in camelCase."""
    return _underscore.sub(lambda found: found[1].upper(), name) if "_" in name else name


def listed(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """The values of a repeated field. Google also takes one value without a list."""
    return [raw] if begins_with(raw, b"{") else list_of(raw)


class Blob(msgspec.Struct, gc=False, rename="camel"):
    """Media by its bytes."""

    data: str = ""
    mime_type: str | None = None
    display_name: str | None = None


class FileReference(msgspec.Struct, gc=False, rename="camel"):
    """Media by its address."""

    file_uri: str = ""
    mime_type: str | None = None
    display_name: str | None = None


class FunctionCall(msgspec.Struct, gc=False, rename="camel"):
    """A call in the history."""

    name: str
    args: Maybe = msgspec.UNSET
    id: str | None = None


class FunctionResponse(msgspec.Struct, gc=False, rename="camel"):
    """The result of a call."""

    name: str | None = None
    response: Maybe = msgspec.UNSET
    id: str | None = None
    parts: Maybe = msgspec.UNSET


class Part(msgspec.Struct, gc=False, rename="camel"):
    """A part of a content, of any kind."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: Maybe = msgspec.UNSET
    file_data: Maybe = msgspec.UNSET
    function_call: Maybe = msgspec.UNSET
    function_response: Maybe = msgspec.UNSET


class Content(msgspec.Struct, gc=False):
    """One message, or a part of one."""

    role: str | None = None
    parts: Maybe = msgspec.UNSET


class FunctionDeclaration(msgspec.Struct, gc=False, rename="camel"):
    """The declaration of a tool."""

    name: str | None = None
    description: str | None = None
    parameters: Maybe = msgspec.UNSET
    parameters_json_schema: Maybe = msgspec.UNSET


class FunctionCallingConfig(msgspec.Struct, gc=False, rename="camel"):
    """Whether the model may call tools, and which."""

    mode: str | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(msgspec.Struct, gc=False, rename="camel"):
    """The `toolConfig` of a request."""

    function_calling_config: Maybe = msgspec.UNSET


class ThinkingConfig(msgspec.Struct, gc=False, rename="camel"):
    """How the model thinks, and whether it shows its thoughts."""

    include_thoughts: bool | None = None
    thinking_budget: int | None = None
    thinking_level: str | None = None


class GenerationConfig(msgspec.Struct, gc=False, rename="camel"):
    """How the model answers. Other fields are passed on unchanged."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    candidate_count: int | None = None
    response_mime_type: str | None = None
    response_schema: Maybe = msgspec.UNSET
    response_json_schema: Maybe = msgspec.UNSET
    thinking_config: Maybe = msgspec.UNSET


class Body(msgspec.Struct, gc=False, rename="camel"):
    """The whole request. Other fields are passed on unchanged."""

    contents: Maybe = msgspec.UNSET
    system_instruction: Maybe = msgspec.UNSET
    tools: Maybe = msgspec.UNSET
    tool_config: Maybe = msgspec.UNSET
    generation_config: Maybe = msgspec.UNSET
    service_tier: str | None = None
    model: str | None = None
    """Usually in the path."""
    stream: bool | None = None
    """Usually in the path."""
