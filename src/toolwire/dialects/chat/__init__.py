"""OpenAI Chat Completions as a dialect."""

from toolwire.dialects.chat.decode import decode_request, decoding
from toolwire.dialects.chat.encode import StreamEncoder, encode_error, encode_turn

PATH = "/v1/chat/completions"


def new_id(seed: str) -> str:
    """The completion's id."""
    return f"chatcmpl-{seed}"


__all__ = ["PATH", "StreamEncoder", "decode_request", "decoding", "encode_error", "encode_turn", "new_id"]
