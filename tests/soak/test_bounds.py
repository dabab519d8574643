"""Memory and time have a ceiling: what one client, or one server, can make the gateway hold."""

import asyncio
import gzip
import json
import os
import socket
import struct
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.soak.attacked import (
    JSON,
    MB,
    PATHS,
    STREAM,
    Attacked,
    Far,
    Steps,
    always,
    answering,
    ask,
    attacked,
    begun,
    chat_delta,
    head,
    over,
    packed,
    question,
    queues,
    words,
)
from tests.soak.conftest import Rows

pytestmark = [
    pytest.mark.soak,
    pytest.mark.xdist_group("attacks"),  # one at a time: some want much memory
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="measures with Linux's /proc"),
]

IN_FLIGHT = 3 * 256 + 128
"""Megabytes for the default of `server.max_in_flight`: a body is held as it came, as it was read and as it is sent on,
and what a gateway has anyhow."""
REPLY = 8 * 64 + 128
"""Megabytes for one reply of `server.max_reply`: as events, collected, as an object and as bytes."""
REPLY_STEP = 600
"""CPU milliseconds that a reply may hold the loop: whoever runs the gateway has chosen the server."""
ENDLESS = 400 * MB
"""Bytes after which an endless reply gives up."""


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    server = Far()
    yield server
    server.stop()


# Requests

LARGE = 31 * MB


def large(model: str, *, piece: int = 100_000) -> bytes:
    """A request of chat of nearly the most bytes that one may have."""
    messages = [{"role": "user", "content": "x" * piece}] * (LARGE // (piece + 40))
    return packed(question("chat", model, messages=messages))


def waiting(kind: str, seconds: float) -> Steps:
    """An answer that takes its time."""

    async def answer(asked: bytes) -> AsyncIterator[bytes]:
        await asyncio.sleep(seconds)
        yield STREAM + begun(kind) + words(kind, "Yes.") + over(kind, "Yes.")

    return answer


async def at_once(gateway: Attacked, count: int, body: bytes, *more: str) -> list[int]:
    asking = (ask(gateway.port, PATHS["chat"], body, *more, seconds=90) for _ in range(count))
    return [status for status, _ in await asyncio.gather(*asking)]


@pytest.mark.parametrize("form", ["as they are", "packed"])
def test_large_bodies_at_once(rows: Rows, far: Far, tmp_path: Path, form: str):
    far.answers["wait"] = waiting("responses", 4)
    body = large("wait/m")
    more = () if form == "as they are" else ("content-encoding: gzip",)
    with attacked(tmp_path, far.backend("wait", "responses")) as gateway:
        statuses = asyncio.run(at_once(gateway, 50, gzip.compress(body, 1) if more else body, *more))
        rows.add(f"50 bodies of 32 MB, {form}: memory", gateway.peak(), IN_FLIGHT, "MB")
        rows.add(f"50 bodies of 32 MB, {form}: none answered", float(200 not in statuses), 0, "")
        rows.add(
            f"50 bodies of 32 MB, {form}: no clear answer", len([s for s in statuses if s not in (200, 503)]), 0, ""
        )
    rows.hold()


def test_bodies_that_never_end(rows: Rows, tmp_path: Path):
    """What is declared, or sent without an end, counts while it comes."""

    async def send_all_but_the_end(gateway: Attacked) -> None:
        async def one() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            try:
                writer.write(head(PATHS["messages"], LARGE))
                for _ in range(LARGE // MB - 1):
                    writer.write(bytes(MB))
                    await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 4)
            except OSError:
                pass
            finally:
                writer.close()

        await asyncio.gather(*(one() for _ in range(100)))

    with attacked(tmp_path) as gateway:
        asyncio.run(send_all_but_the_end(gateway))
        rows.add("100 bodies of 31 MB whose end never comes: memory", gateway.peak(), IN_FLIGHT, "MB")
    rows.hold()


UPGRADE = (
    "GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
)


def frame(data: bytes) -> bytes:
    """A WebSocket message of a client; its mask is zero."""
    size = len(data)
    if size < 126:
        return struct.pack("!BB4x", 0x81, 0x80 | size) + data
    return struct.pack("!BBQ4x", 0x81, 0x80 | 127, size) + data


async def open_socket(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(UPGRADE.encode() + b"\r\n")
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize("size", [1, 15 * MB], ids=["many small messages", "a few large messages"])
def test_messages_that_wait_on_sockets(rows: Rows, far: Far, tmp_path: Path, size: int):
    far.answers["wait"] = waiting("responses", 60)
    first = packed({"type": "response.create", **question("responses", "wait/m")})

    async def fill(gateway: Attacked) -> None:
        async def one() -> None:
            _, writer = await open_socket(gateway.port)
            try:
                writer.write(frame(first))
                batch = frame(b"x" * size) * (20_000 if size == 1 else 1)
                with suppress(TimeoutError):
                    async with asyncio.timeout(12):
                        for _ in range(50 if size == 1 else 4):
                            writer.write(batch)
                            await writer.drain()
                        await asyncio.sleep(3)
            except OSError:
                pass
            finally:
                writer.transport.abort()

        await asyncio.gather(*(one() for _ in range(2 if size == 1 else 40)))

    with attacked(tmp_path, far.backend("wait", "responses")) as gateway:
        asyncio.run(fill(gateway))
        what = "2 sockets, 1,000,000 messages of one byte each" if size == 1 else "40 sockets, 4 messages of 15 MB each"
        rows.add(f"{what}: memory", gateway.peak(), 300 if size == 1 else IN_FLIGHT, "MB")
    rows.hold()


def test_messages_that_never_end(rows: Rows, tmp_path: Path):
    """What has come of a message counts, in one frame or in many."""

    async def send_all_but_the_end(gateway: Attacked) -> list[bytes]:
        async def one(number: int) -> bytes:
            reader, writer = await open_socket(gateway.port)
            try:
                whole = struct.pack("!BBQ4x", 0x81, 0x80 | 127, LARGE)
                fragment = struct.pack("!BBQ4x", 0x00, 0x80 | 127, MB)
                writer.write(whole if number % 2 else struct.pack("!BB4x", 0x01, 0x80))
                for _ in range(LARGE // MB - 1):
                    writer.write(bytes(MB) if number % 2 else fragment + bytes(MB))
                    await writer.drain()
                async with asyncio.timeout(4):
                    return await reader.read(200)
            except (OSError, TimeoutError):
                return b""
            finally:
                writer.transport.abort()

        return await asyncio.gather(*map(one, range(100)))

    with attacked(tmp_path) as gateway:
        asyncio.run(send_all_but_the_end(gateway))
        rows.add("100 messages of 31 MB whose end never comes: memory", gateway.peak(), IN_FLIGHT, "MB")
    rows.hold()


def test_what_idle_sockets_remember(rows: Rows, far: Far, tmp_path: Path):
    far.answers["quick"] = answering("responses")

    async def remember(gateway: Attacked) -> int:
        opened, answered = [], 0
        for _ in range(40):
            reader, writer = await open_socket(gateway.port)
            opened.append(writer)
            text = [{"role": "user", "content": "x" * 10_000}] * 2600
            writer.write(frame(packed({"type": "response.create", **question("responses", "quick/m", input=text)})))
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(20):
                    while data := await reader.read(65536):
                        answered += b"response.completed" in data
                        if b"response.completed" in data or b'"type":"error"' in data:
                            break
        await asyncio.sleep(0.5)
        for writer in opened:
            writer.transport.abort()
        return answered

    with attacked(tmp_path, far.backend("quick", "responses")) as gateway:
        answered = asyncio.run(remember(gateway))
        rows.add("40 idle sockets after a turn of 27 MB each: memory", gateway.peak(), IN_FLIGHT, "MB")
        rows.add("40 idle sockets after a turn of 27 MB each: not answered", 40 - answered, 0, "")
    rows.hold()


# Bytes that are hardly a request


def floods() -> dict[str, tuple[bytes, bytes, float, int]]:
    """What a client says first, what it then says without end, how many megabytes of memory that may take, and how
    many bytes it says at most."""
    chunked = head(PATHS["chat"], 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    body = packed(question("chat", "quick/m"))
    start = struct.pack("!BB4x", 0x01, 0x80)
    upgrade = UPGRADE.encode() + b"\r\n"
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = (squeezed.compress(b" " * LARGE) + squeezed.flush(zlib.Z_SYNC_FLUSH))[:-4]
    deflate = UPGRADE.encode() + b"sec-websocket-extensions: permessage-deflate\r\n\r\n"
    return {
        "one header without an end": (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b"x" * 65536, 50, 100 * MB),
        "headers without an end": (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x: y\r\n" * 9000, 50, 100 * MB),
        "a path without an end": (b"GET /", b"x" * 65536, 50, 100 * MB),
        "trailers without an end": (chunked + b"0\r\n", b"x: y\r\n" * 9000, 50, 100 * MB),
        "a chunk's extension without an end": (chunked + b"1;", b"e" * 65536, 50, 100 * MB),
        "chunks of one byte": (chunked, b"1\r\nx\r\n" * 9000, 150, 100 * MB),
        "requests before the answers": (b"", (head(PATHS["chat"], len(body)) + body) * 200, 150, 100 * MB),
        "pings whose answers are not read": (upgrade, (struct.pack("!BB4x", 0x89, 0x80 | 125) + b"p" * 125) * 500, 50, 150 * MB),
        "a message in empty fragments": (upgrade + start, struct.pack("!BB4x", 0x00, 0x80) * 9000, 100, 30 * MB),
        "a message in fragments of one byte": (upgrade + start, (struct.pack("!BB4x", 0x00, 0x81) + b"x") * 9000, 250, 30 * MB),
        "messages of 30 KB that unpack to 31 MB": (deflate, struct.pack("!BBQ4x", 0xC1, 0x80 | 127, len(bomb)) + bomb, 400, 100 * len(bomb)),
    }  # fmt: skip


@pytest.mark.parametrize("name", [*floods()])
def test_floods(rows: Rows, far: Far, tmp_path: Path, name: str):
    """From one client without a key, or with any."""
    far.answers["quick"] = answering("chat")
    first, piece, megabytes, most = floods()[name]

    def pour(port: int) -> None:
        said, rest = 0, b""
        end = time.monotonic() + 8
        with socket.create_connection(("127.0.0.1", port)) as client, suppress(OSError):
            client.settimeout(0.5)
            if first.startswith(b"GET /v1/responses"):
                client.sendall(first.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
                client.recv(1000)
                client.sendall(first.partition(b"\r\n\r\n")[2])
            else:
                client.sendall(first)
            while said < most and time.monotonic() < end:
                rest = rest or piece
                with suppress(TimeoutError):
                    count = client.send(rest)
                    said, rest = said + count, rest[count:]

    with attacked(tmp_path, far.backend("quick", "chat")) as gateway:
        before = gateway.memory()
        pour(gateway.port)
        time.sleep(0.2)
        rows.add(f"flood, {name}: memory", gateway.peak() - before, megabytes, "MB")
        rows.add(f"flood, {name}: longest loop step", gateway.longest_step(), 100, "ms")
    rows.hold()


# Slow readers

SLOW = 6
"""Streams that nobody reads, of each kind."""
DELTA = 1000
WAITING = 256 * 1024
"""Bytes of one stream that may wait to be written."""
READ_AHEAD = 3 * 2**18
"""Bytes that may have been read of the server and not yet handled: aiohttp's buffer, one last read of the event loop,
and as much again for the kernel's queues, which cannot be looked at all at once."""


def flood(kind: str, *, burst: int, piece: int = DELTA) -> Steps:
    """A stream that sends as fast as it is taken, so many deltas at a time."""

    async def answer(asked: bytes) -> AsyncIterator[bytes]:
        yield STREAM + begun(kind)
        while True:
            yield words(kind, "x" * piece) * burst

    return answer


@pytest.mark.parametrize("transport", ["http", "socket"])
@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_slow_readers(rows: Rows, far: Far, tmp_path: Path, kind: str, transport: str):
    """What one stream makes the gateway hold: bytes taken from the server less those that left for the client. What
    the kernel has of the four ends of the two connections is known and does not count."""
    if transport == "socket" and kind != "responses":
        pytest.skip("only Responses has a WebSocket")
    name = f"flood{kind}"
    far.answers[name] = flood(kind, burst=100)
    far.ports.clear()

    waiting = tmp_path / "waiting"
    with attacked(tmp_path, far.backend(name, kind), SOAK_WAITING=str(waiting)) as gateway:
        with _slow_client(gateway, kind, name, transport) as reader:
            delta = _size_of_a_delta(reader)
            ratio = len(words(kind, "x" * DELTA)) / delta
        gateway.wait_until(lambda: not queues(gateway.port))
        far.ports.clear()
        far.sent.clear()
        gateway.forget()
        before = gateway.memory()
        clients = [_slow_client(gateway, kind, name, transport) for _ in range(SLOW)]
        try:
            time.sleep(8)
            held = _held(gateway, far, name, ratio)
        finally:
            for client in clients:
                client.close()
        label = f"{SLOW} slow readers, {kind} over {transport}"
        most = max(map(int, waiting.read_text().split()), default=0)
        assert most, "nobody was slow"
        rows.add(f"{label}: most that waits for one to be written", most / 1024, (WAITING + delta) / 1024, "KB")
        rows.add(f"{label}: held per stream", held / SLOW / 1024, (WAITING + READ_AHEAD + delta) / 1024, "KB")
        rows.add(f"{label}: memory per stream", (gateway.peak() - before) / SLOW, 3, "MB")
        rows.add(f"{label}: longest loop step", gateway.longest_step(), 100, "ms")
    rows.hold()


def _size_of_a_delta(reader: socket.socket) -> float:
    """Bytes of one delta as it leaves the gateway."""
    received = b""
    while received.count(b'x"') < 40:
        received += reader.recv(65536)
    return (received.rindex(b'x"') - received.index(b'x"')) / (received.count(b'x"') - 1)


def _slow_client(gateway: Attacked, kind: str, name: str, transport: str) -> socket.socket:
    """A client that asks, and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", gateway.port))
    body = packed(question(kind, f"{name}/m"))
    if transport == "http":
        client.sendall(head(PATHS[kind], len(body)) + body)
    else:
        client.sendall(UPGRADE.encode() + b"\r\n")
        client.recv(130)
        client.sendall(frame(packed({"type": "response.create", **json.loads(body)})))
    return client


def _held(gateway: Attacked, far: Far, name: str, ratio: float) -> float:
    """Bytes of all streams in the gateway itself, as the server sent them: a delta differs in size where it leaves."""
    taken = far.sent[name] - sum(sent for sent, _ in queues(far.port).values())
    unread = sum(received for port in far.ports for _, received in queues(port).values())
    left = sum(sent for sent, _ in queues(gateway.port).values())
    clients = sum(received for port in queues(gateway.port) for _, received in queues(port).values())
    return taken - unread - ratio * (left + clients)


# Slowloris

PATIENCE = 50.0
"""Seconds after which a connection that is still open counts as never closed."""


async def seconds_until_closed(port: int, first: bytes, drip: bytes = b"", every: float = 1.0) -> float:
    """How long a connection stays open that says this, and then one byte after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()

    async def speak() -> None:
        writer.write(first)
        while drip:
            await asyncio.sleep(every)
            writer.write(drip)
            await writer.drain()

    speaking = asyncio.create_task(speak())
    try:
        async with asyncio.timeout(PATIENCE):
            while await reader.read(65536):
                pass
    except (OSError, TimeoutError):
        pass
    finally:
        speaking.cancel()
        with suppress(OSError, asyncio.CancelledError):
            await speaking
        writer.transport.abort()
    return time.monotonic() - began


def test_slowloris(rows: Rows, tmp_path: Path):
    post = head(PATHS["chat"], 1000)
    ways: dict[str, tuple[tuple[bytes, bytes], float]] = {
        "nothing at all": ((b"", b""), 20),
        "a request line without an end": ((b"POST /", b"x"), 20),
        "headers, a byte a second": ((b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b"x"), 20),
        "headers that stop": ((b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b""), 20),
        "a body that never comes": ((post, b""), 40),
        "a body that stops": ((post + b'{"model":', b""), 40),
        "a chunked body that stops": ((post.replace(b"content-length: 1000", b"transfer-encoding: chunked") + b"5\r\n{", b""), 40),
        "idle after an answer": ((b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", b""), 40),
        "an upgrade without an end": ((UPGRADE.encode(), b""), 20),
        "an upgrade, a byte a second": ((UPGRADE.encode() + b"x: ", b"x"), 20),
    }  # fmt: skip

    async def all_at_once(port: int) -> list[float]:
        return await asyncio.gather(*(seconds_until_closed(port, *saying) for saying, _ in ways.values()))

    with attacked(tmp_path) as gateway:
        measured = asyncio.run(all_at_once(gateway.port))
        for (name, (_, ceiling)), seconds in zip(ways.items(), measured, strict=True):
            rows.add(f"slowloris, {name}: closed after", seconds, ceiling, "s")
    rows.hold()


def test_bodies_that_are_only_declared(rows: Rows, far: Far, tmp_path: Path):
    """Whoever announces much and sends nothing takes no room from others."""
    far.answers["quick"] = answering("chat")
    opened: list[socket.socket] = []
    with attacked(tmp_path, far.backend("quick", "chat")) as gateway:
        try:
            for size in [LARGE] * 40 + [MB] * 40 + [20_000] * 60 + [200] * 120:
                client = socket.create_connection(("127.0.0.1", gateway.port))
                client.sendall(head(PATHS["chat"], size) + b"{")
                opened.append(client)
            time.sleep(0.5)
            body = packed(question("chat", "quick/m"))
            statuses = [asyncio.run(ask(gateway.port, PATHS["chat"], body))[0] for _ in range(5)]
        finally:
            for client in opened:
                client.close()
        rows.add(
            "bodies of more than 1 GB, declared and not sent: others refused, of 5", 5 - statuses.count(200), 0, ""
        )
    rows.hold()


def test_connections_have_a_cap(rows: Rows, tmp_path: Path):
    opened: list[socket.socket] = []
    with attacked(tmp_path) as gateway:
        files = Path(f"/proc/{gateway.process.pid}/fd")
        before = gateway.memory()
        try:
            for _ in range(5000):
                client = socket.create_connection(("127.0.0.1", gateway.port))
                opened.append(client)
            time.sleep(1)
            taken = len(os.listdir(files))
            status, _ = asyncio.run(ask(gateway.port, "/healthz", b"", seconds=15))
            rows.add("5,000 silent connections: open files", taken, 4200, "")
            rows.add("5,000 silent connections: memory", gateway.memory() - before, 100, "MB")
            time.sleep(12)
            status, _ = asyncio.run(ask(gateway.port, "/healthz", b"", seconds=15))
            rows.add("5,000 silent connections: nobody served after 12 s", float(status == 0), 0, "")
        finally:
            for client in opened:
                client.close()
    rows.hold()


# Endless replies


def endless(first: bytes, piece: bytes) -> Steps:
    async def answer(asked: bytes) -> AsyncIterator[bytes]:
        yield first
        for _ in range(ENDLESS // len(piece)):
            yield piece

    return answer


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
TEXT = "word and word " * 300


def replies() -> Iterator[tuple[str, str, str, Steps, dict[str, Any]]]:
    """What it is, the dialect, the server's kind, what it sends, and what is asked."""
    for kind in ("chat", "responses", "messages"):
        text = endless(STREAM + begun(kind), words(kind, TEXT) * 20)
        yield f"text, plain {kind}", kind, kind, text, {"stream": False}
    text = endless(STREAM + begun("responses"), words("responses", TEXT) * 20)
    yield "text, streamed and stored", "responses", "responses", text, {"store": True}
    yield "text, plain and stored", "responses", "responses", text, {"store": True, "stream": False}
    yield (
        "text, in the background",
        "responses",
        "responses",
        text,
        {"store": True, "background": True, "stream": False},
    )
    yield "text, streamed from another dialect", "messages", "responses", text, {}
    arguments = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"'}}
    more = chat_delta({"tool_calls": [{"index": 0, "function": {"arguments": "y" * 4000}}]}) * 20
    calling = endless(STREAM + chat_delta({"tool_calls": [arguments]}), more)
    yield "arguments, streamed", "chat", "chat", calling, {"tools": TOOLS}
    yield "arguments, plain messages", "messages", "chat", calling, {"stream": False}
    many = b"".join(
        chat_delta(
            {
                "tool_calls": [
                    {
                        "index": index,
                        "id": f"c{index}",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}"},
                    }
                ]
            }
        )
        for index in range(200)
    )
    yield "the same 200 calls", "chat", "chat", endless(STREAM + begun("chat"), many), {"tools": TOOLS}
    thinking = endless(STREAM + begun("chat"), chat_delta({"reasoning_content": TEXT}) * 20)
    yield "reasoning, streamed with a call to come", "chat", "chat", thinking, {"tools": TOOLS}
    yield "reasoning, plain", "chat", "chat", thinking, {"stream": False}
    block = endless(STREAM + begun("chat") + words("chat", "<use_tool>\n<name>f</name>\n<q>"), words("chat", TEXT) * 20)
    yield "a <use_tool> block that never closes", "chat", "chat", block, {"tools": TOOLS}
    json_block = endless(
        STREAM + begun("chat") + words("chat", '<tool_call>{"name":"f","arguments":{"q":"'), words("chat", TEXT) * 20
    )
    yield "a <tool_call> block that never closes", "chat", "chat", json_block, {"tools": TOOLS}
    fence = endless(STREAM + begun("chat"), words("chat", "`" * 4000) * 20)
    yield "backticks without end", "chat", "chat", fence, {"tools": TOOLS}
    yield "one SSE frame without an end", "chat", "chat", endless(STREAM + b"data: ", b"x" * 80_000), {}
    yield "one line of names without an end", "chat", "chat", endless(STREAM, b"event: x\nid: 1\n" * 5000), {}
    yield "comments without an end", "chat", "chat", endless(STREAM, b": x\n\n" * 10_000), {"stream": False}
    yield "one JSON body without an end", "chat", "chat", endless(JSON + b'{"a":"', b"x" * 80_000), {"stream": False}
    refusal = JSON.replace(b"200 OK", b"400 Bad Request") + b'{"error":{"message":"'
    yield "an error body without an end", "chat", "chat", endless(refusal, b"x" * 80_000), {}
    headers = b"HTTP/1.1 200 OK\r\nx-a: "
    yield "one header without an end", "chat", "chat", endless(headers, b"x" * 80_000), {}
    yield "headers without an end", "chat", "chat", endless(b"HTTP/1.1 200 OK\r\n", b"x-a: xxxxxxxxxxxx\r\n" * 4000), {}
    packed_zeros = gzip.compress(bytes(ENDLESS), 6)
    bomb = STREAM.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + packed_zeros
    yield "a packed stream of zeros", "chat", "chat", always(bomb), {"stream": False}
    bomb = JSON.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + gzip.compress(b'{"a":"' + b"x" * ENDLESS)
    yield "a packed body", "chat", "chat", always(bomb), {"stream": False}


@pytest.mark.parametrize("number", range(24))
def test_endless_replies(rows: Rows, far: Far, tmp_path: Path, number: int):
    all_of_them = [*replies()]
    assert len(all_of_them) == 24
    name, dialect, kind, steps, fields = all_of_them[number]
    far.answers["endless"] = steps
    asked = packed(question(dialect, "endless/m", **fields))

    async def read_and_forget(gateway: Attacked) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        try:
            async with asyncio.timeout(25):
                writer.write(head(PATHS[dialect], len(asked), "connection: close") + asked)
                while await reader.read(1 << 20):
                    pass
                sent = -1
                while fields.get("background") and sent != far.sent.get("endless", 0):
                    sent = far.sent.get("endless", 0)
                    await asyncio.sleep(3)  # after the last byte it is kept
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    store = f'[store]\nurl = "sqlite:{tmp_path}/store.db"\n'
    with attacked(tmp_path, store + far.backend("endless", kind)) as gateway:
        asyncio.run(read_and_forget(gateway))
        rows.add(f"endless: {name}: memory", gateway.peak(), REPLY, "MB")
        rows.add(f"endless: {name}: longest loop step", gateway.longest_step(), REPLY_STEP, "ms")
    rows.hold()


def test_a_line_of_a_worker_without_an_end(rows: Rows, tmp_path: Path):
    worker = tmp_path / "codex"
    worker.write_text("#!/bin/sh\nexec head -c 600000000 /dev/zero | tr '\\0' x\n")
    worker.chmod(0o755)
    config = f'[[backends]]\nname = "codex"\nkind = "codex"\ncommand = ["{worker}"]\nmodels = ["m"]\n'
    with attacked(tmp_path, config) as gateway:
        body = packed(question("chat", "codex/m", stream=False))
        asyncio.run(ask(gateway.port, PATHS["chat"], body, seconds=30))
        rows.add("endless: one JSON-RPC line: memory", gateway.peak(), REPLY, "MB")
        rows.add("endless: one JSON-RPC line: longest loop step", gateway.longest_step(), REPLY_STEP, "ms")
    rows.hold()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/messages/count_tokens"])
def test_small_documents_that_never_end(rows: Rows, far: Far, tmp_path: Path, path: str):
    far.answers["list"] = endless(JSON + b'{"data":[', b'{"id":"a"},' * 8000)
    body = packed(question("messages", "list/m")) if "count" in path else b""
    method = "POST" if body else "GET"
    with attacked(tmp_path, far.backend("list", "messages", models='["*"]')) as gateway:

        async def go() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(head(path, len(body), "connection: close", method=method) + body)
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(20):
                    await reader.read()
            writer.transport.abort()

        asyncio.run(go())
        rows.add(f"endless: upstream's answer for {path}: memory", gateway.peak(), 128, "MB")
    rows.hold()


# Caches


def distinct(kind: str, number: int) -> dict[str, Any]:
    """A large request that no other resembles."""
    if kind == "tools":
        fields = {f"p{number}_{i}": {"type": "string", "description": f"{number} {i} " + "d" * 300} for i in range(250)}
        schema = {"type": "object", "properties": fields}
        function = [
            {"type": "function", "function": {"name": f"t{number}_{i}", "parameters": schema}} for i in range(100)
        ]
        return {"tools": function}
    if kind == "schemas":
        schema = {"type": "object", "properties": {f"p{number}": {"type": "string", "description": "d" * 8 * MB}}}
        return {"tools": [{"type": "function", "function": {"name": "t", "parameters": schema}}]}
    if kind == "names":
        name = f"n{number}" + "é" * 20_000
        return {
            "tools": [{"type": "function", "function": {"name": f"{name}{i}", "parameters": {}}} for i in range(100)]
        }
    calls = [
        {"id": f"c{number}_{i}" + "é" * 2000, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for i in range(400)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
    return {"messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": calls}, *results]}


@pytest.mark.parametrize("what", ["tools", "schemas", "names", "ids"])
@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_caches(rows: Rows, far: Far, tmp_path: Path, what: str, kind: str):
    far.answers["quick"] = answering(kind)

    async def some(gateway: Attacked, first: int, count: int) -> None:
        for number in range(first, first + count):
            body = packed(question("chat", "quick/m", **distinct(what, number)))
            await ask(gateway.port, PATHS["chat"], body)

    with attacked(tmp_path, far.backend("quick", kind)) as gateway:
        asyncio.run(some(gateway, 0, 5))
        time.sleep(0.5)
        before = gateway.memory()
        asyncio.run(some(gateway, 5, 55))
        time.sleep(0.5)
        rows.add(f"60 requests with other {what} each, for {kind}: growth", gateway.memory() - before, 100, "MB")
    rows.hold()


def test_keys_that_nobody_gave_out(rows: Rows, far: Far, tmp_path: Path):
    """Owners, lists of models and thoughts are kept by key; anybody can think of one."""
    thinking = chat_delta({"reasoning_content": "r" * 20_000})
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    far.answers["think"] = always(
        STREAM + thinking + chat_delta({"tool_calls": [call]}) + chat_delta({}, "tool_calls") + b"data: [DONE]\n\n"
    )

    async def some(gateway: Attacked, first: int, count: int) -> None:
        body = packed(question("chat", "think/m", tools=TOOLS))
        for start in range(first, first + count, 20):
            keys = range(start, start + 20)
            await asyncio.gather(
                *(ask(gateway.port, PATHS["chat"], body, f"authorization: Bearer {k}" + "k" * 4000) for k in keys)
            )

    with attacked(tmp_path, far.backend("think", "chat")) as gateway:
        asyncio.run(some(gateway, 0, 100))
        before = gateway.memory()
        asyncio.run(some(gateway, 100, 2000))
        rows.add("2,000 keys, each with a thought of 20 KB: growth", gateway.memory() - before, 100, "MB")
    rows.hold()
