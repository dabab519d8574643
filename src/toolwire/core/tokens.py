"""How many tokens a request may have, where nobody counts them: about one for four letters."""

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

LETTERS = 4
"""Letters in a token, roughly."""

PER_ENTRY = 4
"""Tokens that frame an entry."""

PER_IMAGE = 800
"""Tokens of anything that is not text."""


def estimated_tokens(request: Request) -> int:
    """The size of the prompt: instructions, history and tools."""
    letters = len(request.instructions)
    for tool in request.tools:
        letters += len(tool.name) + len(tool.description) + len(tool.parameters or b"") + len(tool.format or b"")
    letters += sum(len(tool.raw) for tool in request.hosted_tools)
    return letters // LETTERS + sum(_tokens(entry) for entry in request.entries)


def _tokens(entry: Entry) -> int:
    match entry:
        case Message():
            return PER_ENTRY + _parts(entry.parts)
        case ResultEntry():
            return PER_ENTRY + _parts(entry.parts)
        case CallEntry():
            return PER_ENTRY + (len(entry.name) + len(entry.arguments)) // LETTERS
        case ReasoningEntry():
            return PER_ENTRY + sum(map(len, entry.summary + entry.content)) // LETTERS
        case OtherEntry():
            return PER_ENTRY + len(entry.raw) // LETTERS
        case ToolsEntry():
            return PER_ENTRY  # its tools are counted with the others


def _parts(parts: tuple[Part, ...]) -> int:
    texts = [part.text for part in parts if isinstance(part, TextPart | RefusalPart)]
    return sum(map(len, texts)) // LETTERS + PER_IMAGE * (len(parts) - len(texts))
