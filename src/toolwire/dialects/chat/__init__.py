"""OpenAI Chat Completions as a dialect."""

from collections.abc import Mapping
from typing import Any

from toolwire.dialects.chat.decode import decode_request, decode_steps
from toolwire.dialects.chat.encode import StreamEncoder, encode_error, encode_turn

PATH = "/v1/chat/completions"


def new_id(seed: str) -> str:
    """The id of a completion."""
    return f"chatcmpl-{seed}"


def recognises(fields: Mapping[str, Any]) -> bool:
    """Whether the data of a frame, or a plain answer, can only be of this dialect."""
    object = fields.get("object")
    return isinstance(fields.get("choices"), list) or (isinstance(object, str) and object.startswith("chat.completion"))


__all__ = [
    "PATH",
    "StreamEncoder",
    "decode_request",
    "decode_steps",
    "encode_error",
    "encode_turn",
    "new_id",
    "recognises",
]
