"""A finished turn as one message, and the parts of a message that its stream is made of too."""

from typing import Any

import msgspec

from toolwire.core.collect import Call, Reasoning, Refusal, Text, Turn
from toolwire.core.events import SPOKEN_BLOCKS, MessageEnded, Reason, ReasoningEnded, Told, Usage
from toolwire.core.request import Request
from toolwire.core.seals import Seal, pack
from toolwire.core.text import as_object, wrapped
from toolwire.core.unwrap import wrap
from toolwire.dialects.messages.forward import Fields, block_type, inner, own_reason, usage_of
from toolwire.dialects.messages.history import ISSUER

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields).decode

_STOP: dict[Reason, str] = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal"}


# What Anthropic's document requires of a message and has null for; a server may know better.
UNKNOWN: dict[str, Any] = {"container": None, "diagnostics": None, "stop_details": None}
UNCOUNTED: dict[str, Any] = {
    "cache_creation": None,
    "inference_geo": None,
    "output_tokens_details": None,
    "server_tool_use": None,
    "service_tier": None,
    "speed": None,
}
UNCOUNTED_AT_THE_END: dict[str, Any] = {"output_tokens_details": None, "server_tool_use": None}


def message_head(id: str, model: str) -> dict[str, Any]:
    """A message of which nothing is known yet."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def end_of(reason: Reason, said: Fields, *, refused: bool) -> dict[str, Any]:
    """Why the turn ended, in the server's own word where that is one of this dialect."""
    word = own_reason(reason, said)
    if word:
        return {"stop_reason": word, "stop_sequence": said.get("stop_sequence")}
    return {"stop_reason": "refusal" if refused and reason == "stop" else _STOP[reason], "stop_sequence": None}


def thought_block(parts: tuple[str, ...], end: ReasoningEnded) -> dict[str, Any] | None:
    """A thought as a block, sealed so that it can go back to whoever made it."""
    text = "\n\n".join(parts)
    if not text and not end.seal:
        return None
    if end.seal and end.issuer != ISSUER:
        seal = pack(Seal(end.issuer, end.id, parts, end.seal, end.redacted))
    else:
        seal = end.seal
    is_hidden = end.redacted if end.issuer == ISSUER else not text
    if is_hidden:
        return {"type": "redacted_thinking", "data": seal}
    return {"type": "thinking", "thinking": text, "signature": seal}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as Anthropic counts them: what came from the cache is not in the input."""
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
    said = content.said
    refused = any(isinstance(item, Refusal) for item in turn.items)
    message: dict[str, Any] = {**UNKNOWN, **said, **message_head(id, request.model), "content": content.blocks}
    message |= end_of(turn.reason, said, refused=refused)
    return _json({**message, "usage": {**UNCOUNTED, **usage_of(said), **usage_object(turn.usage or Usage())}})


class Content:
    """The blocks of a message. What the server said of the message and of its blocks is laid under ours."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self.said: Fields = {}
        self._under: Fields = {}  # of the block to come
        self._texts: list[str] = []  # of the last block, while more may be added to it

    def add(self, item: object) -> None:
        match item:
            case Text(text) | Refusal(text):
                if not self._texts:
                    self._put({"type": "text", "text": ""})
                self._texts.append(text)
            case Reasoning():
                end = ReasoningEnded(item.id, item.seal, item.issuer, item.redacted)
                block = thought_block(item.parts, end)
                if block is not None:
                    self._put(block)
            case Call():
                self._put({"type": "tool_use", "id": item.id, "name": item.name, "input": _input(item)})
            case MessageEnded():
                self.end_text()
            case Told():
                self._hear(item)
            case _:
                pass

    def end_text(self) -> None:
        """Nothing more is added to the last block, if that is a text."""
        if self._texts:
            self.blocks[-1]["text"] = "".join(self._texts)
            self._texts = []

    def _hear(self, told: Told) -> None:
        self.end_text()
        if told.type == "message":
            self.said = _fields(told.data)
        elif told.type == "content_block_start":
            self._under = inner(told.data, "content_block")
            if block_type(self._under) not in SPOKEN_BLOCKS:
                self.blocks.append(self._under)

    def _put(self, block: dict[str, Any]) -> None:
        self.end_text()
        under, self._under = self._under, {}
        self.blocks.append({**under, **block} if block_type(under) == block["type"] else block)


def _input(call: Call) -> msgspec.Raw:
    if call.kind == "custom":
        return msgspec.Raw(wrap(call.arguments).encode())
    return as_object(call.arguments) or wrapped(call.arguments)
