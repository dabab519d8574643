"""A backend that sends and sends must not stop the event loop, and one that says nothing is not read for ever."""

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import uvloop

from tests.support.gateway import chat_body
from tests.support.raw_backend import RawBackend
from toolwire import create_app

LONGEST = 0.05
"""CPU seconds between two moments at which the loop can serve others: two steps of 5 ms, and much for a slow machine."""
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = STREAM.replace(b"connection: close", b"transfer-encoding: chunked")
ENDLESS = 64 * 1024 * 1024
"""Bytes after which a flood gives up."""


class Flood(msgspec.Struct, frozen=True):
    """What a backend says first, what it then says again and again, and how a turn ends that it says this to."""

    piece: bytes
    code: str = "reply_without_content"
    first: bytes = STREAM
    kind: str = "chat"
    dialect: str = "chat"


def use(index: int) -> bytes:
    """The start of a block that is a call."""
    block = b'{"type":"tool_use","id":"id%d","name":"f","input":{}}' % index
    return b'data: {"type":"content_block_start","index":%d,"content_block":%b}\n\n' % (index, block)


def grown(index: int, text: bytes, number: int = 0) -> bytes:
    """A delta of its input. Those with different numbers are not read as one."""
    delta = b'{"type":"input_json_delta","partial_json":"%b","n":%d}' % (text, number)
    return b'data: {"type":"content_block_delta","index":%d,"delta":%b}\n\n' % (index, delta)


def part(index: int, text: bytes, number: int = 0) -> bytes:
    """A fragment of a call of Chat Completions."""
    call = b'{"index":%d,"id":"id%d","function":{"name":"f","arguments":"%b"}}' % (index, index, text)
    return b'data: {"id":"c","n":%d,"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}\n\n' % (number, call)


EMPTY_DELTA = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":""}}]}\n\n'
FLOODS = {
    "empty objects, chat": Flood(b"data: {}\n\n"),
    "empty objects, responses": Flood(b"data: {}\n\n", kind="responses"),
    "empty objects, messages": Flood(b"data: {}\n\n", kind="messages"),
    "empty objects, same dialect": Flood(b"data: {}\n\n", kind="responses", dialect="responses"),
    "empty deltas": Flood(EMPTY_DELTA),
    "unknown events": Flood(b'data: {"type":"response.other"}\n\n', kind="responses"),
    "unknown events, same dialect": Flood(b'data: {"type":"response.other"}\n\n', kind="responses", dialect="responses"),
    "pings": Flood(b'event: ping\ndata: {"type":"ping"}\n\n', kind="messages"),
    "empty deltas behind an open block": Flood(grown(1, b""), first=STREAM + use(0) + use(1), kind="messages"),
    "no JSON": Flood(b"data: x\n\n"),
    "events without data": Flood(b"event: x\n\n"),
    "comments": Flood(b":\n\n"),
    "comments without blank lines": Flood(b":\n", "reply_too_large"),
    "blank lines": Flood(b"\n", "reply_too_large"),
    "carriage returns": Flood(b"\r", "reply_too_large"),
    "carriage returns and line feeds": Flood(b"\r\n", "reply_(too_large|without_content)"),  # by the size of reads
    "chunks of one byte": Flood(b"1\r\n\n\r\n", "reply_(too_large|without_content)", CHUNKED),  # by the size of reads
    "100 Continue": Flood(b"HTTP/1.1 100 Continue\r\n\r\n", "backend_broke_off", b""),
    "103 Early Hints": Flood(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", "backend_broke_off", b""),
}  # fmt: skip


@pytest.fixture
def url(flood: Flood) -> Iterator[str]:
    """The address of a server that answers with the flood, as fast as it is read."""
    piece = flood.piece * (1 << 18)
    server = RawBackend(lambda: (flood.first, *[piece] * (1 + ENDLESS // len(piece))))
    yield server.url
    server.stop()


class Steps:
    """Measures the CPU time of this thread between two moments at which the loop could serve others."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            last = now


async def ask(url: str, flood: Flood) -> tuple[str, float]:
    """What the gateway answers, and its longest step."""
    backend = {"name": "up", "kind": flood.kind, "base_url": url, "retries": 0}
    settings: dict[str, Any] = {"store": {"url": "memory:"}, "debug": {"level": "error"}, "backends": [backend]}
    gateway = create_app({**settings, "server": {"max_reply": "2MB" if "too_large" in flood.code else "16MB"}})
    body = chat_body("up/m", stream=True)
    if flood.dialect == "responses":
        body = {"model": "up/m", "input": "Go.", "stream": True, "store": False}
    path = "/v1/responses" if flood.dialect == "responses" else "/v1/chat/completions"
    steps = Steps()
    async with gateway.lifespan():
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            await client.post("/v1/chat/completions", json=chat_body("demo"))  # so that everything is loaded
            watching = asyncio.create_task(steps.watch())
            answer = await client.post(path, json=body)
            watching.cancel()
    return answer.text, steps.longest


@pytest.mark.parametrize("flood", [pytest.param(flood, id=name) for name, flood in FLOODS.items()])
def test_a_flood_holds_nobody_up_and_is_cut(flood: Flood, url: str):
    said, longest = uvloop.run(ask(url, flood))
    assert re.search(f'"{flood.code}"', said)
    assert longest < LONGEST


BEHIND = {
    "messages": (
        [use(0), use(1), grown(0, b'{\\"q\\":'), grown(1, b"["), *(grown(1, b"1,", number) for number in range(2000))],
        [grown(1, b"1]"), grown(0, b"1}"), b'data: {"type":"message_delta","delta":{"stop_reason":"tool_use"}}\n\n'],
    ),
    "chat": (
        [part(0, b'{\\"q\\":'), part(1, b"["), *(part(1, b"1,", number) for number in range(2000))],
        [
            part(1, b"1]"),
            part(0, b"1}"),
            b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n',
        ],
    ),
}


@pytest.mark.parametrize("kind", BEHIND)
def test_content_that_waits_behind_a_call_is_content(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.reader.MAX_EMPTY_FRAMES", 500)
    waiting, rest = BEHIND[kind]
    server = RawBackend(lambda: (STREAM, b"".join(waiting), b"".join(rest)))
    said, _ = uvloop.run(ask(server.url, Flood(b"", kind=kind)))
    server.stop()
    assert '"finish_reason":"tool_calls"' in said
    assert '"id":"id1"' in said
