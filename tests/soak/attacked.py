"""A gateway under attack, and what is at both ends of it: clients that are hardly polite, servers that never stop."""

import asyncio
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway

MB = 1_000_000
Steps = Callable[[bytes], AsyncIterator[bytes]]
"""From the request's first bytes to those of the answer, its head included."""


class Attacked(Gateway):
    """The gateway with a bound on its memory, a watch on its loop, and a clock that can jump."""

    program = (sys.executable, str(Path(__file__).parent / "watched.py"))

    def __init__(self, folder: Path, config: str = "", **environment: str) -> None:
        self._steps = folder / "steps"
        self._peak = 0
        super().__init__(folder, config, SOAK_STEPS=str(self._steps), **environment)
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def memory(self) -> float:
        """Megabytes that the gateway and its processes hold now."""
        return sum(map(_resident, _family(self.process.pid))) / 1024

    def peak(self) -> float:
        """Most megabytes since the last `forget`."""
        return max(self._peak / 1024, self.memory())

    def forget(self) -> None:
        self._peak = 0
        with suppress(OSError):
            self._steps.write_text("")

    def longest_step(self) -> float:
        """Most CPU milliseconds that the loop was held since the last `forget`. A step that still runs is waited for."""
        asyncio.run(ask(self.port, "/healthz", b"", seconds=30))
        time.sleep(0.1)
        lines = self._steps.read_text().split() if self._steps.exists() else []
        return 1000 * max(map(float, lines), default=0.0)

    def stop(self) -> int:
        self._over.set()
        self._sampler.join(5)
        return super().stop()

    def _sample(self) -> None:
        while not self._over.wait(0.02):
            self._peak = max(self._peak, sum(map(_resident, _family(self.process.pid))))


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


def _resident(pid: int) -> int:
    """Kilobytes of one process, less the pages of files it shares with others."""
    with suppress(OSError):
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) if found else 0
    return 0


@contextmanager
def attacked(folder: Path, config: str = "", **environment: str) -> Iterator[Attacked]:
    gateway = Attacked(folder, config, **environment)
    try:
        yield gateway
    finally:
        gateway.kill()


# The far end


class Far:
    """A server that reads and forgets what it is asked, and answers by the first step of the path."""

    def __init__(self) -> None:
        self.answers: dict[str, Steps] = {}
        self.sent: dict[str, int] = {}
        """Bytes that the kernel took, by path step."""
        self.asked: list[bytes] = []
        """The first bytes of every request."""
        self.ports: list[int] = []
        """Of the connections, at the other side."""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def backend(self, name: str, kind: str, **fields: str) -> str:
        """A `[[backends]]` table; its models are `NAME/…`."""
        extra = "".join(f"{key} = {value}\n" for key, value in fields.items())
        url = f"http://127.0.0.1:{self.port}/{name}/v1"
        return f'[[backends]]\nname = "{name}"\nkind = "{kind}"\nbase_url = "{url}"\nretries = 0\n{extra}'

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        self.port = listening.getsockname()[1]
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=listening))
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ports.append(writer.get_extra_info("peername")[1])
        writer.transport.set_write_buffer_limits(0)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first = await self._body(reader, head)
            self.asked.append(head + first)
            name = head.split()[1].split(b"/")[1].decode()
            async for piece in self.answers[name](head + first):
                writer.write(piece)
                await writer.drain()
                self.sent[name] = self.sent.get(name, 0) + len(piece)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        """The first bytes of the body; the others are read and forgotten."""
        found = re.search(rb"(?i)content-length: (\d+)", head)
        left = int(found[1]) if found else 0
        first = b""
        while left:
            data = await reader.read(min(left, 1 << 20))
            if not data:
                raise ConnectionResetError
            left -= len(data)
            first += data[: 65536 - len(first)]
        return first


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"


def always(*pieces: bytes) -> Steps:
    async def answer(asked: bytes) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return answer


def event(data: dict[str, Any], *, named: bool = True) -> bytes:
    name = f"event: {data['type']}\n" if named and "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def begun(kind: str) -> bytes:
    """How a stream of a server of this kind begins."""
    if kind == "chat":
        return chat_delta({"role": "assistant", "content": ""})
    if kind == "messages":
        message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
                   "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
        block = {"type": "text", "text": ""}
        start = event({"type": "content_block_start", "index": 0, "content_block": block})
        return event({"type": "message_start", "message": message}) + start
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "model": "m", "output": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    place = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
    return (
        event({"type": "response.created", "response": response})
        + event({"type": "response.output_item.added", "output_index": 0, "item": item})
        + event({"type": "response.content_part.added", **place, "part": part})
    )


def words(kind: str, text: str) -> bytes:
    """A delta of text."""
    if kind == "chat":
        return chat_delta({"content": text})
    if kind == "messages":
        return event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
    place = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
    return event({"type": "response.output_text.delta", **place, "delta": text})


def over(kind: str, text: str = "") -> bytes:
    """How a stream ends well."""
    if kind == "chat":
        return chat_delta({}, "stop") + b"data: [DONE]\n\n"
    if kind == "messages":
        delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
        return event({"type": "content_block_stop", "index": 0}) + event(delta) + event({"type": "message_stop"})
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [item]}
    done = event({"type": "response.output_item.done", "output_index": 0, "item": item})
    return done + event({"type": "response.completed", "response": response})


def chat_delta(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def answering(kind: str, text: str = "Yes.") -> Steps:
    """A short answer, as a stream."""
    return always(STREAM + begun(kind) + words(kind, text) + over(kind, text))


# This end

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def head(path: str, size: int, *more: str, method: str = "POST", host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "content-type: application/json", f"content-length: {size}"]
    return ("\r\n".join([*lines, *more]) + "\r\n\r\n").encode()


async def ask(port: int, path: str, body: bytes, *more: str, seconds: float = 60) -> tuple[int, bytes]:
    """Send a request and read all of its answer; status 0 if none came."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head(path, len(body), "connection: close", *more))
                for start in range(0, len(body), MB):
                    writer.write(body[start : start + MB])
                    await writer.drain()
                return split(await _all(reader))
            except ConnectionError:
                return split(await _all(reader))
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return 0, b""


async def _all(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    with suppress(ConnectionError):
        while data := await reader.read(1 << 20):
            pieces.append(data)
    return b"".join(pieces)


def split(answer: bytes) -> tuple[int, bytes]:
    if not answer.startswith(b"HTTP/1.1 "):
        return 0, answer
    top, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in top.lower():
        body = b"".join(_chunks(body))
    return int(top[9:12]), body


def _chunks(body: bytes) -> Iterator[bytes]:
    place = 0
    while (end := body.find(b"\r\n", place)) > 0:
        size = int(body[place:end], 16)
        if not size:
            return
        yield body[end + 2 : end + 2 + size]
        place = end + 4 + size


def question(dialect: str, model: str, **fields: Any) -> dict[str, Any]:
    """A small request."""
    asked: dict[str, Any] = {"model": model, "stream": True, **fields}
    if dialect == "responses":
        return {"input": "Go.", "store": False, **asked}
    return {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 100, **asked}


def packed(value: Any) -> bytes:
    return json.dumps(value).encode()


def queues(port: int) -> dict[int, tuple[int, int]]:
    """What the kernel holds of connections from or to a port of this machine: by the other port, bytes not yet
    acknowledged and bytes not yet read, at this end."""
    found: dict[int, tuple[int, int]] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        here, there = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
        if here == port and there:
            sent, _, received = fields[4].partition(":")
            found[there] = int(sent, 16), int(received, 16)
    return found


def is_root() -> bool:
    return os.geteuid() == 0
