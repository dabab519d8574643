"""The parts of the Chat Completions wire format that we read from a server, and nothing else."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from toolwire.backends.decoder import TokenDetails
from toolwire.core.call_index import Fragment
from toolwire.core.raw import Maybe

OptionalText = str | None | msgspec.UnsetType


class UnexpectedFields(msgspec.Struct, gc=False):
    """Undocumented fields with which some servers describe a call.

    Any value other than null fails to decode, and the whole chunk is then read by `loose.py`, which understands them.
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


class CalledFunction(UnexpectedFields):
    """The function of a call."""

    name: OptionalText = msgspec.UNSET
    arguments: Maybe = msgspec.UNSET
    id: None = None


class ToolCall(UnexpectedFields):
    """A call, or a fragment of one."""

    index: int | None = None
    id: OptionalText = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType | None = msgspec.UNSET
    function: CalledFunction | None = None
    extra_content: Maybe = msgspec.UNSET
    arguments: None = None
    custom: None = None
    item_id: None = None
    name: None = None
    tool_call_index: None = None
    toolCallIndex: None = None  # noqa: N815


class ReplyMessage(msgspec.Struct, gc=False):
    """A delta, or a whole message."""

    role: OptionalText = msgspec.UNSET
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: Maybe = msgspec.UNSET
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None
    toolCalls: None = None  # noqa: N815
    functionCall: None = None  # noqa: N815


class LooseMessage(ReplyMessage):
    """A delta or a message with undocumented fields or types."""

    fragments: Sequence[Fragment] = ()
    thinking: str = ""
    """Reasoning that came among the parts of the content."""


class ReplyChoice(msgspec.Struct, gc=False):
    """One choice of a chunk or a completion."""

    index: int | None = None
    delta: ReplyMessage | None = None
    message: ReplyMessage | None = None
    finish_reason: str | None = None
    error: Any = None
    usage: "TokenUsage | None" = None


class TokenUsage(msgspec.Struct, gc=False):
    """The token counts of a reply."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None
    prompt_cache_hit_tokens: float | None = None


class Chunk(msgspec.Struct, gc=False):
    """A chunk of a stream, or a whole completion."""

    id: str | None = None
    model: str | None = None
    choices: list[ReplyChoice] | None = None
    usage: TokenUsage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None
