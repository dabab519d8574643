"""The outside world, in its small parts."""

import asyncio
import errno
import gzip
import os
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from unittest import mock

import aiohttp
import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from yarl import URL

from toolwire.core.backend import Post
from toolwire.upstream import aiohttp_buffer
from toolwire.upstream.credentials import ApiKey
from toolwire.upstream.http import LARGE_BODY, HttpReply, HttpUpstream, find_proxy, make_session
from toolwire.upstream.reply import Broken, Timeouts
from toolwire.upstream.scheduling import PERIOD, Alarm, Ticker

T = TypeVar("T")


def test_the_environments_proxy_is_honoured(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert find_proxy(URL("http://api.example/v1")) is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert find_proxy(URL("http://api.example/v1")) == "http://proxy.example:3128"
    assert find_proxy(URL("http://127.0.0.1:9000/v1")) is None


def waiting(scenario):
    """Run a scenario with an alarm of its own task."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        alarm = Alarm(Ticker(loop))
        await scenario(alarm, loop)
        alarm.close()

    asyncio.run(run())


def test_an_alarm_rings_once_its_time_has_come():
    async def scenario(alarm: Alarm, loop: asyncio.AbstractEventLoop) -> None:
        with alarm.at(loop.time() + 600):
            await asyncio.sleep(PERIOD * 2)
        with pytest.raises(TimeoutError), alarm.at(loop.time() + 0.01):
            await asyncio.sleep(600)
        with alarm.at(loop.time() + 0.01):
            pass  # left before it is late, however slow this machine is
        await asyncio.sleep(PERIOD * 2)  # nobody waits: it must not ring

    waiting(scenario)


def test_a_cancellation_from_outside_is_not_taken_for_the_alarm():
    async def scenario(alarm: Alarm, loop: asyncio.AbstractEventLoop) -> None:
        async def wait() -> None:
            task = asyncio.current_task()
            assert task is not None
            with Alarm(Ticker(loop)).at(loop.time() + 600):
                await asyncio.sleep(600)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    waiting(scenario)


def test_a_ticker_rests_when_everybody_has_left():
    ticks: list[float] = []

    class Counting:
        def tick(self, now: float) -> None:
            ticks.append(now)

    async def scenario() -> None:
        ticker = Ticker(asyncio.get_running_loop())
        member = Counting()
        ticker.join(member)
        while not ticks:  # noqa: ASYNC110 - the ticker itself is under test
            await asyncio.sleep(PERIOD)
        ticker.leave(member)
        seen = len(ticks)
        await asyncio.sleep(PERIOD * 3)
        assert seen == len(ticks) > 0

    asyncio.run(scenario())


async def in_chunks(pieces: list[bytes], read: Callable[[aiohttp.ClientResponse], Awaitable[T]]) -> T:
    """What a reader of a chunked reply gets, when the server sends it in these pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            if piece.endswith(b"!\r\n"):
                await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
        return await read(response)


async def everything(response: aiohttp.ClientResponse) -> list[bytes]:
    read: list[bytes] = []
    reply = HttpReply(response.status, response.headers, response.content, response.close)
    while data := reply.read_nowait() or await reply.read():
        read.append(data)
    assert reply.is_whole()
    return read


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_this_aiohttp_is_known():
    assert aiohttp_buffer.HAS_KNOWN_INTERNALS


@pytest.mark.parametrize("known", [True, False], ids=["at-once", "as-aiohttp-wants"])
def test_a_reply_in_many_chunks_is_read_whole_and_in_order(monkeypatch, known: bool):
    if not known:
        monkeypatch.setattr(aiohttp_buffer, "HAS_KNOWN_INTERNALS", False)
    texts = [b"%d%b" % (number, b"!" if number % 7 == 0 else b"") for number in range(200)]
    read = asyncio.run(in_chunks([chunk(text) for text in texts], everything))
    assert b"".join(read) == b"".join(texts)
    assert len(read) < len(texts)


def test_a_chunk_that_ends_in_a_read_of_its_own_is_not_the_end():
    pieces = [b"1\r\na", b"!\r\n"[1:], chunk(b"b!"), b"1\r\nc", b"\r\n", chunk(b"d!"), chunk(b"e")]
    assert b"".join(asyncio.run(in_chunks(pieces, everything))) == b"ab!cd!e"


class Unlucky:
    """A session whose every request ends like this."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    timeout = None

    @property
    def connector(self) -> "Unlucky":
        return self

    async def connect(self, *args: Any) -> None:
        raise self._error

    @asynccontextmanager
    async def request(self, *args: Any, **options: Any) -> AsyncIterator[None]:
        raise self._error
        yield


class Key:
    """Where a connection leads."""

    host, port, ssl, is_ssl = "secret.example", 8443, True, True


def distrusted(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"certificate verify failed: {message} (_ssl.c:1006)")
    error.verify_message = message
    return error


def refused(number: int) -> OSError:
    return OSError(number, "Connect call failed ('10.0.0.1', 8443)")


KEY: Any = Key()
NO_NAME = socket.gaierror(-2, "Name or service not known")
MISMATCH = "Hostname mismatch, certificate is not valid for 'secret.example'."
UNREACHABLE, CERTIFICATE = "The backend cannot be reached", "The backend's certificate was refused"


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (aiohttp.ClientConnectorError(KEY, refused(errno.ECONNREFUSED)), 502, f"{UNREACHABLE}: connection refused."),
        (aiohttp.ClientConnectorError(KEY, refused(errno.EHOSTUNREACH)), 502, f"{UNREACHABLE}: no route to host."),
        (aiohttp.ClientConnectorError(KEY, OSError("Multiple exceptions: …")), 502, f"{UNREACHABLE}."),
        (aiohttp.ClientConnectorDNSError(KEY, NO_NAME), 502, f"{UNREACHABLE}: unknown host."),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "WRONG_VERSION_NUMBER")), 502, f"{UNREACHABLE}: TLS failed."),
        (aiohttp.ClientProxyConnectionError(KEY, refused(errno.ECONNREFUSED)), 502, f"{UNREACHABLE}: proxy: connection refused."),
        (aiohttp.ClientProxyConnectionError(KEY, NO_NAME), 502, f"{UNREACHABLE}."),
        (aiohttp.ConnectionTimeoutError("Connection timeout to host https://secret.example"), 504, f"{UNREACHABLE} in time."),
        (aiohttp.ClientConnectorCertificateError(KEY, distrusted("self-signed certificate")), 502, f"{CERTIFICATE}: self-signed certificate."),
        (aiohttp.ClientConnectorCertificateError(KEY, distrusted(MISMATCH)), 502, f"{CERTIFICATE}: Hostname mismatch."),
        (distrusted("certificate has expired"), 502, f"{CERTIFICATE}: certificate has expired."),
        (aiohttp.ServerDisconnectedError(), 502, "The connection to the backend broke."),
    ],
)  # fmt: skip
def test_what_went_wrong_is_told_without_an_address(error: Exception, status: int, says: str):
    session: Any = Unlucky(error)
    upstream = HttpUpstream(session, "https://secret.example:8443/v1", ApiKey(), {})
    with pytest.raises(Broken) as broken:
        asyncio.run(upstream.open(Post("/responses", b"{}"), ""))
    assert (broken.value.failure.status, broken.value.failure.message) == (status, says)


@pytest.mark.parametrize(
    ("error", "says", "hint"),
    [
        (TimeoutError(), "The backend has not answered within 8 seconds.", "Check base_url and the network."),
        (
            aiohttp.ConnectionTimeoutError(),
            f"{UNREACHABLE} in time.",
            "Check base_url and the network; timeouts.connect sets how long to wait.",
        ),
    ],
)
def test_only_a_connection_that_takes_too_long_is_said_to_have_a_setting(error: Exception, says: str, hint: str):
    session: Any = Unlucky(error)
    upstream = HttpUpstream(session, "https://secret.example:8443/v1", ApiKey(), {})
    with pytest.raises(Broken) as broken:
        asyncio.run(upstream.get_json("/models", ""))
    assert (broken.value.failure.message, broken.value.failure.hint) == (says, hint)


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


async def posted(
    answers: list[bytes], *posts: Post, key: str = "", headers: dict[str, str] | None = None, proxied: bool = False
) -> tuple[list[bytes], list[tuple[int, bytes]], int]:
    """What a server reads of requests, what its answers are read as, and how many connections that took."""
    requests: list[bytes] = []
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            requests.append(head + await reader.readexactly(size))
            writer.write(reply := answers.pop(0))
            if b"connection: close" in reply or not reply:
                writer.close()
                return

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    here = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    replies: list[tuple[int, bytes]] = []
    async with server, make_session(Timeouts()) as session:
        base = "http://model.example/v1" if proxied else f"{here}/v1"
        with mock.patch.dict(os.environ, {"http_proxy": here} if proxied else {}):
            upstream = HttpUpstream(session, base, ApiKey(), headers or {})
        for post in posts:
            reply = await upstream.open(post, key)
            body = b""
            while data := await reply.read():
                body += data
            reply.close()
            replies.append((reply.status, body))
    return requests, replies, connections


def test_a_usual_request_is_written_as_it_should_be():
    post = Post("/responses", b"{}", {"accept": "text/event-stream"})
    [request], replies, _ = asyncio.run(posted([OK], post, key="sk-1", headers={"User-Agent": "mine"}))
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert (first, body) == (b"POST /v1/responses HTTP/1.1", b"{}")
    fields = dict(line.split(b": ") for line in lines)
    assert fields.pop(b"host").startswith(b"127.0.0.1:")
    assert fields == {
        b"user-agent": b"mine",
        b"content-type": b"application/json",
        b"accept": b"text/event-stream",
        b"authorization": b"Bearer sk-1",
        b"content-length": b"2",
    }
    assert replies == [(200, b"hi")]


def test_a_connection_serves_one_request_after_the_other():
    posts = [Post("/responses", b"{}"), Post("/responses/compact", b"[]")]
    requests, replies, connections = asyncio.run(posted([OK, OK], *posts))
    assert ([request.split()[1] for request in requests], connections) == (
        [b"/v1/responses", b"/v1/responses/compact"],
        1,
    )
    assert replies == [(200, b"hi")] * 2


def test_an_interim_response_is_not_the_response():
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    assert asyncio.run(posted([interim + OK], Post("/responses", b"{}")))[1] == [(200, b"hi")]


def test_a_response_may_end_with_its_connection():
    endless = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhi"
    _, replies, connections = asyncio.run(posted([endless, OK], Post("/a", b""), Post("/b", b"")))
    assert (replies, connections) == ([(200, b"hi")] * 2, 2)


NUMBERS = b"".join(b"%d " % number for number in range(60_000))
WHOLE = {
    "length": b"content-length: %d\r\n\r\n" % len(NUMBERS) + NUMBERS,
    "large chunks": b"transfer-encoding: chunked\r\n\r\n" + chunk(NUMBERS) + b"0\r\n\r\n",
    "small chunks": b"transfer-encoding: chunked\r\n\r\n%b0\r\n\r\n"
    % b"".join(chunk(NUMBERS[start : start + 5]) for start in range(0, len(NUMBERS), 5)),
    "end of file": b"connection: close\r\n\r\n" + NUMBERS,
    "gzip": b"content-encoding: gzip\r\nconnection: close\r\n\r\n" + gzip.compress(NUMBERS),
}


@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.parametrize(("size", "seconds"), [(7, -1.0), (1000, -1.0), (16384, -1.0), (1000, 60.0), (1 << 20, 60.0)])
def test_a_response_is_read_whole_however_often_parsing_gives_way(monkeypatch, form: str, size: int, seconds: float):
    """Two of them on one connection, if that stays open. Without time it gives way after each slice."""
    monkeypatch.setattr(aiohttp_buffer, "PARSED_SLICE", size)
    monkeypatch.setattr(aiohttp_buffer, "STEP", seconds)
    answer = b"HTTP/1.1 200 OK\r\n" + WHOLE[form]
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    posts = [Post("/responses", b"{}"), Post("/responses", b"{}")]
    _, replies, connections = asyncio.run(posted([interim + answer, answer], *posts))
    assert replies == [(200, NUMBERS)] * 2
    assert connections == (2 if b"connection: close" in answer else 1)


def test_a_flood_of_responses_ends_the_connection():
    flood = b"HTTP/1.1 100 Continue\r\n\r\n" * (aiohttp_buffer.MAX_RESPONSES + 1)
    for body in (b"{}", b"x" * LARGE_BODY):
        with pytest.raises(Broken):
            asyncio.run(posted([flood + b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"], Post("/responses", body)))


def test_a_large_body_is_let_go_when_it_is_written():
    """The answer may take minutes."""

    async def main() -> int:
        is_read, is_over = asyncio.Event(), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            left = 8 * LARGE_BODY
            await reader.readuntil(b"\r\n\r\n")
            while left:
                left -= len(await reader.read(65536))
            is_read.set()
            await is_over.wait()
            writer.write(OK)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server, make_session(Timeouts()) as session:
            upstream = HttpUpstream(session, url, ApiKey(), {})
            tracemalloc.start()
            asking = asyncio.create_task(upstream.open(Post("/responses", b"x" * 8 * LARGE_BODY), ""))
            await is_read.wait()
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            is_over.set()
            assert (await asking).status == 200
        return held

    assert asyncio.run(main()) < 2 * LARGE_BODY


def test_a_compressed_response_is_unpacked():
    packed = gzip.compress(b"hello")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    assert asyncio.run(posted([head + packed], Post("/responses", b"{}")))[1] == [(200, b"hello")]


@pytest.mark.parametrize("reply", [b"", b"\x16\x03\x01 not HTTP\r\n\r\n"], ids=["closed", "nonsense"])
def test_a_server_that_does_not_answer_in_http_is_broken(reply: bytes):
    with pytest.raises(Broken) as broken:
        asyncio.run(posted([reply], Post("/responses", b"{}")))
    assert broken.value.failure.code == "backend_broke_off"


@pytest.mark.parametrize("key", ["sk-1\n", "sk\r\nx-evil: 1", "sk\0"])
def test_a_key_with_a_line_break_is_not_sent(key: str):
    with pytest.raises(Broken) as broken:
        asyncio.run(posted([OK], Post("/responses", b"{}"), key=key))
    assert broken.value.failure.code == "invalid_header"
    assert "sk" not in broken.value.failure.message


@pytest.mark.parametrize(("size", "proxied"), [(LARGE_BODY, False), (2, True)], ids=["large", "proxied"])
def test_a_request_that_takes_aiohttps_own_way_says_the_same(size: int, proxied: bool):
    post = Post("/responses", b" " * size)
    [request], replies, _ = asyncio.run(posted([OK], post, key="sk-1", proxied=proxied))
    head, _, body = request.partition(b"\r\n\r\n")
    assert (len(body), replies) == (size, [(200, b"hi")])
    target = b"http://model.example/v1/responses" if proxied else b"/v1/responses"
    assert head.split(b"\r\n")[0] == b"POST %b HTTP/1.1" % target
    assert {b"authorization: bearer sk-1", b"content-type: application/json"} < {*head.lower().split(b"\r\n")}


class Wire(BaseProtocol):
    """A connection that can be paused."""

    @property
    def paused(self) -> bool:
        return self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        self._reading_paused = False


@pytest.mark.parametrize("size", [100, 5000, 200_000])
def test_not_more_is_taken_at_once_than_may_wait(size):
    """However the bytes came, all of them are read once, in order, and the connection goes on being read."""

    async def read() -> list[bytes]:
        loop = asyncio.get_running_loop()
        wire = Wire(loop)
        content = StreamReader(wire, aiohttp_buffer.MAX_READ, loop=loop)
        content.begin_http_chunk_receiving()
        for number in range(600_000 // size):
            content.feed_data(bytes([number % 256]) * size)
            content.end_http_chunk_receiving()
        assert wire.paused
        out = [await aiohttp_buffer.wait_and_drain(content)]
        assert wire.paused, "there is plenty"
        while content._buffer:
            out.append(aiohttp_buffer.drain(content))
        assert not wire.paused
        return out

    taken = asyncio.run(read())
    assert b"".join(taken) == b"".join(bytes([number % 256]) * size for number in range(600_000 // size))
    assert max(map(len, taken)) <= aiohttp_buffer.MAX_READ


@pytest.mark.parametrize("batching", [True, False])
def test_the_installed_aiohttp_gives_a_burst_of_chunks_at_once(monkeypatch: pytest.MonkeyPatch, batching: bool):
    """aiohttp's own reading, chunk by chunk, is used only without batching."""
    used: list[str] = []

    async def read(response: aiohttp.ClientResponse) -> bytes:
        await response.content.wait_eof()
        monkeypatch.setattr(StreamReader, "read_nowait", lambda *_: used.append("read_nowait") or b"")
        return HttpReply(response.status, response.headers, response.content, response.close, batching).read_nowait()

    texts = [b"data: %d\n\n" % number for number in range(40)]
    data = asyncio.run(in_chunks([chunk(text) for text in texts], read))
    assert (data, used) == ((b"".join(texts), []) if batching else (b"", ["read_nowait"]))


@pytest.mark.parametrize("size", [2, LARGE_BODY])  # small requests are written straight to a connection of the pool
def test_bytes_behind_an_answer_are_no_answer_to_the_next_request(size):
    async def main() -> list[bytes]:
        opened, numbers = asyncio.Event(), iter((b"one", b"two", b"three"))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            extra = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nextra"
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                body = next(numbers)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
                await opened.wait()
                opened.clear()
                writer.write(body + extra)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        said: list[bytes] = []
        async with make_session(Timeouts()) as session:
            upstream = HttpUpstream(session, f"http://127.0.0.1:{port}", ApiKey("authorization", "sk-1"), {})
            for _ in range(3):
                reply = await upstream.open(Post("/x", b"x" * size), "")
                opened.set()
                said.append(b"".join([piece async for piece in pieces_of(reply)]))
        server.close()
        return said

    async def pieces_of(reply: HttpReply):
        while piece := await reply.read():
            yield piece

    assert asyncio.run(main()) == [b"one", b"two", b"three"]
