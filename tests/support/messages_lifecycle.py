"""A strict reader of one finished Messages stream: it says which rules of the protocol the stream broke.

Every complaint reads `rule: sentence`, as those of `lifecycle` for Responses do. A frame is the SSE event name and the
data.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
Frame = tuple[str | None, Json]

DELTAS = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("tool_use", "partial_json"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
}
"""The kinds of deltas: the block they belong to, and the field that holds them."""
EMPTY: dict[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""What a block that grows has when it starts."""
STOPS = ("end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded")  # fmt: skip
CUT = ("max_tokens", "refusal")


def violations(frames: Iterable[Frame]) -> list[str]:
    """Every rule that one finished stream broke."""
    events = [(name, data) for name, data in frames if data.get("type") != "ping"]
    types = [str(data.get("type")) for _, data in events]
    return [
        *_names(events),
        *_opening(events, types),
        *_closing(events, types),
        *Blocks().read([data for _, data in events]),
    ]


def _names(events: list[Frame]) -> Iterator[str]:
    for name, data in events:
        if name != data.get("type"):
            yield f"event-name: {data.get('type')} is sent under the name {name!r}."


def _opening(events: list[Frame], types: list[str]) -> Iterator[str]:
    if types[:1] != ["message_start"] and types != ["error"]:
        yield "opening: the stream does not begin with message_start."
        return
    if types.count("message_start") > 1:
        yield "opening: message_start comes more than once."
    message = events[0][1].get("message", {})
    if types != ["error"] and not isinstance(message.get("usage"), dict):
        yield "opening: message_start has no usage."
    if types != ["error"] and (message.get("content") != [] or message.get("stop_reason") is not None):
        yield "opening: message_start has content or a stop reason already."


def _closing(events: list[Frame], types: list[str]) -> Iterator[str]:
    if "error" in types:
        if types[-1] != "error" or "message_delta" in types or "message_stop" in types:
            yield "error-event: something follows an error, or the turn ended before it."
        return
    if types[-2:] != ["message_delta", "message_stop"] or types.count("message_delta") != 1:
        yield "closing: the stream does not end with one message_delta and message_stop."
        return
    last = events[-2][1]
    if last.get("delta", {}).get("stop_reason") not in STOPS:
        yield f"closing: the stop reason is {last.get('delta', {}).get('stop_reason')!r}."
    if not isinstance(last.get("usage", {}).get("output_tokens"), int):
        yield "closing: message_delta does not count the output."


class Blocks:
    """All blocks of one message, of which one at most is open."""

    def __init__(self) -> None:
        self._types: list[str] = []
        self._open = False
        self._pieces: list[str] = []
        self._signed = False
        self._unread: list[int] = []

    def read(self, events: list[Json]) -> Iterator[str]:
        steps = {"content_block_start": self._start, "content_block_delta": self._grow, "content_block_stop": self._stop}  # fmt: skip
        for event in events:
            step = steps.get(str(event.get("type")))
            if step is not None:
                yield from step(event)
        failed = any(event.get("type") == "error" for event in events)
        if self._open and not failed:
            yield "block-order: a block is never stopped."
        stops = [event["delta"].get("stop_reason") for event in events if event.get("type") == "message_delta"]
        for index in self._unread:
            if index != len(self._types) - 1 or not set(stops) <= set(CUT):
                yield f"input: the fragments of block {index} are no JSON object."
        if "tool_use" in stops and "tool_use" not in self._types:
            yield "closing: the stop reason is tool_use, and no tool is used."

    def _start(self, event: Json) -> Iterator[str]:
        if self._open:
            yield "block-order: a block starts while another is open."
        if event.get("index") != len(self._types):
            yield f"block-index: a block starts at {event.get('index')!r} where {len(self._types)} is next."
        block = event.get("content_block", {})
        type = str(block.get("type"))
        for field, empty in EMPTY.get(type, {}).items():
            if block.get(field) != empty:
                yield f"block-start: a {type} block starts with {field} {block.get(field)!r}."
        self._types.append(type)
        self._open, self._pieces, self._signed = True, [], False

    def _grow(self, event: Json) -> Iterator[str]:
        delta = event.get("delta", {})
        wanted, field = DELTAS.get(str(delta.get("type")), ("", ""))
        if not self._open or event.get("index") != len(self._types) - 1:
            yield f"block-order: a delta is for block {event.get('index')!r}, which is not open."
        elif self._types[-1] != wanted or not isinstance(delta.get(field), str):
            yield f"delta: a {delta.get('type')} comes in a {self._types[-1]} block, or is no string."
        elif field == "signature":
            if self._signed:
                yield "delta: a thought is signed twice."
            self._signed = True
        else:
            if self._signed:
                yield "delta: a thought goes on behind its signature."
            self._pieces.append(delta[field])

    def _stop(self, event: Json) -> Iterator[str]:
        if not self._open or event.get("index") != len(self._types) - 1:
            yield f"block-order: block {event.get('index')!r} stops and is not open."
        elif self._types[-1] == "tool_use" and not is_object("".join(self._pieces) or "{}"):
            self._unread.append(len(self._types) - 1)
        elif self._types[-1] == "text" and not "".join(self._pieces):
            yield "block-empty: a text block has no text."
        self._open = False


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
