"""Anthropic Messages as a dialect."""

from collections.abc import Mapping
from typing import Any

from toolwire.dialects.messages.decode import decode_request, decode_steps
from toolwire.dialects.messages.encode import StreamEncoder, encode_allowances, encode_error
from toolwire.dialects.messages.message import encode_search, encode_turn
from toolwire.dialects.messages.models import encode_model, encode_models

PATH = "/v1/messages"


def new_id(seed: str) -> str:
    """The id of a message."""
    return f"msg_{seed}"


_TYPES = frozenset(
    (
        "message",
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    )
)
"""Types that only Messages has. Errors and pings exist in other dialects too."""


def recognises(fields: Mapping[str, Any]) -> bool:
    """Whether the data of a frame, or a plain answer, can only be of this dialect."""
    type = fields.get("type")
    return isinstance(type, str) and type in _TYPES


__all__ = [
    "PATH",
    "StreamEncoder",
    "decode_request",
    "decode_steps",
    "encode_allowances",
    "encode_error",
    "encode_model",
    "encode_models",
    "encode_search",
    "encode_turn",
    "new_id",
    "recognises",
]
