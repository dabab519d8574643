"""Estimates a request's tokens where the backend cannot count them: about one for four characters."""

from toolwire.core.request import (
    CallEntry,
    Entry,
    Message,
    OtherEntry,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
    ToolsEntry,
)

CHARS_PER_TOKEN = 4
"""Characters of an average token."""

TOKENS_PER_ENTRY = 4
"""Tokens that an entry costs beside its text."""

TOKENS_PER_IMAGE = 800
"""Tokens of anything that is not text."""


def estimated_tokens(request: Request) -> int:
    """The estimated tokens of the prompt: instructions, history and tools."""
    chars = len(request.instructions)
    for tool in request.tools:
        chars += len(tool.name) + len(tool.description) + len(tool.parameters or b"") + len(tool.format or b"")
    chars += sum(len(tool.raw) for tool in request.hosted_tools)
    return chars // CHARS_PER_TOKEN + sum(_tokens(entry) for entry in request.entries)


def _tokens(entry: Entry) -> int:
    match entry:
        case Message():
            return TOKENS_PER_ENTRY + _parts(entry.parts)
        case ResultEntry():
            return TOKENS_PER_ENTRY + _parts(entry.parts)
        case CallEntry():
            return TOKENS_PER_ENTRY + (len(entry.name) + len(entry.arguments)) // CHARS_PER_TOKEN
        case ReasoningEntry():
            return TOKENS_PER_ENTRY + sum(map(len, entry.summary + entry.content)) // CHARS_PER_TOKEN
        case OtherEntry():
            return TOKENS_PER_ENTRY + len(entry.raw) // CHARS_PER_TOKEN
        case ToolsEntry():
            return TOKENS_PER_ENTRY  # its tools are counted with the others


def _parts(parts: tuple[Part, ...]) -> int:
    texts = [part.text for part in parts if isinstance(part, TextPart | RefusalPart)]
    return sum(map(len, texts)) // CHARS_PER_TOKEN + TOKENS_PER_IMAGE * (len(parts) - len(texts))
