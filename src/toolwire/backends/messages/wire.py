"""The parts of the Messages wire format that we read from a server, and nothing else."""

from typing import Any

import msgspec


class TokenUsage(msgspec.Struct, gc=False):
    """The token counts of a reply."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    cache_read_input_tokens: float | None = None
    cache_creation_input_tokens: float | None = None
    output_tokens_details: dict[str, Any] | None = None


class Block(msgspec.Struct, gc=False):
    """A content block of any type."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    citations: list[Any] | None = None
    tool_use_id: Any = None


class Delta(msgspec.Struct, gc=False):
    """A delta of any type, of a block or of the message."""

    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: Any = None


class ReplyMessage(msgspec.Struct, gc=False):
    """A message, whole or as it starts."""

    id: str | None = None
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    stop_details: Any = None
    usage: TokenUsage | None = None
    error: Any = None


class StreamEvent(msgspec.Struct, gc=False):
    """Any event of a stream. Its type determines which fields it has."""

    type: str = ""
    index: int = 0
    delta: Delta | None = None
    content_block: Block | None = None
    message: ReplyMessage | None = None
    usage: TokenUsage | None = None
    error: Any = None
