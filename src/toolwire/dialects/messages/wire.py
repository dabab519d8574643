"""The fields of a Messages request that are decoded. Every optional field may also be null."""

import msgspec

from toolwire.core.raw import Maybe


class Source(msgspec.Struct, gc=False):
    """The source of an image or a document."""

    type: str = ""
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class Block(msgspec.Struct, gc=False):
    """A content block of any type."""

    type: str
    text: str | None = None
    source: Maybe = msgspec.UNSET
    title: str | None = None
    id: str | None = None
    name: str | None = None
    input: Maybe = msgspec.UNSET
    tool_use_id: str | None = None
    content: Maybe = msgspec.UNSET
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: Maybe = msgspec.UNSET
    tool_name: str | None = None


class FoundTools(msgspec.Struct, gc=False):
    """The result of a search for tools, or its error."""

    tool_references: list[Block] = []
    error_code: str | None = None
    error_message: str | None = None


class Metadata(msgspec.Struct, gc=False):
    """The `metadata` of a request."""

    user_id: str | None = None


class Thinking(msgspec.Struct, gc=False):
    """The `thinking` setting of a request."""

    type: str = "enabled"
    budget_tokens: int | None = None


class Format(msgspec.Struct, gc=False):
    """The schema of structured output."""

    type: str = ""
    schema: Maybe = msgspec.UNSET


class OutputConfig(msgspec.Struct, gc=False):
    """The `output_config` of a request."""

    effort: str | None = None
    format: Format | None = None


class MessageParam(msgspec.Struct, gc=False):
    """A message. A system message may set the effort, and may apply to one turn only (`clear_at`)."""

    role: str
    content: msgspec.Raw
    output_config: OutputConfig | None = None
    clear_at: str | None = None


class ToolParam(msgspec.Struct, gc=False):
    """The declaration of a tool."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Maybe = msgspec.UNSET
    strict: bool | None = None
    cache_control: Maybe = msgspec.UNSET
    defer_loading: bool | None = None


class ToolChoiceParam(msgspec.Struct, gc=False):
    """The `tool_choice` of a request."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Body(msgspec.Struct, gc=False):
    """The whole request. Other fields are passed on unchanged."""

    model: str | None = None
    messages: Maybe = msgspec.UNSET
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    stream: bool | None = None
    tools: Maybe = msgspec.UNSET
    tool_choice: ToolChoiceParam | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    n: int | None = None
    thread: Maybe = msgspec.UNSET
