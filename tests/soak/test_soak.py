"""Long runs, for `make soak`: fuzzing, and thousands of turns that nobody finishes."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, tool
from tests.support.upstream import Hold, Reply, Upstream
from toolwire import ToolCallAggregator
from toolwire.backends.responses import Conversation
from toolwire.core.errors import BackendFault
from toolwire.core.events import TextDelta, TurnEnded
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request, Tool
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL
from toolwire.notations.values import Schemas

pytestmark = pytest.mark.soak

EVENTS = [created(), text("a"), call("c1", "f", '{"a":', "1}"), call("c2", "g", "{}"), completed(), b"data: [DONE]\n\n"]
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["type", "item", "delta", "id", "call_id", "name", "arguments", "tool_calls", "function", "content", "index",
                     "choices", "message", "output_index", "item_id", "response", "part"]) | st.text(), inner), max_leaves=20)  # fmt: skip


@given(st.lists(st.sampled_from(EVENTS) | st.binary(max_size=60), max_size=12))
def test_whatever_a_backend_sends_is_a_legal_turn_or_a_failure(pieces: list[bytes]):
    line = Pipeline(FrameReader(), Conversation(Request("m", ()), "S"), TurnOrder())
    try:
        for piece in pieces:
            line.feed(piece)
        line.end()
    except BackendFault:
        pass


@given(st.lists(JSON, max_size=8))
def test_whatever_an_aggregator_is_given_it_answers(payloads):
    aggregator = ToolCallAggregator()
    for payload in payloads:
        aggregator.ingest_delta(payload)
        aggregator.ingest_message(payload, emit_if_missing=True)
    aggregator.snapshot()


@given(st.lists(st.sampled_from(["<use_tool>", "</use_tool>", "<tool_call>", "</tool_call>", "<name>", "f", "</name>", "{", "}", '"',
                                 '{"name":"f"', "<q>", "</q>", "`", "```", "\n", "\\", "<", "<function=f>", "<parameter=q>", " "]), max_size=40))  # fmt: skip
def test_no_character_of_a_text_is_lost_when_it_holds_no_call(pieces: list[str]):
    reader = ReadTextCalls((USE_TOOL, TOOL_CALL), "S", Schemas((Tool("f"),)), ("nothing",))
    out = [event for piece in pieces for event in reader.feed(TextDelta(piece))] + list(reader.feed(TurnEnded()))
    assert "".join(event.text for event in out if isinstance(event, TextDelta)) == "".join(pieces)


def memory_of(gateway: Gateway) -> int:
    lines = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def open_files(gateway: Gateway) -> int:
    return len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))


async def abandon(url: str, count: int) -> None:
    """Begin many turns and leave each after its first bytes."""
    body = chat_body("up/endless", stream=True, tools=[tool("f")])
    limit = asyncio.Semaphore(50)

    async def one(session: aiohttp.ClientSession) -> None:
        async with limit, session.post(url, json=body) as response:
            await response.content.readany()
            response.close()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session) for _ in range(count)))


def test_thousands_of_abandoned_turns_leave_nothing_behind(upstream: Upstream, tmp_path: Path):
    upstream.replies["endless"] = Reply([stream(created(), text("x" * 1000)), Hold()])
    gateway = Gateway(tmp_path, backend(upstream.url))
    url = f"{gateway.base_url}/chat/completions"
    try:
        asyncio.run(abandon(url, 500))
        gateway.wait_for_turns(500)
        before, files = memory_of(gateway), open_files(gateway)
        asyncio.run(abandon(url, 4000))
        assert len(gateway.wait_for_turns(4500, 30)) == 4500
        assert memory_of(gateway) < before + 20_000
        assert open_files(gateway) < files + 20
    finally:
        gateway.stop()
