"""Reads a chunk, or a completion, whose fields have other names or types than documented, as far as possible.

    {"choices": [{"delta": {"content": [{"type": "text", "text": "Hi"}]}}]}
    {"choices": [{"delta": {"tool_calls": [{"id": "c", "function": {"name": "f"}, "arguments": {"a": 1}}]}}]}

Its calls are read by `core/call_shapes.py`, as in the aggregator.
"""

from typing import Any, TypeVar, cast

import msgspec

from toolwire.backends.chat.wire import Chunk, LooseMessage, ReplyChoice, TokenUsage
from toolwire.backends.decoder import UNREADABLE
from toolwire.core.call_shapes import decode_payload, read_fragments

Value = TypeVar("Value")


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: dict[str, msgspec.Raw] | None = None
    message: dict[str, msgspec.Raw] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, msgspec.Raw] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


def is_well_formed(data: bytes) -> bool:
    """Whether a chunk has the documented shape, so that it may be forwarded to a client of the same dialect."""
    try:
        _decode(data)
    except UNREADABLE:
        return False
    return True


def read_loose(data: bytes) -> Chunk | None:
    """The chunk, or None if the data is not a JSON object."""
    try:
        payload: Any = decode_payload(data)
    except UNREADABLE:
        return None
    if not isinstance(payload, dict):
        return None
    choices = _of(payload, "choices")
    return Chunk(
        _as(str, _of(payload, "id")),
        _as(str, _of(payload, "model")),
        [_choice(each) for each in cast("list[Any]", choices)] if isinstance(choices, list) else None,
        _as(TokenUsage, _of(payload, "usage")),
        _of(payload, "error"),
        _as(str, _of(payload, "object")),
        _as(str, _of(payload, "message")),
    )


def _choice(choice: Any) -> ReplyChoice:
    index, message = _of(choice, "index"), _of(choice, "delta") or _of(choice, "message")
    content, details = _of(message, "content"), _of(message, "reasoning_details")
    return ReplyChoice(
        index=_as(int, index),
        delta=LooseMessage(
            content=_text(content),
            refusal=_text(_of(message, "refusal")),
            reasoning_content=_text(_of(message, "reasoning_content")) or None,
            reasoning=_text(_of(message, "reasoning")) or None,
            reasoning_details=details if isinstance(details, msgspec.Raw) else msgspec.UNSET,
            thinking=_text(content, "thinking"),
            # Without an end: the end of the turn decides whether a call was cut.
            fragments=[msgspec.structs.replace(each, ended=not each.complete) for each in read_fragments(choice)],
        ),
        finish_reason=_as(str, _of(choice, "finish_reason")),
        error=_of(choice, "error"),
        usage=_as(TokenUsage, _of(choice, "usage")),
    )


def _of(payload: Any, key: str) -> Any:
    return cast("dict[str, Any]", payload).get(key) if isinstance(payload, dict) else None


def _text(content: Any, key: str = "text") -> str:
    """Text that may come in parts, of which those with this key are joined."""
    if isinstance(content, str):
        return content if key == "text" else ""
    if not isinstance(content, list):
        return ""
    return "".join(_text(_of(part, key)) for part in cast("list[Any]", content))


def _as(type: type[Value], value: Any) -> Value | None:
    """The value if it is of this type, or an object that can be read as such."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError:
        return None
