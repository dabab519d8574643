"""The outside world, in its small parts."""

import asyncio
import datetime
import errno
import gzip
import os
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from yarl import URL

from toolwire.core.backend import Post
from toolwire.gateway.process import new_event_loop
from toolwire.upstream import connection
from toolwire.upstream.connection import MAX_HEAD_BYTES, MAX_READ, ConnectFailed, ConnectTimeout
from toolwire.upstream.credentials import ApiKey
from toolwire.upstream.http import LARGE_BODY, HttpReply, HttpSession, HttpUpstream, find_proxy
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


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def read_chunks(pieces: list[bytes]) -> list[bytes]:
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
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    read: list[bytes] = []
    async with server, HttpSession(Timeouts()) as session:
        reply = await HttpUpstream(session, url, ApiKey(), {}).open(Post("/", b"{}"), "")
        while data := reply.read_nowait() or await reply.read():
            read.append(data)
        assert reply.is_whole()
    return read


def test_a_reply_in_many_chunks_is_read_whole_and_in_order():
    texts = [b"%d%b" % (number, b"!" if number % 7 == 0 else b"") for number in range(200)]
    read = asyncio.run(read_chunks([chunk(text) for text in texts]))
    assert b"".join(read) == b"".join(texts)
    assert len(read) < len(texts)


def test_a_chunk_that_ends_in_a_read_of_its_own_is_not_the_end():
    pieces = [b"1\r\na", b"!\r\n"[1:], chunk(b"b!"), b"1\r\nc", b"\r\n", chunk(b"d!"), chunk(b"e")]
    assert b"".join(asyncio.run(read_chunks(pieces))) == b"ab!cd!e"


class Unlucky:
    """A session whose every request ends like this."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def pool(self) -> "Unlucky":
        return self

    @property
    def client(self) -> "Unlucky":
        return self

    async def acquire(self, *args: Any) -> None:
        raise self._error

    async def post(self, *args: Any, **options: Any) -> None:
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
        (ConnectFailed(refused(errno.ECONNREFUSED)), 502, f"{UNREACHABLE}: connection refused."),
        (ConnectFailed(refused(errno.EHOSTUNREACH)), 502, f"{UNREACHABLE}: no route to host."),
        (ConnectFailed(OSError("Multiple exceptions: …")), 502, f"{UNREACHABLE}."),
        (ConnectFailed(NO_NAME), 502, f"{UNREACHABLE}: unknown host."),
        (ConnectFailed(ssl.SSLError(1, "WRONG_VERSION_NUMBER")), 502, f"{UNREACHABLE}: TLS failed."),
        (ConnectTimeout(), 504, f"{UNREACHABLE} in time."),
        (ConnectFailed(distrusted("self-signed certificate")), 502, f"{CERTIFICATE}: self-signed certificate."),
        (ConnectFailed(distrusted(MISMATCH)), 502, f"{CERTIFICATE}: Hostname mismatch."),
        (ConnectFailed(distrusted("certificate has expired")), 502, f"{CERTIFICATE}: certificate has expired."),
        (connection.Disconnected(), 502, "The connection to the backend broke."),
        (aiohttp.ClientConnectorError(KEY, refused(errno.ECONNREFUSED)), 502, f"{UNREACHABLE}: connection refused."),
        (aiohttp.ClientConnectorDNSError(KEY, NO_NAME), 502, f"{UNREACHABLE}: unknown host."),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "WRONG_VERSION_NUMBER")), 502, f"{UNREACHABLE}: TLS failed."),
        (aiohttp.ClientProxyConnectionError(KEY, refused(errno.ECONNREFUSED)), 502, f"{UNREACHABLE}: proxy: connection refused."),
        (aiohttp.ClientProxyConnectionError(KEY, NO_NAME), 502, f"{UNREACHABLE}."),
        (aiohttp.ConnectionTimeoutError("Connection timeout to host https://secret.example"), 504, f"{UNREACHABLE} in time."),
        (aiohttp.ClientConnectorCertificateError(KEY, distrusted("self-signed certificate")), 502, f"{CERTIFICATE}: self-signed certificate."),
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
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if (task := asyncio.current_task()) is not None:
            answering.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                requests.append(head + await reader.readexactly(size))
                writer.write(reply := answers.pop(0))
                if b"connection: close" in reply or not reply:
                    break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    here = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    replies: list[tuple[int, bytes]] = []
    async with server, HttpSession(Timeouts()) as session:
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
    await asyncio.wait(answering)
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
def test_a_response_is_read_whole_in_every_form(form: str):
    """Two of them on one connection, if that stays open."""
    answer = b"HTTP/1.1 200 OK\r\n" + WHOLE[form]
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    posts = [Post("/responses", b"{}"), Post("/responses", b"{}")]
    _, replies, connections = asyncio.run(posted([interim + answer, answer], *posts))
    assert replies == [(200, NUMBERS)] * 2
    assert connections == (2 if b"connection: close" in answer else 1)


@pytest.mark.parametrize("form", WHOLE)
def test_a_response_is_read_the_same_however_it_arrives(form: str):
    for size in (1, 7, 1000, 65536, 1 << 20):
        whole = b"HTTP/1.1 200 OK\r\n" + WHOLE[form]
        whole = whole[:3000] if size == 1 and "end of file" in form else whole
        reply = fed([whole[start : start + size] for start in range(0, len(whole), size)])
        expected = NUMBERS if len(whole) > 3000 else whole.partition(b"\r\n\r\n")[2]
        assert reply == expected, size


class Wire(asyncio.Transport):
    """A transport that a test controls."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = self.closed = False
        self.pauses = 0

    def pause_reading(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def opened() -> tuple[connection.Connection, Wire, asyncio.Task[connection.WireReply]]:
    """A connection that has asked."""
    wire = Wire()
    server = connection.Connection(connection.Pool(9), connection.Address("h", 1, False), asyncio.get_running_loop())
    server.connection_made(wire)
    asking = asyncio.create_task(server.ask(b"POST / HTTP/1.1\r\n\r\n", b""))
    await asyncio.sleep(0)
    return server, wire, asking


def fed(pieces: list[bytes]) -> bytes:
    """The body that is read when a response arrives in these pieces; reading pauses when the buffer is full."""

    async def main() -> bytes:
        server, wire, asking = await opened()
        body = b""
        for piece in pieces:
            server.data_received(piece)
            await asyncio.sleep(0)
            if asking.done() and wire.paused:
                while data := asking.result().read_nowait():
                    body += data
                assert not wire.paused
        server.connection_lost(None)
        reply = await asking
        while data := await reply.read():
            body += data
        assert reply.is_whole()
        return body

    return asyncio.run(main())


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"half")[:-4],
    ],
    ids=["nothing", "head", "length", "chunks", "chunk", "upper-case", "gzip"],
)
def test_a_cut_reply_is_read_to_its_last_byte_and_then_fails(cut: bytes):
    async def main() -> bytes:
        server, _, asking = await opened()
        if cut:
            server.data_received(cut)
        server.connection_lost(None)
        reply, body = await asking, b""
        try:
            while data := await reply.read():
                body += data
        except connection.Disconnected:
            assert not reply.is_whole()
            return body
        raise AssertionError("it ended as if it were whole")

    try:
        assert asyncio.run(main()) == b"half"
    except connection.Disconnected:
        assert b"\r\n\r\n" not in cut


def test_a_server_that_never_ends_its_head_is_cut_off():
    async def main() -> bool:
        server, wire, asking = await opened()
        sent = 0
        while not wire.closed:
            server.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
            sent += 25
            assert sent <= MAX_HEAD_BYTES + 25
        with pytest.raises(connection.Disconnected):
            await asking
        return True

    assert asyncio.run(main())


def test_a_compressed_bomb_is_unpacked_in_steps():
    packed = gzip.compress(bytes(64 * 1024 * 1024))

    async def main() -> int:
        server, _, asking = await opened()
        server.data_received(
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed
        )
        reply, size = await asking, 0
        while data := await reply.read():
            assert len(data) <= MAX_READ
            size += len(data)
        return size

    assert asyncio.run(main()) == 64 * 1024 * 1024


def test_no_more_of_a_compressed_body_is_taken_than_is_unpacked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "MAX_READ", 1000)
    monkeypatch.setattr(connection, "BUFFER_SIZE", 500)
    packed = gzip.compress(bytes(8_000_000))

    async def main() -> tuple[bool, int]:
        server, wire, asking = await opened()
        server.data_received(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + packed)
        reply = await asking
        size = sum([len(await reply.read()) for _ in range(20)])
        return wire.paused, size

    assert asyncio.run(main()) == (True, 20_000)


def test_a_connection_that_sends_something_unasked_is_closed():
    async def main() -> bool:
        server, wire, asking = await opened()
        server.data_received(OK)
        await asking
        assert server.is_usable
        server.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        return wire.closed and not server.is_usable

    assert asyncio.run(main())


def test_a_cancelled_request_leaves_the_connection_of_the_next_one_open():
    async def main() -> bool:
        server, wire, asking = await opened()
        server.data_received(OK)  # complete, so that another request may use the connection
        following = asyncio.create_task(server.ask(b"POST / HTTP/1.1\r\n\r\n", b""))
        asking.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        is_open = not wire.closed
        following.cancel()
        return is_open

    assert asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_server_that_answers_before_it_has_read_a_large_body_gets_no_other_request(when: str):
    async def main() -> bool:
        wire = Wire()
        server = connection.Connection(
            connection.Pool(9), connection.Address("h", 1, False), asyncio.get_running_loop()
        )
        server.connection_made(wire)
        server.pause_writing()
        asking = asyncio.create_task(server.ask(b"POST / HTTP/1.1\r\n\r\n", b"x" * LARGE_BODY))
        await asyncio.sleep(0)
        if when == "after":
            server.resume_writing()
            for _ in range(20):
                await asyncio.sleep(0)
        server.data_received(OK)
        server.resume_writing()
        await asking
        return server.is_usable

    assert asyncio.run(main()) == (when == "after")


def test_a_request_that_is_cancelled_closes_its_connection():
    async def main() -> bool:
        _, wire, asking = await opened()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return wire.closed

    assert asyncio.run(main())


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
        async with server, HttpSession(Timeouts()) as session:
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


@pytest.mark.parametrize(
    ("size", "proxied"), [(LARGE_BODY, False), (2, True), (LARGE_BODY, True)], ids=["large", "proxied", "large-proxied"]
)
def test_a_large_or_proxied_request_says_the_same(size: int, proxied: bool):
    post = Post("/responses", b" " * size)
    [request], replies, _ = asyncio.run(posted([OK], post, key="sk-1", proxied=proxied))
    head, _, body = request.partition(b"\r\n\r\n")
    assert (len(body), replies) == (size, [(200, b"hi")])
    target = b"http://model.example/v1/responses" if proxied else b"/v1/responses"
    assert head.split(b"\r\n")[0] == b"POST %b HTTP/1.1" % target
    assert {b"authorization: bearer sk-1", b"content-type: application/json"} < {*head.lower().split(b"\r\n")}


@pytest.mark.parametrize("size", [100, 5000, 200_000])
def test_not_more_is_taken_at_once_than_may_wait(size: int):
    """However the bytes came, all of them are read once, in order, and the connection goes on being read."""

    async def main() -> list[bytes]:
        server, wire, asking = await opened()
        server.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(600_000 // size):
            server.data_received(chunk(bytes([number % 256]) * size))
        assert wire.paused
        reply = await asking
        out = [await reply.read()]
        assert wire.paused, "there is plenty"
        while data := reply.read_nowait():
            out.append(data)
        assert not wire.paused
        return out

    taken = asyncio.run(main())
    assert b"".join(taken) == b"".join(bytes([number % 256]) * size for number in range(600_000 // size))
    assert max(map(len, taken)) <= MAX_READ


@pytest.mark.parametrize("size", [2, LARGE_BODY])
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
        async with HttpSession(Timeouts()) as session:
            upstream = HttpUpstream(session, f"http://127.0.0.1:{port}", ApiKey("authorization", "sk-1"), {})
            for _ in range(3):
                reply = await upstream.open(Post("/x", b"x" * size), "")
                opened.set()
                said.append(b"".join([piece async for piece in pieces_of(reply)]))
        server.close()
        return said

    assert asyncio.run(main()) == [b"one", b"two", b"three"]


def certify(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for a host, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("name", "is_trusted", "reason"),
    [
        ("localhost", True, ""),
        ("localhost", False, f"{CERTIFICATE}: self-signed certificate."),
        ("elsewhere.example", True, f"{CERTIFICATE}: Hostname mismatch."),
    ],
)
def test_a_server_is_asked_over_tls_if_its_certificate_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loops: Any, name: str, is_trusted: bool, reason: str
):
    certificate, key = certify(tmp_path, name)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate if is_trusted else tmp_path / "none.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while await reader.readuntil(b"\r\n\r\n{}"):
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(NUMBERS) + b"0\r\n\r\n")
        writer.close()

    async def main() -> list[bytes]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        bodies: list[bytes] = []
        async with server, HttpSession(Timeouts()) as session:
            for _ in range(2):
                reply = await HttpUpstream(session, url, ApiKey(), {}).open(Post("/", b"{}"), "")
                bodies.append(b"".join([data async for data in pieces_of(reply)]))
            assert len(session.pool.open) == 1
        return bodies

    with asyncio.Runner(loop_factory=loops) as runner:
        if not reason:
            assert runner.run(main()) == [NUMBERS, NUMBERS]
            return
        with pytest.raises(Broken) as broken:
            runner.run(main())
        assert broken.value.failure.message == reason


async def pieces_of(reply: HttpReply) -> AsyncIterator[bytes]:
    while piece := await reply.read():
        yield piece
