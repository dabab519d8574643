"""The parts of the Chat Completions wire format that we read from a server, and nothing else."""

from typing import Any

import msgspec

Maybe = msgspec.Raw | msgspec.UnsetType


Word = str | None | msgspec.UnsetType


class Function(msgspec.Struct):
    name: Word = msgspec.UNSET
    arguments: Maybe = msgspec.UNSET


class Custom(msgspec.Struct):
    name: str | None = None
    input: Maybe = msgspec.UNSET


class ToolCall(msgspec.Struct):
    index: int | None = None
    id: Word = msgspec.UNSET
    type: Word = msgspec.UNSET
    function: Function | None = None
    custom: Custom | None = None
    name: str | None = None
    arguments: Maybe = msgspec.UNSET
    extra_content: Maybe = msgspec.UNSET


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


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Message | None = None
    message: Message | None = None
    finish_reason: str | None = None
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
