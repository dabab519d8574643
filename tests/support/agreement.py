"""A server's reply, read by the backend's decoder and by the public aggregator: both must find the same calls."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from toolwire import Call, ToolCallAggregator
from toolwire.backends.chat.decode import Decoder as ChatDecoder
from toolwire.backends.messages.decode import Decoder as MessagesDecoder
from toolwire.backends.responses.decode import Decoder as ResponsesDecoder
from toolwire.core.collect import Turn, collect
from toolwire.core.order import TurnOrder
from toolwire.core.sse import FrameReader
from toolwire.core.text import canonicalise

SEED = "S"
DECODERS: dict[str, Any] = {"chat": ChatDecoder, "messages": MessagesDecoder, "responses": ResponsesDecoder}
UNREAD = frozenset(("frame_skipped", "letter_replaced"))
"""Notes about bytes that no JSON reader takes, so that the aggregator never sees them."""
NEVER_ENDED = frozenset(("reason_missing", "end_missing"))
ENDED = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
CUT = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}

Told = list[tuple[str, str, bytes, str, bool, str]]


def agreed_calls(kind: str, data: bytes, names: Sequence[str] = (), *, snapshots: bool = False) -> tuple[Call, ...]:
    """The calls of a stream, once decoder and aggregator have found the same."""
    decoder, order = DECODERS[kind](SEED, names, snapshots=snapshots), TurnOrder()
    reader = FrameReader()
    frames = [*reader.feed(data), *reader.end()]
    events = [event for frame in frames for event in decoder.feed(frame)]
    turn = collect([passed for event in (*events, *decoder.end()) for passed in order.feed(event)])
    if not _is_comparable(turn):
        return turn.calls
    aggregator = _aggregator(names, snapshots=snapshots)
    for frame in frames:
        payload = _payload(frame.event, frame.data)
        if payload is not None:
            aggregator.ingest_delta(payload)
    codes = {note.code for note in turn.notes}
    if codes & NEVER_ENDED:
        aggregator.ingest_delta(CUT if "end_missing" in codes else ENDED)
    assert told(aggregator.snapshot()) == told(turn.calls)
    return turn.calls


def agreed_plain_calls(kind: str, body: bytes, names: Sequence[str] = ()) -> tuple[Call, ...]:
    """The calls of a plain reply, once decoder and aggregator have found the same."""
    turn = collect(DECODERS[kind](SEED, names).feed_plain(body))
    if _is_comparable(turn):
        aggregator = _aggregator(names)
        payload = json.loads(body)
        aggregator.ingest_message(payload)
        if turn.reason in ("stop", "calls"):
            aggregator.ingest_delta(ENDED)
        assert told(aggregator.snapshot()) == told(turn.calls)
    return turn.calls


def told(calls: Iterable[Call]) -> Told:
    """What is said of each call. One that waits for its name is delivered behind those that do not, so they are sorted."""
    return sorted(
        (call.id, call.name, canonicalise(call.arguments or "{}"), call.kind, call.complete, call.namespace)
        for call in calls
    )


def _aggregator(names: Sequence[str], *, snapshots: bool = False) -> ToolCallAggregator:
    aggregator = ToolCallAggregator(names, SEED, "snapshot" if snapshots else "delta")
    aggregator.register_text_pattern("text", lambda text: [])  # a decoder does not look into text
    return aggregator


def _is_comparable(turn: Turn) -> bool:
    return turn.failure is None and not any(note.code in UNREAD for note in turn.notes)


def _payload(event: bytes, data: bytes) -> Any:
    if data.strip() == b"[DONE]":
        return None
    payload = json.loads(data)
    if event and isinstance(payload, dict) and "type" not in payload and "choices" not in payload:
        return {"type": event.decode(), **payload}
    return payload
