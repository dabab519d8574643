"""Streams of our own, held against the rules of `toolwire check`, and against what only we demand of ourselves.

Every complaint reads `rule: sentence`. Frames are data that was read already; a test that has the bytes of a stream can
give them to `StreamCheck` itself.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from toolwire.check.turns.frames import DONE, ReceivedFrame
from toolwire.check.turns.rule import RequestFacts
from toolwire.check.turns.streams import check_frames

Json = dict[str, Any]
Named = tuple[str | None, Json]
"""The name of an SSE event, None over WebSocket, and its data."""

NOT_OF_FORM = {
    "chat": ("usage.reported", "usage.parts", "calls.json"),
    "responses": ("usage.reported", "usage.parts", "calls.json"),
    "messages": ("usage.reported",),
    "gemini": ("usage.reported", "usage.parts"),
}
"""A gateway tells the tokens that it was told of. Whether it mends arguments is for its operator to say, but for Messages
and Gemini, where there is no place for what is no object."""


def chat_faults(frames: Iterable[tuple[str, Any]], *, usage: bool) -> list[str]:
    """What is wrong with a chat stream. Frames are (`data`, value) and (`comment`, text), as `read_sse` gives them."""
    data = [value for kind, value in frames if kind == "data"]
    chunks = [value for value in data if value != DONE and "error" not in value]
    return _broken([(None, value) for value in data], RequestFacts("chat", usage=usage)) or [
        *_chat_habits(chunks, usage)
    ]


def messages_faults(frames: Iterable[Named]) -> list[str]:
    """What is wrong with a Messages stream."""
    named = [*frames]
    return _broken(named, RequestFacts("messages")) or [*_messages_habits([data for _, data in named])]


def gemini_faults(chunks: Iterable[Json]) -> list[str]:
    """What is wrong with the chunks of a Gemini stream."""
    return _broken([(None, chunk) for chunk in chunks], RequestFacts("gemini"))


def responses_faults(frames: Iterable[Named], *, done: bool | None, extended: bool = False) -> list[str]:
    """What is wrong with a Responses stream. `done` says whether `[DONE]` came last; None stands for a WebSocket.

    `extended` allows the events that are sent only on request, and a completed response that is incomplete while calls
    wait.
    """
    named = [*frames]
    facts = RequestFacts("responses", extended=extended, socket=done is None)
    marker: list[tuple[str | None, Any]] = [(None, DONE)] if done else []
    return _broken([*named, *marker], facts) or [*_responses_habits([data for _, data in named])]


def _broken(frames: Iterable[tuple[str | None, Any]], facts: RequestFacts) -> list[str]:
    received = [_received_frame(index, name, value) for index, (name, value) in enumerate(frames)]
    found, _ = check_frames(received, facts)
    return [str(finding) for finding in found if finding.rule not in NOT_OF_FORM[facts.api]]


def _received_frame(index: int, name: str | None, value: Any) -> ReceivedFrame:
    return ReceivedFrame(index, 0.0, name, DONE) if value == DONE else ReceivedFrame(index, 0.0, name, "", value)


# Habits: what no rule asks for, and we do all the same. Only a stream that breaks no rule is looked at.


def _chat_habits(chunks: list[Json], usage: bool) -> Iterator[str]:
    if any(("usage" in chunk) != usage for chunk in chunks):
        yield "habit: usage is a field of every chunk if it was asked for, and else of none."
    firsts = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0]
    if any("role" in choice["delta"] for choice in firsts[1:]):
        yield "habit: there is no role but in the first chunk."
    if any(choice["finish_reason"] for choice in firsts[:-1]):
        yield "habit: nothing at all follows the finish reason."
    begun: set[int] = set()
    for part in (part for choice in firsts for part in choice["delta"].get("tool_calls", ())):
        inner = part.get("function", part.get("custom", {}))
        if not isinstance(inner.get("arguments", inner.get("input")), str):
            yield "habit: every fragment has arguments."
        if part["index"] in begun and ({"id", "type"} & set(part) or "name" in inner):
            yield "habit: a further fragment has nothing but arguments."
        begun.add(part["index"])


def _messages_habits(events: list[Json]) -> Iterator[str]:
    if [event["type"] for event in events].count("message_delta") > 1:
        yield "habit: there is one message_delta."
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    if any(block.get("signature") != "" for block in blocks if block["type"] == "thinking"):
        yield "habit: a thought starts with an empty signature."


def _responses_habits(events: list[Json]) -> Iterator[str]:
    done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    if not all(item.get("status") for item in (*added, *done.values())):
        yield "habit: every item has a status."
    output = events[-1]["response"]["output"]
    if any(output[index : index + 1] != [item] for index, item in done.items()):
        yield "habit: the items of the response are those that were done, to the letter."
    for event in events:
        within, index = _PARTS.get(event["type"], ("", ""))
        item = done.get(event.get("output_index", -1))
        if within and item is not None and item[within][event[index]] != event["part"]:
            yield f"habit: {event['type']} has its part as the item has it in the end, to the letter."


_PARTS = {
    "response.content_part.done": ("content", "content_index"),
    "response.reasoning_summary_part.done": ("summary", "summary_index"),
}
