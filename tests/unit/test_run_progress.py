"""What a log has shown of a response, when nobody knows more than the log."""

import asyncio
import json
from typing import Any

from tests.store.examples import ANN, record
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnFailed,
    TurnStarted,
)
from toolwire.core.notes import TurnStats
from toolwire.dialects import responses
from toolwire.gateway.responses.run_progress import LoggedItems, ProgressCache, read_progress
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import NO_BOUND, Append, Effects, EventChunk, Member

BODY = json.dumps({"model": "m", "input": "Go."}).encode()
DELIVERED: tuple[Event, ...] = (
    TurnStarted(),
    ReasoningDelta("I must ", "summary"),
    ReasoningDelta("look.", "summary"),
    ReasoningEnded(id="rs_1", signature="SIGNED"),
    TextDelta("Once "),
    TextDelta('upon \n a "time"'),
    CallStarted("c1", "find"),
    CallArgs("c1", '{"q":'),
    CallArgs("c1", '"x"}'),
    CallEnded("c1"),
    TextDelta("And "),
    TextDelta("then"),
    CallStarted("c2", "find"),
    CallArgs("c2", '{"q"'),
)


def logged(events: tuple[Event, ...]) -> tuple[LoggedItems, list[Any]]:
    """The items of a log that ends after these events, and those of the response that fails there."""
    request = responses.read_request(BODY).decode()
    encoder = responses.StreamEncoder(request, "resp_1", 0, TurnStats())
    shown = LoggedItems()
    for event in events:
        for piece in encoder.feed(event):
            shown.feed(piece)
    encoder.feed(TurnFailed(Failure(500, "x", "x")))
    return shown, [json.loads(bytes(item)) for item in encoder.output]


def test_a_log_that_ends_anywhere_shows_the_items_that_the_response_has_then():
    for end in range(1, len(DELIVERED) + 1):
        shown, output = logged(DELIVERED[:end])
        assert [json.loads(bytes(item)) for item in shown.all_items] == output, DELIVERED[end - 1]


def test_only_items_that_are_closed_are_complete():
    shown, output = logged(DELIVERED)
    complete = [json.loads(bytes(item)) for item in shown.complete_items]
    assert complete == output[:-1]
    assert {item["status"] for item in complete} == {"completed"}


class Counting(SqliteStore):
    """Counts the bytes of events that are read."""

    read = 0

    async def follow(self, wanted, most=NO_BOUND):
        found = await super().follow(wanted, most)
        self.read += sum(len(chunk.frames) for each in found for chunk in each.chunks)
        return found


def test_every_poll_sees_what_is_committed_and_reads_what_is_new():
    async def tried() -> None:
        store = Counting("memory:", 0, 0)
        await store.join(Member("m1"))
        fence = await store.queue(ANN, record("r1", status="queued"), (), Effects(), plan=b"{}", member="m1")
        polled, written, number = ProgressCache(store), 0, 0
        encoder = responses.StreamEncoder(responses.read_request(BODY).decode(), "resp_1", 0, TurnStats())
        for event in DELIVERED:
            frames = b"".join(encoder.feed(event))
            count = frames.count(b"\n\n")
            if count:
                await store.append([Append(ANN, fence, EventChunk(number, count, frames))])
                written, number = written + len(frames), number + count
            seen = await polled.read(ANN, "r1")
            assert (seen.events, seen.size, store.read) == (number, written, written)
            at_once = await asyncio.gather(*(polled.read(ANN, "r1") for _ in range(3)))
            store.read = written
            fresh = await read_progress(store, ANN, "r1")
            store.read = written
            for each in (seen, *at_once):
                assert (each.events, each.items.complete_items, each.items.all_items) == (
                    number,
                    fresh.items.complete_items,
                    fresh.items.all_items,
                )
        await store.close()

    asyncio.run(tried())
