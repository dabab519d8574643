"""OpenAI Responses as a dialect."""

from collections.abc import Mapping
from typing import Any

from toolwire.dialects.responses.decode import (
    ParsedRequest,
    check_items,
    decode_request,
    decode_whole,
    read_request,
    read_request_steps,
    read_tool_outputs,
)
from toolwire.dialects.responses.encode import StreamEncoder, encode_error, encode_turn
from toolwire.dialects.responses.tools import encode_search

PATH = "/v1/responses"


def new_id(seed: str) -> str:
    """The id of a response."""
    return f"resp_{seed}"


def recognises(fields: Mapping[str, Any]) -> bool:
    """Whether the data of a frame, or a plain answer, can only be of this dialect."""
    type = fields.get("type")
    return fields.get("object") == "response" or (isinstance(type, str) and type.startswith("response."))


__all__ = [
    "PATH",
    "ParsedRequest",
    "StreamEncoder",
    "check_items",
    "decode_request",
    "decode_whole",
    "encode_error",
    "encode_search",
    "encode_turn",
    "new_id",
    "read_request",
    "read_request_steps",
    "read_tool_outputs",
    "recognises",
]
