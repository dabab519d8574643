"""Which event of a stream belongs to what: the text, the reasoning, a call, or none of them.

A broken stream has to be drawn as well, so nothing is taken for granted: an event of a part that never began is told
by its own words.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.check.exchange import Exchange
from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import as_object, as_objects, as_text

Lane: TypeAlias = Literal["text", "reasoning", "calls", "other"]
LANES: tuple[Lane, ...] = ("text", "reasoning", "calls", "other")

_WORDS: tuple[tuple[Lane, tuple[str, ...]], ...] = (
    ("reasoning", ("reasoning", "thinking", "signature")),
    ("calls", ("_call", "tool_use", "input_json")),
    ("text", ("text", "refusal", "content_part", "citations")),
)
"""Words in the types of events, items, blocks and deltas. The first that fits decides."""
_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")
"""How servers name the reasoning in a chunk of chat, which has no name for it."""


class Bar(msgspec.Struct, frozen=True):
    """A call, from its first event to its last."""

    name: str
    first: int
    last: int


def lanes_of(exchange: Exchange) -> dict[int, Lane]:
    """The lane of every event, by its place."""
    if exchange.api == "chat":
        return {each.place: _chat_lane(each) for each in exchange.heard}
    lanes: dict[int, Lane] = {}
    parts: dict[int, Lane] = {}
    for each in exchange.heard:
        part, said = _part(each), _said_lane(each)
        begins = "item" in each.fields or "content_block" in each.fields
        lane = said if part is None or begins else parts.get(part, said)
        if part is not None and begins:
            parts[part] = lane
        lanes[each.place] = lane
    return lanes


def _chat_lane(each: Heard) -> Lane:
    deltas = [as_object(choice.get("delta")) for choice in as_objects(each.fields.get("choices"))]
    if any(delta.get("tool_calls") or delta.get("function_call") for delta in deltas):
        return "calls"
    if any(delta.get("content") or delta.get("refusal") for delta in deltas):
        return "text"
    return "reasoning" if any(delta.get(name) for delta in deltas for name in _THOUGHTS) else "other"


def _said_lane(each: Heard) -> Lane:
    fields = each.fields
    inner = [as_object(fields.get(name)).get("type") for name in ("item", "content_block", "part", "delta")]
    if as_text(inner[0]) == "message":
        return "text"
    words = " ".join(as_text(word) for word in (fields.get("type"), *inner))
    for lane, known in _WORDS:
        if any(word in words for word in known):
            return lane
    return "other"


def _part(each: Heard) -> int | None:
    """The number of the item or block that an event is about."""
    index = each.fields.get("output_index", each.fields.get("index"))
    return index if type(index) is int else None


def bars_of(exchange: Exchange, lanes: dict[int, Lane]) -> Iterator[Bar]:
    """The calls of a stream, those too that were never ended."""
    parts = _call_parts(exchange.heard, lanes)
    for call in exchange.turn.calls:
        own = [part for part, places in parts.items() if set(places) & set(call.frames)]
        places = [*call.frames, *(place for part in own for place in parts.pop(part))]
        if places:
            yield Bar(call.name, min(places), max(places))
    heard = {each.place: each for each in exchange.heard}
    for places in parts.values():
        yield Bar(_name(heard[places[0]]), places[0], places[-1])


def _call_parts(heard: Sequence[Heard], lanes: dict[int, Lane]) -> dict[int, list[int]]:
    parts: dict[int, list[int]] = {}
    for each in heard:
        part = _part(each)
        if part is not None and lanes[each.place] == "calls":
            parts.setdefault(part, []).append(each.place)
    return parts


def _name(first: Heard) -> str:
    begun = as_object(first.fields.get("item") or first.fields.get("content_block"))
    return as_text(begun.get("name")) or as_text(begun.get("type"))
