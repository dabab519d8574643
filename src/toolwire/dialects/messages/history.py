"""Messages to entries: one message becomes its text, its thoughts, its calls and its results, in their order."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from toolwire.core.errors import BadRequest
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
from toolwire.core.seals import is_packed, unpack
from toolwire.core.text import arguments_text, as_object, unwrapped, wrapped
from toolwire.dialects import reading
from toolwire.dialects.messages import wire
from toolwire.dialects.reading import explained

ISSUER = "messages"
"""Whose seals the signatures are that a client sends as they are."""

_decode_message = msgspec.json.Decoder(wire.Message).decode
_decode_block = msgspec.json.Decoder(wire.Block).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_source = msgspec.json.Decoder(wire.Source).decode
_decode_content = msgspec.json.Decoder(str | list[wire.Block]).decode

Read = TypeVar("Read")

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "developer"}
_SHOWN = frozenset(("text", "image", "document", "search_result"))


def decode_messages(messages: Sequence[msgspec.Raw]) -> Iterator[Entry]:
    for place, raw in enumerate(messages):
        path = f"messages[{place}]"
        message = _read(_decode_message, raw, path)
        role = _ROLES.get(message.role)
        if role is None:
            raise BadRequest(f"{path}.role must be user or assistant; received {message.role!r}.", f"{path}.role")
        if reading.begins(message.content, b"["):
            yield from _blocks(_decode_list(message.content), role, path, place)
        else:
            text = _read(_decode_text, message.content, f"{path}.content")
            yield Message(role, (TextPart(text),), raw=message.content, message=place)


def _blocks(blocks: Sequence[msgspec.Raw], role: Role, path: str, message: int) -> Iterator[Entry]:
    parts: list[Part] = []
    shown: list[msgspec.Raw] = []
    for place, raw in enumerate(blocks):
        where = f"{path}.content[{place}]"
        block = _read(_decode_block, raw, where)
        if block.type in _SHOWN:
            parts.append(_part(block, where))
            shown.append(raw)
            continue
        if parts:
            yield _message(role, parts, shown, message)
            parts, shown = [], []
        yield _entry(block, where, raw, message)
    if parts or not blocks:
        yield _message(role, parts, shown, message)


def _message(role: Role, parts: list[Part], blocks: list[msgspec.Raw], message: int) -> Message:
    return Message(role, tuple(parts), raw=msgspec.Raw(msgspec.json.encode(blocks)), message=message)


def _read(decode: Callable[[msgspec.Raw], Read], raw: msgspec.Raw, path: str) -> Read:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise explained(error, path) from None


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
            thought = _thought(block.thinking or "", block.signature or "", raw, redacted=False)
            return msgspec.structs.replace(thought, message=message)
        case "redacted_thinking":
            return msgspec.structs.replace(_thought("", block.data or "", raw, redacted=True), message=message)
        case _:
            return OtherEntry(block.type, raw, message)


def _thought(text: str, seal: str, raw: msgspec.Raw, *, redacted: bool) -> ReasoningEntry:
    """A thought with the seal of whoever made it. The text a client shows is not trusted over the one in a package."""
    packed = unpack(seal)
    if packed is None and is_packed(seal):  # and damaged
        return ReasoningEntry(summary=(text,) if text else ())
    if packed is None:
        return ReasoningEntry(summary=(text,) if text else (), seal=seal, issuer=ISSUER, redacted=redacted, raw=raw)
    return ReasoningEntry(packed.id, packed.text, seal=packed.seal, issuer=packed.issuer, redacted=packed.redacted)


def _arguments(block: wire.Block, raw: msgspec.Raw) -> tuple[str, msgspec.Raw]:
    """The arguments, and the block with its input as an object, which some clients leave out or put into a string."""
    given = reading.given(block.input)
    if given is not None and bytes(given).startswith(b"{"):
        return unwrapped(given), raw
    text = arguments_text(given) if given is not None else "{}"
    fields = {**_decode_fields(raw), "input": as_object(text) or wrapped(text)}
    return text, msgspec.Raw(msgspec.json.encode(fields))


def _result(block: wire.Block, path: str) -> Iterator[Part]:
    raw = reading.given(block.content)
    if raw is None:
        return
    try:
        content = _decode_content(raw)
    except msgspec.ValidationError as error:
        raise explained(error, f"{path}.content") from None
    if isinstance(content, str):
        yield TextPart(content)
        return
    for place, part in enumerate(content):
        yield _part(part, f"{path}.content[{place}]")


def _found(block: wire.Block, source: msgspec.Raw | None, path: str) -> str:
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
        return TextPart(_found(block, source, path))
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
