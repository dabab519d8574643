"""The fields of a Responses request that are decoded. Every optional field may also be null."""

import msgspec

from toolwire.core.raw import Maybe


class Format(msgspec.Struct, gc=False):
    """The `text.format` of a request."""

    type: str
    name: str | None = None
    schema: Maybe = msgspec.UNSET
    description: str | None = None
    strict: bool | None = None


class TextParam(msgspec.Struct, gc=False):
    """The `text` settings of a request."""

    format: Format | None = None
    verbosity: str | None = None


class ReasoningParam(msgspec.Struct, gc=False):
    """The `reasoning` settings of a request."""

    effort: str | None = None
    summary: str | None = None


class ConversationParam(msgspec.Struct, gc=False):
    """A `conversation` that is given as an object."""

    id: str


class Body(msgspec.Struct, gc=False):
    """A request. Other fields are passed on to a Responses backend, and dropped with a note for any other backend."""

    model: str | None = None
    input: Maybe = msgspec.UNSET
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationParam | str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    generate: bool | None = None
    n: int | None = None
    tools: Maybe = msgspec.UNSET
    tool_choice: Maybe = msgspec.UNSET
    parallel_tool_calls: bool | None = None
    text: TextParam | None = None
    reasoning: ReasoningParam | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class Part(msgspec.Struct, gc=False):
    """One part of a message's or an output's content, of any type."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: str | None = None
    input_audio: Maybe = msgspec.UNSET


class InputItem(msgspec.Struct, gc=False):
    """Any input item. Its type determines which fields it has."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    id: str | None = None
    call_id: str | None = None
    tool_call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Maybe = msgspec.UNSET
    input: Maybe = msgspec.UNSET
    output: Maybe = msgspec.UNSET
    tools: Maybe = msgspec.UNSET
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class ItemType(msgspec.Struct, gc=False):
    """An item of which only the type is decoded."""

    type: str = ""


decode_item_type = msgspec.json.Decoder(ItemType).decode


class ToolDeclaration(msgspec.Struct, gc=False):
    """The declaration of a tool or of a namespace of tools."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: Maybe = msgspec.UNSET
    strict: bool | None = None
    format: Maybe = msgspec.UNSET
    tools: list[msgspec.Raw] | None = None
    execution: str | None = None
    defer_loading: bool | None = None


class ToolChoiceParam(msgspec.Struct, gc=False):
    """A `tool_choice` that is an object."""

    type: str | None = None
    name: str | None = None
    mode: str = "auto"
    tools: list[ToolDeclaration] | None = None


class ToolOutput(msgspec.Struct, gc=False):
    """One result in a submit_tool_outputs request."""

    tool_call_id: str | None = None
    call_id: str | None = None
    output: Maybe = msgspec.UNSET


class ToolOutputs(msgspec.Struct, gc=False):
    """The body of a submit_tool_outputs request."""

    tool_outputs: list[ToolOutput]
    stream: bool | None = None
