"""OpenAI Responses as a dialect."""

from toolwire.dialects.responses.decode import (
    ParsedRequest,
    check_items,
    decode_request,
    read_request,
    read_tool_outputs,
    reading_request,
)
from toolwire.dialects.responses.encode import StreamEncoder, encode_error, encode_turn
from toolwire.dialects.responses.search import search_frames

PATH = "/v1/responses"


def new_id(seed: str) -> str:
    """The response's id."""
    return f"resp_{seed}"


__all__ = [
    "PATH",
    "ParsedRequest",
    "StreamEncoder",
    "check_items",
    "decode_request",
    "encode_error",
    "encode_turn",
    "new_id",
    "read_request",
    "read_tool_outputs",
    "reading_request",
    "search_frames",
]
