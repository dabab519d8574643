"""Assigns the events of a stream to lanes: text, reasoning, calls or other.

Faulty streams are drawn too: an event of an item that never started is classified by its own type.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.check.exchange import Exchange
from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import as_object, as_objects, as_text

Lane: TypeAlias = Literal["text", "reasoning", "calls", "other"]
LANES: tuple[Lane, ...] = ("text", "reasoning", "calls", "other")

_TYPE_WORDS: tuple[tuple[Lane, tuple[str, ...]], ...] = (
    ("reasoning", ("reasoning", "thinking", "signature")),
    ("calls", ("_call", "tool_use", "input_json")),
    ("text", ("text", "refusal", "content_part", "citations")),
)
"""Substrings of the types of events, items, blocks and deltas; the first match decides."""
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")
"""The fields in which chat servers send reasoning; the API defines none."""


class Bar(msgspec.Struct, frozen=True):
    """A call, from its first event to its last."""

    name: str
    first: int
    last: int


def lanes_of(exchange: Exchange) -> dict[int, Lane]:
    """The lane of every event, by its position."""
    if exchange.api == "chat":
        return {each.position: _chat_lane(each) for each in exchange.received}
    lanes: dict[int, Lane] = {}
    parts: dict[int, Lane] = {}
    for each in exchange.received:
        part, own = _part(each), _type_lane(each)
        begins = "item" in each.fields or "content_block" in each.fields
        lane = own if part is None or begins else parts.get(part, own)
        if part is not None and begins:
            parts[part] = lane
        lanes[each.position] = lane
    return lanes


def _chat_lane(each: ReceivedFrame) -> Lane:
    deltas = [as_object(choice.get("delta")) for choice in as_objects(each.fields.get("choices"))]
    if any(delta.get("tool_calls") or delta.get("function_call") for delta in deltas):
        return "calls"
    if any(delta.get("content") or delta.get("refusal") for delta in deltas):
        return "text"
    return "reasoning" if any(delta.get(name) for delta in deltas for name in _REASONING_FIELDS) else "other"


def _type_lane(each: ReceivedFrame) -> Lane:
    fields = each.fields
    inner = [as_object(fields.get(name)).get("type") for name in ("item", "content_block", "part", "delta")]
    if as_text(inner[0]) == "message":
        return "text"
    words = " ".join(as_text(word) for word in (fields.get("type"), *inner))
    for lane, known in _TYPE_WORDS:
        if any(word in words for word in known):
            return lane
    return "other"


def _part(each: ReceivedFrame) -> int | None:
    """The number of the item or block that an event is about."""
    index = each.fields.get("output_index", each.fields.get("index"))
    return index if type(index) is int else None


def bars_of(exchange: Exchange, lanes: dict[int, Lane]) -> Iterator[Bar]:
    """The calls of a stream, including those that never ended."""
    parts = _call_parts(exchange.received, lanes)
    for call in exchange.turn.calls:
        own = [part for part, positions in parts.items() if set(positions) & set(call.frames)]
        positions = [*call.frames, *(position for part in own for position in parts.pop(part))]
        if positions:
            yield Bar(call.name, min(positions), max(positions))
    received = {each.position: each for each in exchange.received}
    for positions in parts.values():
        yield Bar(_name(received[positions[0]]), positions[0], positions[-1])


def _call_parts(received: Sequence[ReceivedFrame], lanes: dict[int, Lane]) -> dict[int, list[int]]:
    parts: dict[int, list[int]] = {}
    for each in received:
        part = _part(each)
        if part is not None and lanes[each.position] == "calls":
            parts.setdefault(part, []).append(each.position)
    return parts


def _name(first: ReceivedFrame) -> str:
    begun = as_object(first.fields.get("item") or first.fields.get("content_block"))
    return as_text(begun.get("name")) or as_text(begun.get("type"))
