"""Compaction: a conversation as one item. Ours contains a summary, which any backend can continue from.

    {"type":"compaction","id":"cmp_…","encrypted_content":"toolwire.1.…"}

The content is encoded but not encrypted, since it summarises what the client itself has sent.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import OUTPUT, Event, RawFrame, TextDelta, TurnEnded, TurnFailed
from toolwire.core.raw import to_raw
from toolwire.core.request import Message, OtherEntry, Request, TextPart, ToolsEntry

PREFIX = "toolwire.1."

SUMMARY_PROMPT = (
    "Summarise this conversation so that it can be continued from the summary alone. Keep what the user wants, "
    "decisions, facts found out, the state of the work, file names and open questions. Answer with the summary only."
)

_HEAD = "Summary of the conversation so far:\n\n"


def encode_item(id: str, summary: str) -> msgspec.Raw:
    """Encode a summary as a compaction item."""
    content = PREFIX + base64.urlsafe_b64encode(summary.encode()).decode().rstrip("=")
    return to_raw({"id": id, "type": "compaction", "encrypted_content": content})


def is_ours(content: str) -> bool:
    """Whether the content of a compaction item was made by Toolwire."""
    return content.startswith(PREFIX)


def expand(content: str, path: str) -> Message:
    """Decode our compaction item into a message for the model. Raises `BadRequest`."""
    packed = content.removeprefix(PREFIX)
    try:
        summary = base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        field = f"{path}.encrypted_content"
        raise BadRequest(f"{field}: This compaction cannot be read.", field) from None
    return Message("user", (TextPart(_HEAD + summary),))


def is_requested(request: Request) -> bool:
    """Whether the last item of the request asks for a compaction."""
    last = request.entries[-1] if request.entries else None
    return isinstance(last, OtherEntry) and last.type == "compaction_trigger"


def make_summary_request(request: Request) -> Request:
    """The request for a summary instead of an answer, without tools."""
    dropped = ("tools", "tool_choice", "text")
    entries = tuple(entry for entry in request.entries[:-1] if not isinstance(entry, ToolsEntry))
    return msgspec.structs.replace(
        request,
        entries=(*entries, Message("user", (TextPart(SUMMARY_PROMPT),))),
        tools=(),
        hosted_tools=(),
        tool_choice=None,
        output_format=None,
        fields={name: value for name, value in request.fields.items() if name not in dropped},
    )


class ReplaceWithCompaction:
    """A policy that replaces the model's answer with one compaction item."""

    handles: ClassVar[tuple[type[Event], ...]] = (*OUTPUT, TurnEnded)

    def __init__(self, id: str) -> None:
        self._id = id
        self._pieces: list[str] = []

    def feed(self, event: Event) -> Sequence[Event] | None:
        if isinstance(event, TextDelta):
            self._pieces.append(event.text)
        elif isinstance(event, RawFrame) and not event.item:
            return None
        elif isinstance(event, TurnEnded):
            summary = "".join(self._pieces).strip()
            if not summary:
                return (TurnFailed(Failure(502, "no_summary", "The model gave no summary to compact with.")),)
            data = b'{"item":' + encode_item(self._id, summary) + b"}"
            return RawFrame("response.output_item.done", self._id, data), event
        return ()
