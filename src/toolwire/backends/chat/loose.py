"""Reads chunks and completions whose fields have undocumented names or types, as far as possible.

    {"choices": [{"delta": {"content": [{"type": "text", "text": "Hi"}]}}]}
    {"choices": [{"delta": {"tool_calls": [{"id": "c", "function": {"name": "f"}, "arguments": {"a": 1}}]}}]}

Calls are read by `core/shapes.py`, as in the aggregator.
"""

from typing import Any, TypeVar, cast

import msgspec

from toolwire.backends.chat.wire import Chunk, LooseMessage, ReplyChoice, TokenUsage
from toolwire.backends.decoder import UNREADABLE
from toolwire.core.shapes import decode_payload, read_fragments

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
    choices = _get(payload, "choices")
    return Chunk(
        _convert(str, _get(payload, "id")),
        _convert(str, _get(payload, "model")),
        [_read_choice(each) for each in cast("list[Any]", choices)] if isinstance(choices, list) else None,
        _convert(TokenUsage, _get(payload, "usage")),
        _get(payload, "error"),
        _convert(str, _get(payload, "object")),
        _convert(str, _get(payload, "message")),
    )


def _read_choice(choice: Any) -> ReplyChoice:
    index, message = _get(choice, "index"), _get(choice, "delta") or _get(choice, "message")
    content, details = _get(message, "content"), _get(message, "reasoning_details")
    return ReplyChoice(
        index=_convert(int, index),
        delta=LooseMessage(
            content=_join_texts(content),
            refusal=_join_texts(_get(message, "refusal")),
            reasoning_content=_join_texts(_get(message, "reasoning_content")) or None,
            reasoning=_join_texts(_get(message, "reasoning")) or None,
            reasoning_details=details if isinstance(details, msgspec.Raw) else msgspec.UNSET,
            thinking=_join_texts(content, "thinking"),
            # A complete call stays open: the end of the turn decides whether it was cut.
            fragments=[msgspec.structs.replace(each, ended=not each.complete) for each in read_fragments(choice)],
        ),
        finish_reason=_convert(str, _get(choice, "finish_reason")),
        error=_get(choice, "error"),
        usage=_convert(TokenUsage, _get(choice, "usage")),
    )


def _get(payload: Any, key: str) -> Any:
    return cast("dict[str, Any]", payload).get(key) if isinstance(payload, dict) else None


def _join_texts(content: Any, key: str = "text") -> str:
    """A text, or the joined texts of its parts that have this key."""
    if isinstance(content, str):
        return content if key == "text" else ""
    if not isinstance(content, list):
        return ""
    return "".join(_join_texts(_get(part, key)) for part in cast("list[Any]", content))


def _convert(type: type[Value], value: Any) -> Value | None:
    """The value as this type, or None if it cannot be converted."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError:
        return None
