"""Anthropic Messages as a dialect."""

from toolwire.dialects.messages.decode import decode_request, decoding
from toolwire.dialects.messages.encode import StreamEncoder, encode_error
from toolwire.dialects.messages.message import encode_turn
from toolwire.dialects.messages.search import search_frames

PATH = "/v1/messages"


def new_id(seed: str) -> str:
    """The message's id."""
    return f"msg_{seed}"


__all__ = [
    "PATH",
    "StreamEncoder",
    "decode_request",
    "decoding",
    "encode_error",
    "encode_turn",
    "new_id",
    "search_frames",
]
