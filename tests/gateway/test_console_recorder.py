"""How the console records turns: what a row holds, what is kept, counted and pinned, without a gateway around it."""

import asyncio
import os
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from toolwire.config.settings import Console, Key, Settings
from toolwire.core.events import TurnEnded, Usage
from toolwire.core.notes import TurnStats
from toolwire.core.request import CallEntry, Message, RequestHead, ResultEntry, TextPart
from toolwire.gateway.console import recorder, statistics
from toolwire.gateway.console import trace as traces_module
from toolwire.gateway.console.content import pack, read_stream, unpack
from toolwire.gateway.console.conversations import ConversationTurn, compare_prompts, count_common_bytes
from toolwire.gateway.console.prompts import make_prompt, read_segment
from toolwire.gateway.console.recorder import (
    ALL_KEYS,
    MAX_HELD,
    MAX_PENDING_SIZE,
    ROWS_PER_BATCH,
    TurnRecorder,
)
from toolwire.gateway.console.ring import RecordedTurn, Ring
from toolwire.gateway.console.rows import MAX_NAME_LENGTH, TurnRow, list_results
from toolwire.gateway.console.secrets import redact_headers, remove_secrets
from toolwire.gateway.console.statistics import MAX_NAMES, OTHERS, Statistics, count_rows, merge_reports
from toolwire.gateway.console.trace import MAX_TRACE_SIZE, TurnTrace
from toolwire.gateway.log import Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.process import Process
from toolwire.turns.observers import AttemptInfo, TurnOutcome, TurnReport

VENDOR = "sk-proj-abcdefghijklmnop1234"
KEYS = (Key("ann", "ann-key-123456", console=True), Key("bob", "bob-key-123456", console=True))


class Turns:
    """A recorder, and turns for it."""

    def __init__(self, recorder: TurnRecorder) -> None:
        self.recorder = recorder
        self._count = 0

    def begin(self, key: str = "", request: bytes = b"{}", **headers: str) -> tuple[TurnTrace, TurnReport]:
        self._count += 1
        given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        report = TurnReport(f"turn-{self._count}", "req_1", "chat", key=key, status=200, stream=False, backend="up")
        trace = self.recorder.begin(report, RequestHead(given), "/v1/chat/completions")
        self.recorder.enter(report)
        trace.receive(request)
        return trace, report

    def end(self, trace: TurnTrace, report: TurnReport, stats: TurnStats | None = None, **more: Any) -> TurnRow:
        report = msgspec.structs.replace(report, **more)
        self.recorder.end(report, TurnOutcome(stats or TurnStats(), 0.1, report.key or "", None))
        kept = self.recorder.ring.get(trace.seed)
        assert kept is not None
        return kept.row

    def run(self, key: str = "", request: bytes = b"{}", **more: Any) -> TurnRow:
        return self.end(*self.begin(key, request), **more)


def watched(use: Callable[[Turns], Coroutine[Any, Any, None]], settings: Settings | None = None) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        log = Log("info", loop)
        made = TurnRecorder(settings or Settings(), "t" * 40, Process("v"), log)
        try:
            await asyncio.wait_for(use(Turns(made)), 60)
        finally:
            log.flush()

    asyncio.run(main())


# Rows


def test_what_others_named_is_short_in_a_row_and_has_no_secrets():
    async def use(turns: Turns) -> None:
        trace, facts = turns.begin(
            user_agent=f"agent {VENDOR}", session_id=f"of {VENDOR}", referer="https://x/?token=a"
        )
        stats = TurnStats()
        stats.ending = TurnEnded(f"{VENDOR} {'x' * 5000}")  # type: ignore[arg-type]
        row = turns.end(trace, facts, stats, error=f"{VENDOR} {'x' * 50_000}", model=f"{VENDOR}/m")
        assert VENDOR not in repr(row)
        assert max(len(text) for text in (row.client, row.session, row.error, row.reason, row.model)) <= MAX_NAME_LENGTH
        assert row.client == "agent [removed]"

    watched(use)


def test_a_row_counts_for_the_memory_it_takes():
    tracemalloc.start()
    try:
        ring, names = Ring(10**9), [os.urandom(64).hex() for _ in range(32)]
        before = tracemalloc.get_traced_memory()[0]
        for number in range(300):
            calls = tuple(f"{number}{name}" for name in names)
            ring.add([RecordedTurn(TurnRow(f"id{number}", 0.0, "chat", calls=calls, error="x" * 120), "o")])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= ring.size <= 2 * taken


def test_the_clients_own_key_and_odd_ids_are_not_in_a_row():
    own = "the-clients-own-key"

    async def use(turns: Turns) -> None:
        trace, facts = turns.begin(authorization=f"Bearer {own}", user_agent=f"me {own}", session_id=own)
        trace.results = (f"{VENDOR} failed", "call_2")
        [running] = turns.recorder.list_running()
        stats = TurnStats()
        stats.call_ids += [VENDOR, "call_" + "t" * 40, "call_1"]
        row = turns.end(trace, facts, stats, model=f"up/{own}", error=own)
        for each in (row, running):
            assert own not in repr(each)
            assert VENDOR not in repr(each)
        assert row.model == "up/[removed]"
        assert row.call_ids == ("[removed]", "call_[removed]", "call_1")
        assert row.results == ("[removed] failed", "call_2")

    watched(use)


def test_no_more_tokens_are_counted_than_there_can_be():
    async def use(turns: Turns) -> None:
        stats = TurnStats()
        stats.usage = Usage(input=10**30, output=10**20)
        row = turns.end(*turns.begin(), stats)
        assert msgspec.msgpack.encode(row)
        assert msgspec.msgpack.encode(turns.recorder.statistics.report())

    watched(use)


def test_where_a_page_came_from_is_not_kept():
    shown = dict(redact_headers({"referer": "https://x.example/?token=REFTOKEN", "user-agent": "me"}, ()))
    assert shown == {"referer": "(not kept)", "user-agent": "me"}


def test_who_is_not_let_in_leaves_no_row():
    async def use(turns: Turns) -> None:
        report = TurnReport("refused", "req_1", "chat", status=401, stream=False)
        turns.recorder.begin(report, RequestHead(), "/v1/chat/completions")
        turns.recorder.end(report, TurnOutcome(TurnStats(), 0.1, "", None))
        assert len(turns.recorder.ring) == 0
        assert turns.recorder.statistics.report().all.turns == 0

    watched(use)


# What is held


def test_a_large_turn_that_runs_does_not_keep_others_from_being_kept():
    async def use(turns: Turns) -> None:
        large = [turns.begin(request=b"y" * (MAX_HELD // 4)) for _ in range(3)]
        assert turns.run().kept == "whole"
        more = turns.begin(request=b"y" * (MAX_HELD // 4))
        assert turns.run().kept == "cut", "running turns hold all that they may"
        for trace, facts in (*large, more):
            assert turns.end(trace, facts).kept == "whole"
        assert turns.run().kept == "whole"

    watched(use)


def test_rows_are_made_in_batches_of_bounded_number_and_size_though_nobody_looks():
    async def use(turns: Turns) -> None:
        for _ in range(ROWS_PER_BATCH + 3):
            _, facts = turns.begin()
            turns.recorder.end(facts, TurnOutcome(TurnStats(), 0.1, "", None))
        assert len(turns.recorder._ring) == ROWS_PER_BATCH
        _, facts = turns.begin(request=b"x" * (MAX_PENDING_SIZE + 1))
        turns.recorder.end(facts, TurnOutcome(TurnStats(), 0.1, "", None))
        assert len(turns.recorder._ring) == ROWS_PER_BATCH + 4
        assert turns.recorder._held.reserved == 0

    watched(use)


@pytest.mark.parametrize("per_second", [1, 50, 1_000_000])
def test_every_turn_that_fits_is_kept_whole_at_any_rate(monkeypatch: pytest.MonkeyPatch, per_second: int):
    now = 0.0
    monkeypatch.setattr(traces_module, "perf_counter", lambda: now)
    count, size = 5000, 2000

    async def use(turns: Turns) -> None:
        nonlocal now
        rows = []
        for number in range(count):
            now = number / per_second
            running, report = turns.begin(request=b"x" * size)
            running.began = now
            running.write((b"y" * size,))
            rows.append(turns.end(running, report))
        assert {row.kept for row in rows} == {"whole"}
        kept = list(turns.recorder.ring)
        assert [turn.row for turn in kept] == rows[-len(kept) :], "the oldest make room"
        assert count // 2 < len(kept) < count
        assert turns.recorder.ring.size <= 20_000_000
        first = await turns.recorder.find(kept[0].row.id)
        assert first is not None
        assert unpack(first.packed).request == b"x" * size

    watched(use, Settings(console=Console(max_size=20_000_000)))


def test_content_stays_raw_until_it_is_viewed_and_is_then_packed_without_secrets():
    async def use(turns: Turns) -> None:
        row = turns.run(request=f'{{"messages":"{VENDOR} {"lorem " * 1000}"}}'.encode())
        turn = turns.recorder.ring.get(row.id)
        assert turn is not None
        assert (turn.packed, turn.trace is not None) == (b"", True)
        before, seq = turns.recorder.ring.size, row.seq
        assert before > 6000
        await turns.recorder.find(row.id)
        assert (turn.trace, row.seq) == (None, seq)
        assert turns.recorder.ring.size < before - 5000
        assert b"[removed] lorem" in unpack(turn.packed).request
        assert VENDOR not in repr(unpack(turn.packed))

    watched(use)


def test_two_viewers_at_once_see_the_same():
    async def use(turns: Turns) -> None:
        row = turns.run(request=b'{"messages":"' + b"lorem " * 10_000 + b'"}')
        one, two = await asyncio.gather(turns.recorder.find(row.id), turns.recorder.find(row.id))
        assert one is two is turns.recorder.ring.get(row.id)
        assert one is not None
        assert b"lorem" in unpack(one.packed).request
        assert turns.recorder.ring.size == one.size

    watched(use)


def test_what_is_held_of_turns_is_bounded_in_bytes():
    held = MemoryBudget(20_000_000)
    traces = [TurnTrace(f"seed{number}", {}, held) for number in range(4)]
    for trace in traces:
        trace.keeps = True
        attempt = trace.attempt(AttemptInfo("up", "chat", "m"))
        for _ in range(20):
            attempt.read(b"x" * 1_000_000)
    assert [trace.size <= MAX_TRACE_SIZE and trace.is_cut for trace in traces] == [True] * 4
    assert held.reserved <= 20_000_000
    assert sum(len(data) for trace in traces for _, data in trace.attempts[0].reads) > 18_000_000


def test_a_body_that_is_too_large_does_not_cost_the_answer():
    async def use(turns: Turns) -> None:
        trace, facts = turns.begin(request=b"x" * (MAX_TRACE_SIZE + 1))
        trace.write((b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n',))
        row = turns.end(trace, facts)
        kept = await turns.recorder.find(row.id)
        assert kept is not None
        whole = unpack(kept.packed)
        assert (row.kept, whole.is_cut, whole.request) == ("cut", True, b"")
        assert b"Hi" in whole.answer.data

    watched(use)


def test_a_turn_that_cannot_be_prepared_says_so_here_and_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
):
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(recorder, "remove_secrets", fails)

    async def use(turns: Turns) -> None:
        row = turns.run()
        await turns.recorder.find(row.id)
        assert row.kept == "failed"

    watched(use)
    assert b"ZeroDivisionError" in capfdbinary.readouterr().err


def test_a_turn_that_takes_a_quarter_of_the_room_is_kept_as_metadata():
    async def use(turns: Turns) -> None:
        row = turns.run(request=os.urandom(20_000).hex().encode())
        await turns.recorder.find(row.id)
        assert row.kept == "large"

    watched(use, Settings(console=Console(max_size=60_000)))


def test_a_request_that_is_sent_as_it_came_is_held_and_kept_once():
    held = MemoryBudget(10**9)
    trace = TurnTrace("seed", {}, held)
    trace.keeps = True
    body = b'{"x":"' + b"y" * 100_000 + b'"}'
    trace.receive(body)
    trace.attempt(AttemptInfo("up", "chat", "m"))._send("/chat", body)
    assert held.reserved < 101_000
    trace.finish()
    trace.release()
    assert held.reserved == 0


def test_small_pieces_count_for_the_memory_they_take():
    tracemalloc.start()
    try:
        trace = TurnTrace("seed", {}, MemoryBudget(10**9))
        trace.keeps = True
        attempt = trace.attempt(AttemptInfo("up", "chat", "m"))
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            attempt.read(os.urandom(20))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert trace.size >= taken


def test_a_turn_that_left_while_somebody_waited_for_it_is_answered():
    async def use(turns: Turns) -> None:
        row = turns.run(request=b'{"messages":"' + b"lorem " * 15_000 + b'"}')
        asked = asyncio.create_task(turns.recorder.find(row.id))
        await asyncio.sleep(0)
        for _ in range(400):
            turns.run()
        assert turns.recorder.ring.get(row.id) is None
        turn = await asked
        assert turn is not None
        assert b"lorem" in unpack(turn.packed).request
        assert turns.recorder.ring.size <= 400_000

    watched(use, Settings(console=Console(max_size=400_000)))


# Capturing


def test_only_turns_that_are_kept_count_as_captured():
    async def use(turns: Turns) -> None:
        turns.recorder.capture(ALL_KEYS, 2)
        turns.recorder._held.reserved = 10**9
        assert turns.run("ann").kept == "metadata"
        assert turns.recorder.captures == {ALL_KEYS: 2}
        turns.recorder._held.reserved = 0
        told: list[str] = []
        turns.recorder.on_capture = told.append
        assert [turns.run("ann").kept for _ in range(3)] == ["whole", "whole", "metadata"]
        assert told == [ALL_KEYS, ALL_KEYS]

    watched(use, Settings(keys=KEYS))


def test_every_start_has_a_name_of_its_own():
    names: list[str] = []

    async def use(turns: Turns) -> None:
        names.append(turns.recorder.process)

    watched(use)
    watched(use)
    assert len({*names, ""}) == 3


# Pins and sizes


def test_one_key_pins_no_more_than_its_share():
    ring = Ring(100_000)
    for number in range(20):
        ring.add(
            [
                RecordedTurn(
                    TurnRow(f"id{number}", 0.0, "chat", key="ann" if number < 10 else "bob"), "o", packed=b"x" * 2000
                )
            ]
        )
    size = ring.get("id0").size  # type: ignore[union-attr]
    pinned = [ring.pin(f"id{number}", "ann", 0.5) for number in range(10)]
    assert pinned.count(True) == 25_000 // size
    assert ring.pin("id15", "bob", 0.5), "another key has its own"
    ring.unpin("id0")
    assert ring.pin("id9", "ann", 0.5)


def test_an_unpinned_turn_makes_room_first():
    ring = Ring(10**6)
    for number in range(3):
        ring.add([RecordedTurn(TurnRow(f"id{number}", 0.0, "chat"), "o")])
    ring.pin("id0")
    ring.unpin("id0")
    assert [kept.row.id for kept in ring] == ["id0", "id1", "id2"]


def test_a_pinned_turn_that_becomes_whole_counts_with_its_bytes():
    ring = Ring(10**6)
    kept = RecordedTurn(TurnRow("id", 0.0, "chat"), "o")
    ring.add([kept])
    ring.pin("id", "ann")
    ring.fill(kept, b"x" * 5000)
    assert ring.pinned_sizes["ann"] == ring.size == kept.size > 5000


def test_every_key_that_may_look_has_its_share_of_pins():
    async def use(turns: Turns) -> None:
        assert turns.recorder.pin_share == 0.5

    watched(use, Settings(keys=KEYS))


def test_numbers_of_changes_say_nothing_of_others():
    ring = Ring(10**6)
    for number in range(5):
        ring.add([RecordedTurn(TurnRow(f"id{number}", 0.0, "chat", key="ann"), "o")])
    cursor = ring.next_seq()
    assert ring.list_changes(cursor, 100) == []
    ring.add([RecordedTurn(TurnRow("last", 0.0, "chat", key="bob"), "o")])
    [row] = ring.list_changes(cursor, 100)
    assert (row.id, row.seq > 10**15) == ("last", True)
    assert [row.id for row in ring.list_changes(0, 3)] == ["id0", "id1", "id2"]
    assert ring.sizes["ann"] + ring.sizes["bob"] == ring.size


# Numbers


def test_a_stream_that_breaks_off_is_an_error():
    counted = Statistics()
    counted.count([TurnRow("a", 0.0, "chat", status=200, ms=1.0, error="connection_lost")])
    counted.count(
        [TurnRow("b", 0.0, "chat", status=200, ms=1.0), TurnRow("c", 0.0, "chat", status=499, ms=1.0, error="x")]
    )
    found = merge_reports([counted.report()])
    assert (found["start"]["errors"], found["hour"]["errors"], found["minutes"][0][1:]) == (1, 1, [3, 1])


def test_so_many_names_of_tools_are_told_apart_and_no_more(monkeypatch: pytest.MonkeyPatch):
    class Clock:
        now = 1e9

        def time(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(statistics, "time", clock)
    counted = Statistics()
    for minute in range(20):
        clock.now += 60
        for turn in range(10):
            counted.count([TurnRow("x", 0.0, "chat", ms=1.0, calls=tuple(f"t{minute}_{turn}_{i}" for i in range(30)))])
    found = counted.report().all
    assert len(found.calls) <= MAX_NAMES + 1
    assert found.calls[OTHERS] > 1000
    assert sum(found.calls.values()) == 6000


def test_results_are_matched_with_calls_of_another_process():
    one, two = Statistics(), Statistics()
    one.count([TurnRow("a", 0.0, "chat", ms=1.0, calls=("look", "find"), call_ids=("c1", "c2"))])
    two.count([TurnRow("b", 0.0, "chat", ms=1.0, results=("c1 failed", "c2", "c3"))])
    one.count([TurnRow("c", 0.0, "chat", ms=1.0, results=("c2",))])
    for when in ("start", "hour"):
        assert merge_reports([one.report(), two.report()])[when]["tools"] == {
            "look": {"calls": 1, "results": 1, "failed": 1},
            "find": {"calls": 1, "results": 1, "failed": 0},
        }


def test_the_rows_of_a_key_are_counted_as_those_of_a_process():
    rows = [
        TurnRow("b", 2.0, "chat", ms=1.0, results=("c1",)),
        TurnRow("a", 1.0, "chat", ms=1.0, calls=("look",), call_ids=("c1",)),
    ]
    assert merge_reports([count_rows(rows)])["start"]["tools"] == {"look": {"calls": 1, "results": 1, "failed": 0}}


def test_results_are_read_from_the_end_of_a_request():
    def text(said: str) -> tuple[TextPart, ...]:
        return (TextPart(said),)

    entries = [
        Message("user", text("Go.")),
        CallEntry("c0", "look", "{}"),
        ResultEntry("c0", text("old")),
        Message("assistant", text("More.")),
        CallEntry("c1", "look", "{}"),
        CallEntry("c2", "look", "{}"),
        ResultEntry("c1", text("Error: no")),
        ResultEntry("c2", text("fine")),
        Message("user", text("And?")),
    ]
    assert list_results(entries) == ("c2", "c1 failed")
    assert list_results(entries[:1]) == ()


# Streams


def test_a_frame_that_cannot_be_decoded_is_shown_with_the_failure():
    frames = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\ndata: {broken\n\n'
    view = read_stream("chat", "text/event-stream", [(0.5, frames)])
    assert ([frame.data[-8:] for frame in view.frames], view.text) == (['"Hi"}}]}', "{broken"], "Hi")
    assert view.failure


# Conversations


@pytest.mark.parametrize("common", [0, 1, 63, 64, 65, 999])
def test_the_first_difference_is_found(common: int):
    same = "é" + "x" * 1000
    at = len(same.encode()[: common + 2])
    one = same.encode()[:at] + b"a" * 50
    assert count_common_bytes(one, same.encode()[:at] + b"b") == at
    assert count_common_bytes(one, one) == len(one)


def turn_with(id: str, messages: list[Any]) -> RecordedTurn:
    trace = TurnTrace(id, {}, MemoryBudget(10**9), "/v1/messages")
    trace.keeps = True
    trace.receive(msgspec.json.encode({"model": "m", "messages": messages}))
    whole = remove_secrets(trace, TurnRow("id", 0.0, "messages"), [], ())
    assert whole.path == "/v1/messages"
    packed = pack(whole)
    assert unpack(packed).path == whole.path
    return RecordedTurn(TurnRow(id, 0.0, "messages", model="m"), "o", packed=packed)


def test_a_mark_of_the_cache_that_moves_on_breaks_no_cache():
    def said(text: str, **mark: Any) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text, **mark}]}

    marked = {"cache_control": {"type": "ephemeral"}}
    first = turn_with("a", [said("one", **marked)])
    second = turn_with("b", [said("one"), said("two", **marked)])
    members = [ConversationTurn(kept.row, make_prompt(kept.packed, kept.row)) for kept in (first, second)]
    state = compare_prompts(members[1], members[:1])
    assert state is not None
    assert not state["broken"]
    segment = read_segment(second.packed, "messages", 1)
    assert segment is not None
    assert "cache_control" not in segment[2]
    assert members[1].prompt.segments.startswith(members[0].prompt.segments)
