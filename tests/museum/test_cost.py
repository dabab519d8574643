"""Cost: linear in what comes in, bounded in what is kept.

Time is only ever compared with itself: twice the input may take at most 3 times as long, where work that looks back at
everything takes up to 4 times.
"""

import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.museum.cases import Theme
from tests.museum.gate import Wire
from tests.museum.lines import RULES, SEED, ask, ask_responses, cc, part
from tests.museum.texts import reader
from tests.support.frames import call_item, completed, created, rs, stream, text
from toolwire import ToolCallAggregator
from toolwire.assembly import assemble_policies
from toolwire.backends.responses import Conversation
from toolwire.config.settings import Settings
from toolwire.core.call_index import Fragment
from toolwire.core.calls import CallTable
from toolwire.core.errors import BackendFault
from toolwire.core.events import TextDelta
from toolwire.core.notes import TurnStats
from toolwire.core.recording import Head
from toolwire.core.request import Request, Tool
from toolwire.core.sse import MAX_EVENT_BYTES, Frame, FrameReader
from toolwire.dialects import chat, responses
from toolwire.notations.emit import EmitMode
from toolwire.notations.values import Schemas
from toolwire.upstream import record

theme = Theme("cost")

Feed = Callable[[int], None]
"""Feeds this many small deltas to something new."""


_CHAT = ask(tools=("f",))
_RESPONSES = ask_responses(tools=("f",))


def _gateway_line(opening: bytes, delta: bytes, count: int, request: Request = _CHAT) -> int:
    """Everything between two sockets; returns how many bytes went out."""
    conversation = Conversation(request, SEED)
    assembly = assemble_policies(request, RULES, SEED, conversation.stand_in)
    dialect = responses if request.dialect == "responses" else chat
    encoder = dialect.StreamEncoder(request, "id_1", 0, assembly.stats)
    reader, sent = FrameReader(), 0
    for data in (opening, *(delta for _ in range(count))):
        for frame in reader.feed(data):
            for event in conversation.feed(frame):
                for passed in assembly.policies.feed(event):
                    sent += sum(map(len, encoder.feed(passed)))
    return sent


_ADDED = rs("output_item.added", output_index=0, item=call_item("c", "f", ""))


def _arguments(piece: str) -> bytes:
    return rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=piece)


def _responses_arguments(count: int) -> None:
    _gateway_line(stream(created(), _ADDED, _arguments('{"t":"')), _arguments("x"), count)


def _blank_arguments(count: int) -> None:
    """A model that writes nothing but white space: known to happen, and endless."""
    table = CallTable(SEED)
    table.feed(Fragment(item="fc_1", id="c", name="f", named=True))
    space = Fragment(" ", item="fc_1")
    for _ in range(count):
        table.feed(space)


def _responses_text(count: int) -> None:
    _gateway_line(created(), text("x"), count)


def _same_dialect(opening: bytes, delta: bytes) -> Feed:
    return lambda count: ignored(_gateway_line(opening, delta, count, _RESPONSES))


def ignored(value: object) -> None:
    """What came of it is not of interest."""


def _many_items(count: int) -> None:
    """A turn of nothing but small items."""
    conversation = Conversation(_RESPONSES, SEED)
    encoder = responses.StreamEncoder(_RESPONSES, "id_1", 0, TurnStats())
    for place in range(count // 5):
        item = call_item(f"c{place}", "f", "{}", f"fc_{place}")
        frame = Frame(b"", json.dumps({"type": "response.output_item.done", "item": item}).encode())
        for event in conversation.feed(frame):
            encoder.feed(event)


def _second_call_waits(count: int) -> None:
    other = rs("output_item.added", output_index=1, item=call_item("d", "f", "", "fc_2"))
    delta = rs("function_call_arguments.delta", item_id="fc_2", output_index=1, delta="x")
    _gateway_line(stream(created(), _ADDED, _arguments("{"), other), delta, count)


def _aggregated(opening: Any, delta: Any) -> Feed:
    def feed(count: int) -> None:
        aggregator = ToolCallAggregator()
        aggregator.ingest_delta(opening)
        for _ in range(count):
            aggregator.ingest_delta(delta)
        aggregator.snapshot()

    return feed


def _read(opening: str, piece: str, mode: EmitMode = "whole") -> Feed:
    def feed(count: int) -> None:
        policy = reader(mode, None, Schemas((_TOOL,)))
        policy.feed(TextDelta(opening))
        delta = TextDelta(piece)
        for _ in range(count):
            policy.feed(delta)

    return feed


_TOOL = Tool("f", parameters=msgspec.Raw(b'{"properties":{"t":{"type":"string"}}}'))
_BLOCK = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
_JSON = '<tool_call>{"name":"f","arguments":{"t":"'
_TAGS = "<tool_call><function=f><parameter=t>"
_USE_TOOL = "<use_tool><name>f</name><t>"

_LOADS: dict[str, Feed] = {
    "Responses arguments": _responses_arguments,
    "blank arguments": _blank_arguments,
    "Responses text": _responses_text,
    "a call behind another": _second_call_waits,
    "arguments in one dialect": _same_dialect(stream(created(), _ADDED, _arguments('{"t":"')), _arguments("x")),
    "text in one dialect": _same_dialect(created(), text("x")),
    "deltas counted otherwise": _same_dialect(created(), text("x", "m", 7)),
    "many items": _many_items,
    "chat chunks": _aggregated(cc(part("{", index=0, id="c", name="f")), cc(part("x", index=0))),
    "Anthropic blocks": _aggregated(
        {"type": "content_block_start", "index": 0, "content_block": _BLOCK},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "x"}},
    ),
    "JSON in text, live": _read(_JSON, "x", "live"),
    "JSON in text, held": _read(_JSON, "x"),
    "tags in text, live": _read(_TAGS, "x", "live"),
    "tags in text, held": _read(_TAGS, "x"),
    "a value of unknown type": _read(_TAGS.replace("=t>", "=u>"), "x"),
    "white space between tags": _read(_USE_TOOL + "a", " "),
    "line ends between tags": _read(_TAGS + "a", "\n"),
    "opening tags": _read("", "<tool_call>"),
    "half opening tags": _read("", "<tool_"),
    "backticks": _read("", "`"),
}


def _seconds(feed: Feed, count: int, runs: int) -> float:
    """Processor time, the best of several runs, with the collector out of the way."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(runs):
            began = time.process_time()
            feed(count)
            best = min(best, time.process_time() - began)
            if best > 0.3:  # long enough to be sure
                break
    finally:
        gc.enable()
    return best


def _is_linear(feed: Feed, count: int = 10_000) -> bool:
    """Whether doubling doubles. What is measured once where that is clear is measured again where it is not."""
    return any(_seconds(feed, 2 * count, runs) < 3 * _seconds(feed, count, runs) for runs in (1, 3, 3, 5))


@theme.row("perf-quadratic")
def _() -> None:
    assert [name for name, feed in _LOADS.items() if not _is_linear(feed)] == []
    # Memory: twice the deltas, twice the peak; and with deltas of a usual size a small multiple of the payload.
    peaks = [_peak(lambda count=count: _responses_arguments(count)) for count in (10_000, 20_000)]
    assert peaks[1] < 2.5 * peaks[0]
    payload = 2 * 1024 * 1024
    delta = _arguments("x" * 4096)
    assert (
        _peak(lambda: _gateway_line(stream(created(), _ADDED, _arguments('{"t":"')), delta, payload // 4096))
        < 3 * payload
    )


def _peak(run: Callable[[], Any]) -> int:
    """Most bytes that were held at once while it ran."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@theme.row("tr-capture-mem")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().debug.record == ""
    payload = 4 * 1024 * 1024
    words = text("x" * 4096)
    assert _peak(lambda: _gateway_line(created(), words, payload // 4096)) < payload / 8  # text is passed on, not kept
    # A Responses stream says all of it again at its end, so the text is kept; its frames are not.
    assert _peak(lambda: _gateway_line(created(), words, payload // 4096, _RESPONSES)) < 1.5 * payload

    def write(name: str) -> int:
        recorder = record.Recorder(str(tmp_path), name, Head(1, "responses", "m"))
        recorder.start(0.0, 200, "text/event-stream")
        frame = Frame(b"response.output_text.delta", words)
        for _ in range(payload // 4096):
            recorder.record_frame(0.0, frame)
        recorder.close()
        return (tmp_path / f"{name}.jsonl").stat().st_size

    assert _peak(lambda: write("whole")) < payload / 8
    assert (tmp_path / "whole.jsonl").stat().st_size > payload
    monkeypatch.setattr(record, "MAX_RECORDING_BYTES", 100_000)
    assert write("bounded") < 110_000
    assert b'"left_out":true' in (tmp_path / "bounded.jsonl").read_bytes()


@theme.row("tr-buffer-clear")
def _(wire: Wire) -> None:
    reader = FrameReader(limit=1000)
    assert [frame.data for frame in reader.feed(b"data: " + b"x" * 900 + b"\n\n")] == [b"x" * 900]
    for step in (100, 5000):
        small = FrameReader(limit=1000)
        pieces = [b"data: " + b"x" * step] * (5000 // step)
        with pytest.raises(BackendFault, match="limit of 1000 bytes"):
            _ = [small.feed(piece) for piece in pieces]
    large = "x" * (8 * 1024 * 1024)
    model = wire.script(stream(created(), text(large), completed()))
    assert wire.stream(model).message["content"] == large
    begun = stream(created(), text("Hi"), b"data: ")
    too_large = wire.script(begun + b"x" * (MAX_EVENT_BYTES + 1))
    streamed = wire.stream(too_large)
    assert streamed.message["content"] == "Hi"
    assert f"limit of {MAX_EVENT_BYTES} bytes" in streamed.error["message"]
    assert wire.plain(too_large).status_code == 502


test_museum = theme.test()
