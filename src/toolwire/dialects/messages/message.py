"""A finished turn as one message, and the objects that the stream of a message shares with it."""

from typing import Any

import msgspec

from toolwire.adapt.unwrap import wrap
from toolwire.core.collect import Call, Reasoning, Refusal, Text, Turn
from toolwire.core.events import MessageEnded, RawFrame, Reason, ReasoningEnded, Usage
from toolwire.core.raw import Fields, as_object, fields_of, object_in, to_json, without_nulls, wrap_arguments
from toolwire.core.request import Request
from toolwire.core.signatures import PackedSignature, pack
from toolwire.dialects.messages.forward import block_type, original_reason
from toolwire.dialects.messages.history import ORIGIN

_STOP: dict[Reason, str] = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal"}


# Fields that Anthropic's specification requires and allows to be null, unless the server sends a value.
NULL_FIELDS: dict[str, Any] = {"container": None, "diagnostics": None, "stop_details": None}
NULL_USAGE: dict[str, Any] = {
    "cache_creation": None,
    "inference_geo": None,
    "output_tokens_details": None,
    "server_tool_use": None,
    "service_tier": None,
    "speed": None,
}
NULL_FINAL_USAGE: dict[str, Any] = {"output_tokens_details": None, "server_tool_use": None}


BLOCK_FIELDS: dict[str, dict[str, Any]] = {"text": {"citations": None}, "tool_use": {"caller": {"type": "direct"}}}
"""Fields that Anthropic's specification requires of blocks, for those that no server of this dialect wrote."""


def message_head(id: str, model: str) -> dict[str, Any]:
    """An empty message."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def stop_fields(reason: Reason, original: Fields, *, refused: bool) -> dict[str, Any]:
    """The fields that say why the turn ended, the server's original ones where they agree with the reason."""
    stop_reason = original_reason(reason, original)
    if stop_reason:
        return {"stop_reason": stop_reason, "stop_sequence": original.get("stop_sequence")}
    return {"stop_reason": "refusal" if refused and reason == "stop" else _STOP[reason], "stop_sequence": None}


def thinking_block(parts: tuple[str, ...], end: ReasoningEnded) -> dict[str, Any] | None:
    """Reasoning as a thinking block, with its signature, packed if it has another origin."""
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


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as Anthropic counts them: cached tokens are not part of the input tokens."""
    return {
        "input_tokens": max(0, usage.input - usage.cached - usage.cache_write),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        **({"output_tokens_details": {"thinking_tokens": usage.reasoning}} if usage.reasoning else {}),
    }


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """The whole turn as one message."""
    content = Content()
    for item in turn.items:
        content.add(item)
    content.end_text()
    original = content.original
    refused = any(isinstance(item, Refusal) for item in turn.items)
    message: dict[str, Any] = {**NULL_FIELDS, **original, **message_head(id, request.model), "content": content.blocks}
    message |= stop_fields(turn.reason, original, refused=refused)
    counted = without_nulls(object_in(original, "usage"))
    return to_json({**message, "usage": {**NULL_USAGE, **counted, **usage_object(turn.usage or Usage())}})


class Content:
    """Builds the blocks of a message, with the server's unknown fields of the message and its blocks kept."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self.original: Fields = {}
        self._original_block: Fields = {}  # the server's fields of the next block
        self._texts: list[str] = []  # of the last block, while more may be added to it

    def add(self, item: object) -> None:
        """Add one item of a turn."""
        match item:
            case Text(text) | Refusal(text):
                if not self._texts:
                    self._put({"type": "text", "text": ""})
                self._texts.append(text)
            case Reasoning():
                end = ReasoningEnded(item.id, item.signature, item.origin, item.redacted)
                block = thinking_block(item.parts, end)
                if block is not None:
                    self._put(block)
            case Call():
                self._put({"type": "tool_use", "id": item.id, "name": item.name, "input": _input(item)})
            case MessageEnded():
                self.end_text()
            case RawFrame():
                self._take_raw_frame(item)
            case _:
                pass

    def end_text(self) -> None:
        """Close the last block, if it is a text."""
        if self._texts:
            self.blocks[-1]["text"] = "".join(self._texts)
            self._texts = []

    def _take_raw_frame(self, frame: RawFrame) -> None:
        self.end_text()
        if frame.type == "message":
            self.original = fields_of(frame.data)
        elif frame.type == "content_block_start":
            self._original_block = object_in(fields_of(frame.data), "content_block")
            if frame.is_unknown:
                self.blocks.append(self._original_block)

    def _put(self, block: dict[str, Any]) -> None:
        self.end_text()
        original, self._original_block = self._original_block, {}
        type = block["type"]
        self.blocks.append({**(original if block_type(original) == type else BLOCK_FIELDS.get(type, {})), **block})


def _input(call: Call) -> msgspec.Raw:
    if call.kind == "custom":
        return msgspec.Raw(wrap(call.arguments).encode())
    return as_object(call.arguments) or wrap_arguments(call.arguments)
