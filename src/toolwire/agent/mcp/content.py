"""Converts the content of MCP results into result parts."""

import mimetypes
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from toolwire.core.request import AudioPart, FilePart, ImagePart, Part, TextPart
from toolwire.turns.tools.registry import Result

_BLOCKS = ("text", "image", "audio", "resource", "resource_link")
_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-flac": "flac", "mp4": "m4a"}
"""Usual names of audio formats, by MIME subtype."""


def as_result(result: CallToolResult) -> Result:
    """The content in order, and the structured content unless a text already contains it."""
    parts = tuple(part for block in result.content for part in _parts(block))
    structured = result.structured_content
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if structured is not None and not _is_in_text(structured, texts):
        parts = (*parts, TextPart(msgspec.json.encode(structured).decode()))
    return Result(parts or (TextPart(""),), failed=result.is_error)


def _parts(block: ContentBlock) -> Iterator[Part]:
    match block:
        case TextContent():
            yield TextPart(block.text)
        case ImageContent():
            yield ImagePart(_data_url(block.mime_type, block.data))
        case AudioContent():
            yield AudioPart(block.data, _format(block.mime_type))
        case ResourceLink():
            about = ", ".join(each for each in (block.mime_type, block.description) if each)
            details = f" ({about})" if about else ""
            yield TextPart(f"[resource link {block.uri}] {block.title or block.name}{details}")
        case EmbeddedResource():
            yield TextPart(f"[resource {block.resource.uri}]\n")
            yield _resource(block.resource)


def _resource(resource: TextResourceContents | BlobResourceContents) -> Part:
    if isinstance(resource, TextResourceContents):
        return TextPart(resource.text)
    kind = resource.mime_type or "application/octet-stream"
    if kind.startswith("image/"):
        return ImagePart(_data_url(kind, resource.blob))
    if kind.startswith("audio/"):
        return AudioPart(resource.blob, _format(kind))
    name = ""
    with suppress(ValueError):
        name = urlsplit(resource.uri).path.rstrip("/").rpartition("/")[2]
    return FilePart(_data_url(kind, resource.blob), name=name or f"resource{mimetypes.guess_extension(kind) or ''}")


def _data_url(kind: str, data: str) -> str:
    return f"data:{kind};base64,{data}"


def _format(kind: str) -> str:
    subtype = kind.partition("/")[2].partition(";")[0].strip().lower()
    return _FORMATS.get(subtype, subtype)


def _is_in_text(structured: Any, texts: list[str]) -> bool:
    """Whether a text block contains the structured content too, as the specification recommends."""
    read: list[Any] = list(texts)
    for index, text in enumerate(texts):
        with suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            read[index] = msgspec.json.decode(text)
    if structured in read:
        return True
    match structured:
        # FastMCP wraps non-objects in `result`, with one block for each element, or repeats the blocks there.
        case {"result": [*values], **others} if not others:
            types = [cast("dict[str, Any]", each).get("type") if isinstance(each, dict) else None for each in values]
            return values in (texts, read) or values in read or all(each in _BLOCKS for each in types)
        case {"result": value, **others} if not others:
            return value in texts or value in read
        case _:
            return False
