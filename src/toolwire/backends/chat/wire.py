"""The parts of the Chat Completions wire format that we read from a server, and nothing else."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from toolwire.core.identity import Fragment

Maybe = msgspec.Raw | msgspec.UnsetType


Word = str | None | msgspec.UnsetType


class OtherWords(msgspec.Struct):
    """Fields that a call should not have, but that mean something in one of some servers.

    Whatever is given there does not fit: the whole chunk is then read by `odd.py`, which knows them all.
    """

    args: None = None
    arguments_chunk: None = None
    argumentsChunk: None = None  # noqa: N815
    call_id: None = None
    call_name: None = None
    callId: None = None  # noqa: N815
    function_name: None = None
    input: None = None
    partial_json: None = None
    tool: None = None
    tool_call_id: None = None
    tool_name: None = None
    toolCallId: None = None  # noqa: N815


class Function(OtherWords):
    name: Word = msgspec.UNSET
    arguments: Maybe = msgspec.UNSET
    id: None = None


class ToolCall(OtherWords):
    index: int | None = None
    id: Word = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType | None = msgspec.UNSET
    function: Function | None = None
    extra_content: Maybe = msgspec.UNSET
    arguments: None = None
    custom: None = None
    item_id: None = None
    name: None = None
    tool_call_index: None = None
    toolCallIndex: None = None  # noqa: N815


class Message(msgspec.Struct):
    """A delta, or a whole message."""

    role: Word = msgspec.UNSET
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: Maybe = msgspec.UNSET
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    toolCalls: None = None  # noqa: N815
    functionCall: None = None  # noqa: N815


class OddMessage(Message):
    """What a delta and a message say in other words or types than they should."""

    fragments: Sequence[Fragment] = ()
    thinking: str = ""
    """Reasoning among the parts of the content, which has no field of its own."""


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Message | None = None
    message: Message | None = None
    finish_reason: str | None = None
    error: Any = None
    usage: "TokenUsage | None" = None


class Details(msgspec.Struct):
    cached_tokens: float | None = None
    cache_write_tokens: float | None = None
    reasoning_tokens: float | None = None


class TokenUsage(msgspec.Struct):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    prompt_cache_hit_tokens: float | None = None


class Chunk(msgspec.Struct):
    """A chunk of a stream, or a whole completion."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: TokenUsage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None
