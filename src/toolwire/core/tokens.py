"""Estimates a request's tokens where the backend cannot count them: about one per four characters."""

from toolwire.core.request import (
    CallEntry,
    Message,
    OtherEntry,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
    ToolPart,
    ToolsEntry,
)

CHARS_PER_TOKEN = 4
"""Characters of an average token."""

TOKENS_PER_ENTRY = 4
"""Tokens of an entry in addition to its text."""

TOKENS_PER_IMAGE = 800
"""Tokens of anything that is not text."""


def estimate_tokens(request: Request) -> int:
    """The estimated tokens of the prompt: instructions, history and tools."""
    chars = len(request.instructions)
    named = request.named_tools if any(tool.deferred for tool in request.tools) else ()
    for tool in request.tools:
        if tool.deferred and (tool.namespace, tool.name) not in named:
            continue
        chars += len(tool.name) + len(tool.description) + len(tool.parameters or b"") + len(tool.format or b"")
    chars += sum(len(tool.raw) for tool in request.hosted_tools)
    tokens = chars // CHARS_PER_TOKEN
    for entry in request.entries:
        chars = images = 0
        match entry:
            case Message(_, parts) | ResultEntry(_, parts):
                texts = [part.text for part in parts if isinstance(part, TextPart | RefusalPart)]
                tools = [part.name for part in parts if isinstance(part, ToolPart)]
                chars, images = sum(map(len, (*texts, *tools))), len(parts) - len(texts) - len(tools)
            case CallEntry():
                chars = len(entry.name) + len(entry.arguments)
            case ReasoningEntry():
                chars = sum(map(len, entry.summary + entry.content))
            case OtherEntry():
                chars = len(entry.raw)
            case ToolsEntry():
                pass  # its tools are counted with the others
        tokens += TOKENS_PER_ENTRY + chars // CHARS_PER_TOKEN + TOKENS_PER_IMAGE * images
    return tokens
