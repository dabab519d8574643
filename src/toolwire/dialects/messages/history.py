"""Messages to entries: one message becomes its text, reasoning, calls and results, in their order."""

from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.raw import fields_of, list_of, text_of, to_raw
from toolwire.core.request import (
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    Part,
    ReasoningEntry,
    ResultEntry,
    Role,
    TextPart,
)
from toolwire.core.signatures import is_packed, unpack
from toolwire.core.text import arguments_text, as_object, unwrapped, wrapped
from toolwire.dialects import reading
from toolwire.dialects.messages import wire
from toolwire.dialects.reading import read_at

ORIGIN = "messages"
"""The origin of signatures that a client sends unpacked."""

_decode_message = msgspec.json.Decoder(wire.MessageParam).decode
_decode_block = msgspec.json.Decoder(wire.Block).decode
_decode_source = msgspec.json.Decoder(wire.Source).decode
_decode_content = msgspec.json.Decoder(str | list[wire.Block]).decode

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "developer"}
_CONTENT = frozenset(("text", "image", "document", "search_result"))


def decode_messages(messages: Sequence[msgspec.Raw]) -> Iterator[Entry]:
    """The entries of these messages."""
    for index, raw in enumerate(messages):
        path = f"messages[{index}]"
        message = read_at(_decode_message, raw, path)
        role = _ROLES.get(message.role)
        if role is None:
            raise BadRequest(f"{path}.role must be user or assistant; received {message.role!r}.", f"{path}.role")
        if reading.begins_with(message.content, b"["):
            yield from _blocks(list_of(message.content), role, path, index)
        else:
            text = read_at(text_of, message.content, f"{path}.content")
            yield Message(role, (TextPart(text),), raw=message.content, message=index)


def _blocks(blocks: Sequence[msgspec.Raw], role: Role, path: str, message: int) -> Iterator[Entry]:
    parts: list[Part] = []
    raws: list[msgspec.Raw] = []
    for index, raw in enumerate(blocks):
        where = f"{path}.content[{index}]"
        block = read_at(_decode_block, raw, where)
        if block.type in _CONTENT:
            parts.append(_part(block, where))
            raws.append(raw)
            continue
        if parts:
            yield _message(role, parts, raws, message)
            parts, raws = [], []
        yield _entry(block, where, raw, message)
    if parts or not blocks:
        yield _message(role, parts, raws, message)


def _message(role: Role, parts: list[Part], blocks: list[msgspec.Raw], message: int) -> Message:
    return Message(role, tuple(parts), raw=to_raw(blocks), message=message)


def _entry(block: wire.Block, path: str, raw: msgspec.Raw, message: int) -> Entry:
    match block.type:
        case "tool_use":
            for field, value in (("id", block.id), ("name", block.name)):
                if not value:
                    raise reading.required(f"{path}.{field}")
            arguments, written = _arguments(block, raw)
            return CallEntry(block.id or "", block.name or "", arguments, raw=written, message=message)
        case "tool_result":
            if not block.tool_use_id:
                raise reading.required(f"{path}.tool_use_id")
            parts = tuple(_result(block, path))
            return ResultEntry(block.tool_use_id, parts, raw=raw, failed=bool(block.is_error), message=message)
        case "thinking":
            reasoning = _reasoning(block.thinking or "", block.signature or "", raw, redacted=False)
            return msgspec.structs.replace(reasoning, message=message)
        case "redacted_thinking":
            return msgspec.structs.replace(_reasoning("", block.data or "", raw, redacted=True), message=message)
        case _:
            return OtherEntry(block.type, raw, message)


def _reasoning(text: str, signature: str, raw: msgspec.Raw, *, redacted: bool) -> ReasoningEntry:
    """Reasoning with its signature and origin. The text in a packed signature wins over the one beside it."""
    packed = unpack(signature)
    if packed is None and is_packed(signature):  # and damaged
        return ReasoningEntry(summary=(text,) if text else ())
    if packed is None:
        return ReasoningEntry(
            summary=(text,) if text else (), signature=signature, origin=ORIGIN, redacted=redacted, raw=raw
        )
    return ReasoningEntry(
        packed.id, packed.text, signature=packed.signature, origin=packed.origin, redacted=packed.redacted
    )


def _arguments(block: wire.Block, raw: msgspec.Raw) -> tuple[str, msgspec.Raw]:
    """The arguments, and the block with its input as an object, which some clients leave out or put into a string."""
    given = reading.given(block.input)
    if given is not None and bytes(given).startswith(b"{"):
        return unwrapped(given), raw
    text = arguments_text(given) if given is not None else "{}"
    fields = {**fields_of(raw), "input": as_object(text) or wrapped(text)}
    return text, to_raw(fields)


def _result(block: wire.Block, path: str) -> Iterator[Part]:
    raw = reading.given(block.content)
    if raw is None:
        return
    content = read_at(_decode_content, raw, f"{path}.content")
    if isinstance(content, str):
        yield TextPart(content)
        return
    for index, part in enumerate(content):
        yield _part(part, f"{path}.content[{index}]")


def _search_result(block: wire.Block, source: msgspec.Raw | None, path: str) -> str:
    """A search result as text, with its source."""
    address = arguments_text(source) if source is not None else ""
    texts = [part.text for part in _result(block, path) if isinstance(part, TextPart)]
    return "\n".join(text for text in (block.title or "", address, *texts) if text)


def _part(block: wire.Block, path: str) -> Part:
    if block.type == "text":
        return TextPart(block.text or "", reading.given(block.cache_control))
    if block.type == "tool_reference" and block.tool_name:
        return TextPart(f"The tool {block.tool_name} can be called.")
    source = reading.given(block.source)
    if block.type == "search_result":
        return TextPart(_search_result(block, source, path))
    if block.type not in ("image", "document") or source is None:
        return OtherPart(block.type)
    try:
        read = _decode_source(source)
    except msgspec.ValidationError:
        return OtherPart(block.type)
    if read.type == "text":
        return TextPart(read.data or "")
    url = read.url or (f"data:{read.media_type};base64,{read.data}" if read.data else "")
    if block.type == "image":
        return ImagePart(url, id=read.file_id or "")
    if url.startswith("data:"):
        return FilePart(url, read.file_id or "", block.title or "document.pdf")
    return FilePart("", read.file_id or "", block.title or "", url)
