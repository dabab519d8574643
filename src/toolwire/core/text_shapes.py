"""Reads the answer's text from payloads of any shape; never reasoning, and never a message of another role.

| shape | text |
| --- | --- |
| a string | itself |
| chat | `content`, a string or parts, in `delta` |
| Responses | `delta` of `response.output_text.delta` |
| Anthropic | `text` of a `text_delta`, in `content_block_delta` |
| app-server | `delta` of `item/agentMessage/delta` and `agent_message_delta` |

Events that repeat a whole text after its deltas are ignored.
"""

from collections.abc import Mapping
from typing import Any, cast

from toolwire.core.call_shapes import Payload

_PARTS = frozenset(("text", "text_delta", "output_text"))
_DELTAS = frozenset(("response.output_text.delta", "agent_message_delta"))
_HOLDERS = ("delta", "msg", "params")
_MAX_DEPTH = 4


def text_delta_of(payload: Any, depth: int = _MAX_DEPTH) -> str:
    """The new text in one streamed payload."""
    if isinstance(payload, str):
        return payload
    if not isinstance(payload, Mapping) or depth == 0:
        return ""
    payload = cast("Payload", payload)
    if payload.get("role") not in (None, "", "assistant"):
        return ""
    kind = str(payload.get("type") or payload.get("method") or "").removeprefix("codex/event/")
    if kind in _PARTS:
        return _string(payload.get("text"))
    if kind in _DELTAS or kind == "item/agentMessage/delta":
        return next((text for key in _HOLDERS if (text := text_delta_of(payload.get(key), depth - 1))), "")
    if kind == "content_block_delta" or not kind:
        inside = payload.get("delta")
        if inside:
            return text_delta_of(inside, depth - 1)
        content = payload.get("content")
        if isinstance(content, list):
            return "".join(text_delta_of(part) for part in cast("list[Any]", content))
        return _string(content)
    return ""


def text_of_message(message: Any) -> str:
    """The answer's text in a finished message of any shape."""
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        return "".join(text_of_message(part) for part in cast("list[Any]", message))
    if not isinstance(message, Mapping):
        return ""
    message = cast("Payload", message)
    for key in ("content", "text", "message", "choices", "output"):
        if message.get(key):
            return text_of_message(message[key])
    return ""


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
