"""Encodes a finished turn as one message, and the objects that a streamed message shares with it.

A search for tools that the gateway has run is encoded as a server would:

    {"type":"server_tool_use","id":"srvtoolu_1","name":"tool_search_tool_bm25","input":{"query":"mail"}}
    {"type":"tool_search_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"tool_search_tool_search_result",…}}
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from toolwire.adapt.unwrap import wrap
from toolwire.core.collect import Call, Item, Reasoning, Refusal, Text, Turn
from toolwire.core.events import MessageEnded, RawFrame, Reason, ReasoningEnded, Usage
from toolwire.core.raw import (
    NULL,
    Fields,
    Json,
    as_object,
    fields_of,
    object_in,
    text_of,
    to_json,
    without_nulls,
    wrap_arguments,
)
from toolwire.core.request import CallEntry, Request, ResultEntry, SearchOutcome, TextPart, ToolPart
from toolwire.core.signatures import PackedSignature, pack
from toolwire.dialects.messages.decode import ORIGIN, SERVER_ID

_REASONS: dict[str, Reason] = {
    "end_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filter",
}
_STOP: dict[Reason, str] = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal"}

# Fields that Anthropic's specification requires and allows to be null, unless the server sends a value.
NULL_FIELDS: Json = {"container": None, "diagnostics": None, "stop_details": None}
NULL_USAGE: Json = {
    "cache_creation": None,
    "inference_geo": None,
    "output_tokens_details": None,
    "server_tool_use": None,
    "service_tier": None,
    "speed": None,
}
NULL_FINAL_USAGE: Json = {"output_tokens_details": None, "server_tool_use": None}

BLOCK_FIELDS: dict[str, Json] = {"text": {"citations": None}, "tool_use": {"caller": {"type": "direct"}}}
"""Fields that Anthropic's specification requires of blocks. Other backends do not send them."""


def type_of(block: Fields) -> str:
    """The type of a block, or the empty string."""
    return text_of(block.get("type", b'""'))


def encode_head(id: str, model: str) -> Json:
    """Encode an empty message."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def encode_stop(reason: Reason, original: Fields, *, refused: bool) -> Json:
    """Encode the stop reason: the server's own, if it means the same or is unknown."""
    given = original.get("stop_reason", NULL)
    if given not in (NULL, b'""') and _REASONS.get(text_of(given), "stop") == reason:
        return {"stop_reason": given, "stop_sequence": original.get("stop_sequence")}
    return {"stop_reason": "refusal" if refused and reason == "stop" else _STOP[reason], "stop_sequence": None}


def encode_thinking(parts: tuple[str, ...], end: ReasoningEnded) -> Json | None:
    """Encode reasoning as a block, or None if it is empty. A signature of another origin is packed."""
    text = "\n\n".join(parts)
    if not text and not end.signature:
        return None
    if end.signature and end.origin != ORIGIN:
        signature = pack(PackedSignature(end.origin, end.id, parts, end.signature, end.redacted))
    else:
        signature = end.signature
    is_hidden = end.redacted if end.origin == ORIGIN else not text
    if is_hidden:
        return {"type": "redacted_thinking", "data": signature}
    return {"type": "thinking", "thinking": text, "signature": signature}


def encode_usage(usage: Usage) -> Json:
    """Encode token counts. Anthropic does not count cached tokens as input tokens."""
    return {
        "input_tokens": max(0, usage.input - usage.cached - usage.cache_write),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        **({"output_tokens_details": {"thinking_tokens": usage.reasoning}} if usage.reasoning else {}),
    }


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """Encode a finished turn as one message."""
    content = Content()
    for item in turn.items:
        content.add(item)
    content.end_text()
    original = content.original
    refused = any(isinstance(item, Refusal) for item in turn.items)
    message: Json = {**NULL_FIELDS, **original, **encode_head(id, request.model), "content": content.blocks}
    message |= encode_stop(turn.reason, original, refused=refused)
    counted = without_nulls(object_in(original, "usage"))
    return to_json({**message, "usage": {**NULL_USAGE, **counted, **encode_usage(turn.usage or Usage())}})


class Content:
    """Builds the blocks of a message, with the unknown fields of the server's message and blocks."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self.original: Fields = {}
        """The server's fields of the message."""
        self._original_block: Fields = {}  # the server's fields of the next block
        self._texts: list[str] = []  # of the last block, while it grows

    def add(self, item: Item) -> None:
        """Add one item of a turn."""
        match item:
            case Text(text) | Refusal(text):
                if not self._texts:
                    self._put({"type": "text", "text": ""})
                self._texts.append(text)
            case Reasoning():
                end = ReasoningEnded(item.id, item.signature, item.origin, item.redacted)
                block = encode_thinking(item.parts, end)
                if block is not None:
                    self._put(block)
            case Call():
                if item.kind == "custom":
                    input = msgspec.Raw(wrap(item.arguments).encode())
                else:
                    input = as_object(item.arguments) or wrap_arguments(item.arguments)
                self._put({"type": "tool_use", "id": item.id, "name": item.name, "input": input})
            case RawFrame():
                self.end_text()
                if item.type == "message":
                    self.original = fields_of(item.data)
                elif item.type == "content_block_start":
                    self._original_block = object_in(fields_of(item.data), "content_block")
                    if item.is_unknown:
                        self.blocks.append(self._original_block)
            case MessageEnded():
                self.end_text()

    def end_text(self) -> None:
        """Close the last block, if it is a text."""
        if self._texts:
            self.blocks[-1]["text"] = "".join(self._texts)
            self._texts = []

    def _put(self, block: Json) -> None:
        self.end_text()
        original, self._original_block = self._original_block, {}
        type = block["type"]
        self.blocks.append({**(original if type_of(original) == type else BLOCK_FIELDS.get(type, {})), **block})


def encode_search(call: CallEntry, result: ResultEntry, outcome: SearchOutcome, *, stream: bool) -> list[RawFrame]:
    """Encode a search as its two blocks. In a stream the input of the first is in a delta, as clients expect."""
    id, input = f"{SERVER_ID}{call.id}", as_object(call.arguments) or msgspec.Raw(b"{}")
    if outcome == "found":
        names = [part.name for part in result.parts if isinstance(part, ToolPart)]
        references = [{"type": "tool_reference", "tool_name": name} for name in names]
        content: Json = {"type": "tool_search_tool_search_result", "tool_references": references}
    else:
        text = "".join(part.text for part in result.parts if isinstance(part, TextPart))
        code = "execution_time_exceeded" if outcome == "timed_out" else "invalid_tool_input"
        content = {"type": "tool_search_tool_result_error", "error_code": code, "error_message": text}
    use: Json = {"type": "server_tool_use", "id": id, "name": call.name, "input": {} if stream else input}
    found = {"type": "tool_search_tool_result", "tool_use_id": id, "content": content}
    made = _make_block_frames(id, use, bytes(input).decode() if stream else "")
    return [*made, *_make_block_frames(f"{id}_result", found)]


def _make_block_frames(item: str, block: Json, input: str = "") -> Iterator[RawFrame]:
    yield RawFrame("content_block_start", item, to_json({"content_block": block}), is_unknown=True)
    if input:
        delta = {"type": "input_json_delta", "partial_json": input}
        yield RawFrame("content_block_delta", item, to_json({"delta": delta}))
    yield RawFrame("content_block_stop", item, b"{}")
