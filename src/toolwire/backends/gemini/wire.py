"""The parts of the Gemini API's wire format that we read from a server, and nothing else."""

from typing import Any

import msgspec

from toolwire.core.raw import Maybe


class PartialArgument(msgspec.Struct, rename="camel", gc=False):
    """A piece of streamed arguments: the value, or a fragment of the string, at a path."""

    json_path: str = ""
    string_value: str | None = None
    number_value: Maybe = msgspec.UNSET
    bool_value: bool | None = None
    null_value: Maybe = msgspec.UNSET
    will_continue: bool = False


class FunctionCall(msgspec.Struct, rename="camel", gc=False):
    """A call, or a fragment of one whose arguments are streamed."""

    name: str | None = None
    args: Maybe = msgspec.UNSET
    id: str | None = None
    partial_args: list[PartialArgument] | None = None
    will_continue: bool = False


class Part(msgspec.Struct, rename="camel", gc=False):
    """A part of a content. One with other fields is passed on as it is, or dropped."""

    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(msgspec.Struct, gc=False):
    """What a candidate says."""

    parts: list[Part] | None = None


class Candidate(msgspec.Struct, rename="camel", gc=False):
    """One answer."""

    index: int = 0
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    grounding_metadata: Maybe = msgspec.UNSET
    citation_metadata: Maybe = msgspec.UNSET


class PromptFeedback(msgspec.Struct, rename="camel", gc=False):
    """Why a prompt was refused."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class TokenUsage(msgspec.Struct, rename="camel", gc=False):
    """The token counts of a reply so far."""

    prompt_token_count: float | None = None
    tool_use_prompt_token_count: float | None = None
    cached_content_token_count: float | None = None
    candidates_token_count: float | None = None
    thoughts_token_count: float | None = None


class Chunk(msgspec.Struct, rename="camel", gc=False):
    """A chunk of a stream, or a whole reply."""

    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: TokenUsage | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None
