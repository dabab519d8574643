"""The parts of a Messages request that we read. Every optional field may also be null."""

import msgspec

from toolwire.dialects.reading import Maybe

Raw = msgspec.Raw


class Source(msgspec.Struct):
    type: str = ""
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


class Block(msgspec.Struct):
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


class Message(msgspec.Struct):
    role: str
    content: Raw


class Metadata(msgspec.Struct):
    user_id: str | None = None


class Thinking(msgspec.Struct):
    type: str = "enabled"
    budget_tokens: int | None = None


class Format(msgspec.Struct):
    type: str = ""
    schema: Maybe = msgspec.UNSET


class OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: Format | None = None


class Tool(msgspec.Struct):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Maybe = msgspec.UNSET
    strict: bool | None = None
    cache_control: Maybe = msgspec.UNSET


class Choice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Body(msgspec.Struct):
    model: str | None = None
    messages: Maybe = msgspec.UNSET
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    stream: bool | None = None
    tools: Maybe = msgspec.UNSET
    tool_choice: Choice | None = None
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
