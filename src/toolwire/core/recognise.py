"""Which dialect a frame or a plain answer is written in, by what only that dialect has."""

from collections.abc import Mapping
from typing import Any

from toolwire.core.events import Dialect

_MESSAGES = frozenset(
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
"""Types of Messages. Errors and pings exist in other dialects too."""


def dialect_of(fields: Mapping[str, Any]) -> Dialect | None:
    """The dialect of a frame's data or of a plain answer; None if it could be any."""
    kind, object = fields.get("type"), fields.get("object")
    if isinstance(object, str) and object.startswith("chat.completion"):
        return "chat"
    if object == "response" or (isinstance(kind, str) and kind.startswith("response.")):
        return "responses"
    if isinstance(kind, str) and kind in _MESSAGES:
        return "messages"
    return "chat" if isinstance(fields.get("choices"), list) else None
